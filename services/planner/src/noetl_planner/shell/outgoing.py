"""What a decision sends: event batches for the projectors, commands for the workers."""

from collections.abc import Iterator, Sequence

from noetl_contracts import codec, ids, subjects
from noetl_contracts.commands import COMMAND_BYTES_MAX, Command
from noetl_contracts.envelope import Envelope, EventBatch
from noetl_contracts.errors import Permanent
from noetl_contracts.facts import FactBatch
from noetl_contracts.ledger import NewMessage
from noetl_messaging.ports import MESSAGE_BYTES_MAX

BATCH_EVENTS_MAX = 200
BATCH_BYTES_MAX = 256 * 1024


class CommandTooLarge(Permanent):
    """A command does not fit a message although its parts went by reference."""

    def __init__(self, message: str, *, step: str) -> None:
        super().__init__(message)
        self.step = step


def messages(
    envelopes: Sequence[Envelope],
    commands: Sequence[Command],
    told: Sequence[FactBatch] = (),
    *,
    shard_count: int,
    has_share: bool = False,
    traceparent: str | None = None,
) -> list[NewMessage]:
    """Return the messages of one execution in the order in which they go out.

    `has_share` says that its tenant has its own share of every pool, `traceparent` which span
    decided on the events.
    """
    sent = [_command(command, has_share=has_share) for command in commands]
    sent += [to_execution(batch, shard_count=shard_count) for batch in told]
    if not envelopes:
        return sent
    first = envelopes[0]
    shard = ids.shard_of(first.execution_id, shard_count)
    subject = subjects.events(shard, first.tenant_id, first.organization_id)
    # Projectors read from the ledger whatever no message carries.
    batches = _batches(envelopes, subject, traceparent)
    return sent + [batch for batch in batches if len(batch.data) <= MESSAGE_BYTES_MAX]


def _batches(
    envelopes: Sequence[Envelope], subject: str, traceparent: str | None
) -> list[NewMessage]:
    """Write events as one message; as several, each event measured, where that is too large."""
    if len(envelopes) <= BATCH_EVENTS_MAX:
        whole = _batch(envelopes, subject, traceparent)
        if len(whole.data) <= BATCH_BYTES_MAX:
            return [whole]
    return [_batch(part, subject, traceparent) for part in _cut(envelopes)]


def _cut(envelopes: Sequence[Envelope]) -> Iterator[list[Envelope]]:
    part: list[Envelope] = []
    size = 0
    for envelope in envelopes:
        length = len(codec.encode(envelope))
        if part and (len(part) >= BATCH_EVENTS_MAX or size + length > BATCH_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(envelope)
        size += length
    if part:
        yield part


def _batch(part: Sequence[Envelope], subject: str, traceparent: str | None) -> NewMessage:
    first, last = part[0], part[-1]
    batch = EventBatch(
        execution_id=first.execution_id,
        tenant_id=first.tenant_id,
        organization_id=first.organization_id,
        first_version=first.stream_version,
        last_version=last.stream_version,
        events=list(part),
    )
    return NewMessage(
        execution_id=first.execution_id,
        subject=subject,
        message_id=f"events/{first.execution_id}/{first.stream_version}-{last.stream_version}",
        data=codec.encode(batch),
        traceparent=traceparent,
    )


def to_execution(batch: FactBatch, *, shard_count: int) -> NewMessage:
    """Address facts to the planner of the execution that they are about."""
    shard = ids.shard_of(batch.execution_id, shard_count)
    return NewMessage(
        execution_id=batch.execution_id,
        subject=subjects.ingest(shard, batch.tenant_id, batch.organization_id),
        message_id=batch.key,
        data=codec.encode(batch),
        traceparent=batch.traceparent,
    )


def _command(command: Command, *, has_share: bool) -> NewMessage:
    data = codec.encode(command)
    if len(data) > COMMAND_BYTES_MAX:
        raise CommandTooLarge(
            f"the command of step {command.step!r} takes {len(data)} bytes, "
            f"{COMMAND_BYTES_MAX} is the limit: keep large values out of ctx, select fewer fields",
            step=command.step,
        )
    return NewMessage(
        execution_id=command.execution_id,
        subject=subjects.command(
            command.pool,
            command.lane,
            command.tenant_id,
            command.organization_id,
            is_own=has_share,
        ),
        message_id=f"command/{command.command_id}/{command.attempt}",
        data=data,
        traceparent=command.traceparent,
    )
