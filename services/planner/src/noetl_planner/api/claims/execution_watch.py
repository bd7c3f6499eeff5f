"""Follows the state of one execution, and publishes facts about it for workers over HTTP."""

from collections.abc import Callable
from typing import TypeVar

from noetl_chassis.loop import wait_for_wake
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.requests.facts import Fact, FactBatch
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, Message
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.shards.commit_feed import EventFeed
from noetl_replay.fold import fold_event
from noetl_replay.state import ExecutionState, take_changes

# How long the planner may take to decide on a fact before the worker is told to ask again.
DECIDED_WITHIN_S = 10.0
PRODUCER = "claims"
_POLL_FIRST_S = 0.02
_POLL_MAX_S = 0.5
_PAGE_EVENTS = 500
_MARGIN_BYTES = 4096

T = TypeVar("T")


class ExecutionWatch:
    """Reads one history as it grows, and tells its planner facts."""

    def __init__(self, services: ApiServices, state: ExecutionState) -> None:
        self._services = services
        self.state = state

    async def publish_fact(self, fact: Fact, *, key: str) -> None:
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
        data = codec.encode_json(batch)
        if len(data) > MESSAGE_BYTES_MAX - _MARGIN_BYTES:
            raise problems.build_request_too_large_error(
                f"the report takes {len(data)} bytes, one may take "
                f"{MESSAGE_BYTES_MAX - _MARGIN_BYTES}",
                hint="write less to ctx; results of any size belong into 'result' or 'output'",
            )
        subject = services.routes.build_subject(
            execution_id, services.tenant_id, services.organization_id
        )
        await services.messages.publisher.publish_message(
            Message(subject=subject, message_id=key, data=data)
        )

    async def wait_until(self, match_event: Callable[[Envelope | None], T | None]) -> T:
        """Return what `match_event` makes of the present state, or of the next event that it knows.

        Raises a 503 when nothing of the kind happens: the planner is away, or slow.
        """
        services, feed = self._services, EventFeed()
        async with services.shards.commit_feed.follow_execution(
            services.messages.hints, self.state.execution_id, feed
        ) as listener:
            await listener.subscribe_other_planners()
            waited_s, poll_s = 0.0, _POLL_FIRST_S
            verdict = match_event(None)
            while verdict is None and waited_s < DECIDED_WITHIN_S:
                feed.commit_signal.clear()
                verdict = await self._read_page(match_event)
                if verdict is None:
                    await wait_for_wake(poll_s, services.stop, feed.commit_signal)
                    waited_s += poll_s
                    poll_s = min(poll_s * 2, _POLL_MAX_S)
        if verdict is None:
            raise problems.build_undecided_error()
        return verdict

    async def _read_page(self, match_event: Callable[[Envelope | None], T | None]) -> T | None:
        page = await self._services.history.ledger.read_events(
            self.state.execution_id,
            after_version=self.state.version,
            events_max=_PAGE_EVENTS,
        )
        for envelope in page:
            self.state = fold_event(self.state, envelope)
            take_changes(self.state)
            verdict = match_event(envelope)
            if verdict is not None:
                return verdict
        return None


async def open_watch(services: ApiServices, execution_id: str) -> ExecutionWatch:
    """Read an execution of this organization; raises a 404."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    return ExecutionWatch(services, await execution_lookup.fold_execution(services, checked_id))
