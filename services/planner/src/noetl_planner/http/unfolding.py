"""One execution's state while it moves on: what a worker over HTTP waits for."""

from collections.abc import Callable
from typing import TypeVar

from noetl_chassis.loop import rest
from noetl_contracts import codec, ids, subjects
from noetl_contracts.envelope import Envelope
from noetl_contracts.facts import Fact, FactBatch
from noetl_contracts.ids import ExecutionId
from noetl_messaging.ports import MESSAGE_BYTES_MAX, Message
from noetl_planner.http import finding, histories, problems
from noetl_planner.http.services import ApiServices
from noetl_planner.shell.board import Feed
from noetl_replay.fold import evolve
from noetl_replay.state import ExecutionState, take_changes

# How long the planner may take to decide on a fact before the worker is told to ask again.
DECIDED_WITHIN_S = 10.0
PRODUCER = "claims"
_POLL_FIRST_S = 0.02
_POLL_MAX_S = 0.5
_PAGE_EVENTS = 500
_MARGIN_BYTES = 4096

T = TypeVar("T")


class Unfolding:
    """Reads one history as it grows, and tells its planner facts."""

    def __init__(self, services: ApiServices, state: ExecutionState) -> None:
        self._services = services
        self.state = state

    async def tell(self, fact: Fact, *, key: str) -> None:
        """Publish a fact; telling it twice within the stream's window is telling it once.

        Raises `MessagingUnavailable`, or an `ApiError` for what no message carries.
        """
        services, execution_id = self._services, self.state.execution_id
        batch = FactBatch(
            key=key,
            execution_id=execution_id,
            tenant_id=services.tenant_id,
            organization_id=services.organization_id,
            producer=PRODUCER,
            facts=[fact],
        )
        data = codec.encode(batch)
        if len(data) > MESSAGE_BYTES_MAX - _MARGIN_BYTES:
            raise problems.too_large(
                f"the report takes {len(data)} bytes, one may take "
                f"{MESSAGE_BYTES_MAX - _MARGIN_BYTES}",
                hint="write less to ctx; results of any size belong into 'result' or 'output'",
            )
        shard = ids.shard_of(execution_id, services.shard_count)
        subject = subjects.ingest(shard, services.tenant_id, services.organization_id)
        await services.publisher.publish(Message(subject=subject, message_id=key, data=data))

    async def until(self, seen: Callable[[Envelope | None], T | None]) -> T:
        """Return what `seen` makes of the state as it is, or of the next event that it knows.

        Raises a 503 when nothing of the kind happens: the planner is away, or slow.
        """
        services, feed = self._services, Feed()
        async with services.board.follow(services.hints, self.state.execution_id, feed) as ears:
            await ears.listen()
            waited_s, poll_s = 0.0, _POLL_FIRST_S
            found = seen(None)
            while found is None and waited_s < DECIDED_WITHIN_S:
                feed.news.clear()
                found = await self._read(seen)
                if found is None:
                    await rest(poll_s, services.stop, feed.news)
                    waited_s += poll_s
                    poll_s = min(poll_s * 2, _POLL_MAX_S)
        if found is None:
            raise problems.undecided()
        return found

    async def _read(self, seen: Callable[[Envelope | None], T | None]) -> T | None:
        page = await self._services.ledger.read(
            self.state.execution_id,
            after_version=self.state.version,
            events_max=_PAGE_EVENTS,
        )
        for envelope in page:
            self.state = evolve(self.state, envelope)
            take_changes(self.state)
            found = seen(envelope)
            if found is not None:
                return found
        return None


async def begin(services: ApiServices, execution_id: str) -> Unfolding:
    """Read an execution of this organization; raises a 404."""
    row = await finding.get_row(services, execution_id)
    known = ExecutionId(row["execution_id"])
    return Unfolding(services, await histories.folded(services, known))
