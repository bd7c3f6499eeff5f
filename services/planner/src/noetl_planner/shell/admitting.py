"""What came to a shard, by execution and owner: each message is held against where it came from."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct, structs

from noetl_contracts import facts, ids, subjects
from noetl_contracts.errors import MalformedMessage, Permanent, ResultMalformed, SubjectError
from noetl_contracts.facts import ExecutionRequested, FactBatch
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Request, SettledRequest
from noetl_messaging.ports import MESSAGE_BYTES_MAX, Delivery
from noetl_planner.shell import plausible

# A decision that keeps failing by a defect of ours is a person's to look at after so many tries.
DEFECTS_MAX = 20
# What no delivery brings again, as a timer, is taken again after so long.
OWN_DELAY_S = 2.0
_DELAY_S = 0.2
_DELAYS_MAX = 50

_Owner = tuple[ExecutionId, TenantId, OrganizationId]


class Refused(Struct, frozen=True, kw_only=True):
    """A delivery that nothing can be decided from, or not from all of it."""

    delivery: Delivery
    reason: Permanent


class Work(Struct, kw_only=True):
    """Facts of one execution in this turn, and the deliveries that brought them.

    `in_part` are further deliveries some of whose facts were refused: they are buried, and not
    acknowledged, when the others have been committed. `rest` are facts of the same deliveries that
    are decided on afterwards, before any of them is settled. `own` are batches of this planner that
    no delivery brings again.
    """

    batches: list[FactBatch]
    deliveries: list[Delivery]
    own: list[FactBatch] = msgspec.field(default_factory=list)
    in_part: list[Refused] = msgspec.field(default_factory=list)
    rest: list[FactBatch] = msgspec.field(default_factory=list)

    def all_deliveries(self) -> list[Delivery]:
        """List what is to be settled, however that is."""
        return [*self.deliveries, *(one.delivery for one in self.in_part)]


def sort(
    own: Iterable[FactBatch], deliveries: Iterable[Delivery], *, shard: int, shard_count: int
) -> tuple[list[Work], list[Refused]]:
    """Gather facts by execution and owner, in order; put aside what does not belong here."""
    grouped: dict[_Owner, Work] = {}
    refused: list[Refused] = []
    for batch in own:
        mine = _work_of(grouped, batch)
        mine.batches.append(batch)
        mine.own.append(batch)
    for delivery in deliveries:
        try:
            batch, faults = read(delivery, shard=shard, shard_count=shard_count)
        except MalformedMessage as reason:
            refused.append(Refused(delivery=delivery, reason=reason))
            continue
        one = Refused(delivery=delivery, reason=faults[0]) if faults else None
        if one is not None and not batch.facts:
            refused.append(one)
            continue
        mine = _work_of(grouped, batch)
        mine.batches.append(batch)
        if one is None:
            mine.deliveries.append(delivery)
        else:
            mine.in_part.append(one)
    return list(grouped.values()), refused


def read(delivery: Delivery, *, shard: int, shard_count: int) -> tuple[FactBatch, list[Permanent]]:
    """Decode a delivery: what of it can be decided, and what is wrong with its other facts.

    Raises `MalformedMessage` for what is no batch at all, or one of another shard or tenant.
    """
    if len(delivery.data) > MESSAGE_BYTES_MAX:
        raise MalformedMessage(
            f"{len(delivery.data)} bytes exceed the {MESSAGE_BYTES_MAX} of a message"
        )
    batch, misfits = facts.decode_each(delivery.data)
    if not ids.is_identity(batch.execution_id):
        raise MalformedMessage(f"{batch.execution_id[:80]!r} is no execution's id")
    belongs = ids.shard_of(batch.execution_id, shard_count)
    if belongs != shard:
        raise MalformedMessage(
            f"execution {batch.execution_id} belongs to shard {belongs}, and this is {shard}: "
            "all processes must have the same SHARD_COUNT"
        )
    _check_owner(delivery, batch)
    faults: list[Permanent] = [*misfits]
    admitted = []
    for fact in batch.facts:
        try:
            plausible.check(fact)
        except (MalformedMessage, ResultMalformed) as fault:
            faults.append(fault)
            continue
        admitted.append(fact)
    return (structs.replace(batch, facts=admitted) if faults else batch), faults


def halved(work: Work) -> Work | None:
    """Return work on the first half of the facts, the others its rest; None for a single fact."""
    singles = [one for batch in work.batches for one in _singles(batch)]
    if len(singles) < 2:  # noqa: PLR2004 - one fact has no half
        return None
    half = len(singles) // 2
    return structs.replace(work, batches=singles[:half], rest=[*singles[half:], *work.rest])


def left(work: Work) -> Work | None:
    """Return what is to be decided on once the work is committed."""
    return structs.replace(work, batches=work.rest, rest=[]) if work.rest else None


def brought(request: Request) -> Work:
    """Return the work of a request that came by no message."""
    return Work(batches=[facts.decode_batch(request.data)], deliveries=[])


def asking(batches: Iterable[FactBatch]) -> FactBatch:
    """Return the batch that asks for the execution, or else the first."""
    listed = list(batches)
    for batch in listed:
        if any(isinstance(fact, ExecutionRequested) for fact in batch.facts):
            return batch
    return listed[0]


def settled(batches: Iterable[FactBatch]) -> Iterator[SettledRequest]:
    """List the requests that batches bring, each as one of the batch's own execution."""
    for batch in batches:
        if batch.request_id is not None:
            yield SettledRequest(
                request_id=batch.request_id,
                execution_id=batch.execution_id,
                tenant_id=batch.tenant_id,
                organization_id=batch.organization_id,
            )


def is_beginning(work: Work) -> bool:
    """Tell whether an execution is asked for, as far as can be told, for the first time."""
    asked = work.batches[0].facts[:1]
    return (
        bool(asked)
        and isinstance(asked[0], ExecutionRequested)
        and all(delivery.delivered == 1 for delivery in work.all_deliveries())
    )


def delay_s(delivery: Delivery, place: int = 0) -> float:
    """Say when a delivery comes again: later each time, and apart from those that it came with."""
    return _DELAY_S * (min(delivery.delivered, _DELAYS_MAX) + place)


def _check_owner(delivery: Delivery, batch: FactBatch) -> None:
    """Hold a batch against its subject, which the server's permissions may have checked."""
    try:
        about = subjects.parse_shard(delivery.subject)
    except SubjectError as problem:
        raise MalformedMessage(str(problem)) from problem
    if (about.tenant_id, about.organization_id) != (batch.tenant_id, batch.organization_id):
        raise MalformedMessage(
            f"facts of {batch.tenant_id[:80]!r}/{batch.organization_id[:80]!r} "
            f"under the subject of {about.tenant_id!r}/{about.organization_id!r}"
        )


def _singles(batch: FactBatch) -> list[FactBatch]:
    """Return a batch for each fact; the last settles the request that brought them."""
    *before, last = [structs.replace(batch, facts=[fact]) for fact in batch.facts] or [batch]
    return [*(structs.replace(one, request_id=None) for one in before), last]


def _work_of(grouped: dict[_Owner, Work], batch: FactBatch) -> Work:
    owner = batch.execution_id, batch.tenant_id, batch.organization_id
    return grouped.setdefault(owner, Work(batches=[], deliveries=[]))
