"""Server-sent events of a run as it is: its moment when it has changed, and progress of its tasks.

However many clients watch a run, it is looked at, built and encoded once a turn.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial

import structlog
from litestar import get
from litestar.params import FromPath
from litestar.response import ServerSentEventMessage, Stream
from msgspec import structs

from noetl_chassis.loop import wait_for_wake
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import ExecutionId
from noetl_contracts.status import TERMINAL_EXECUTION
from noetl_planner.api.executions import moments
from noetl_planner.api.executions.moments import Moment
from noetl_planner.api.http import bodies
from noetl_planner.api.http.problems import AnyRequest, ApiError, get_client_address
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, hidden_values
from noetl_planner.api.watch import event_stream, progress_hints
from noetl_planner.api.watch.progress_hints import LatestProgress
from noetl_planner.api.watch.stream_access import StreamAccess
from noetl_planner.moments.watched_runs import ShownMoment, WatchedRun
from noetl_planner.shards.commit_feed import CommitFlag

MOMENT = "moment"
# Clients draw so often at most.
TURN_S = 0.4
# The longer it takes to build a moment, the less often that is done.
PAUSES_A_BUILD = 10
TURN_MAX_S = 5.0
# Where no commit is heard of, the ledger is asked so often.
LOOK_S = 1.0
# What a run waits for changes without an event, and is asked for so often.
WAITS_S = 5.0

log = structlog.get_logger(__name__)


@get("/executions/{execution_id:str}/moment/stream", tags=["executions"])
async def follow_moment(
    services: Services, request: AnyRequest, execution_id: FromPath[str]
) -> Stream:
    """Follow a run as it is until its end.

    Messages of the type `moment` hold what `/moment` shows, when it has changed and a few times a
    second at most; what it waits for is looked at every 5 s. Those of the type `progress` tell how
    far Spark jobs are.
    """
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    client = get_client_address(request)
    seat = event_stream.take_follower_seat(services.admission, client, checked_id)
    has_values = await hidden_values.may_read_values(services, checked_id)
    return Stream(
        event_stream.stream_parts(
            _iterate_parts(services, checked_id, has_values=has_values),
            seat,
            StreamAccess(request.scope, services, checked_id),
        ),
        media_type="text/event-stream",
        headers=event_stream.STREAM_HEADERS,
    )


async def _iterate_parts(
    services: ApiServices, execution_id: ExecutionId, *, has_values: bool
) -> AsyncGenerator[bytes]:
    """Yield what one client is sent: moments, progress, signs of life, and the end."""
    look_on = partial(_look_on, services, execution_id)
    turn, sent = 0, None
    async with services.history.watched_runs.watch_run(execution_id, look_on) as run:
        try:
            while await run.wait_for_turn(turn, within_s=event_stream.HEARTBEAT_S):
                if run.turn == turn:
                    yield event_stream.build_heartbeat().encode()
                    continue
                turn, part = run.turn, run.progress
                if run.moment is not None and run.moment is not sent:
                    sent = run.moment
                    part += sent.full if has_values else sent.hidden
                yield part
        except (ApiError, Retryable) as refusal:
            # The client comes again, and is answered.
            log.info("watching ended", execution_id=execution_id, reason=str(refusal))
            return
    if sent is not None and sent.is_last:
        yield ServerSentEventMessage(event=event_stream.END, data="{}", id=sent.version).encode()


async def _look_on(services: ApiServices, execution_id: ExecutionId, run: WatchedRun) -> None:
    """Show what a run comes to until it is over, or the process ends."""
    hints, feed, latest = services.messages.hints, CommitFlag(), _LatestMoment()
    async with AsyncExitStack() as stack:
        progress = await stack.enter_async_context(
            progress_hints.listen_to_progress(hints, execution_id)
        )
        listener = await stack.enter_async_context(
            services.shards.commit_feed.follow_execution(hints, execution_id, feed)
        )
        while not services.stop.is_set():
            feed.commit_signal.clear()
            began_s = _get_loop_time_s()
            head_version = await _show_changes(services, execution_id, run, latest, progress)
            if run.moment is None or run.moment.is_last:
                return
            pause_s = (_get_loop_time_s() - began_s) * PAUSES_A_BUILD
            await wait_for_wake(min(TURN_MAX_S, max(TURN_S, pause_s)), services.stop)
            # Where projectors have yet to show what was committed, no commit is waited for.
            if run.moment.version == head_version:
                await listener.wait_for_commit(within_s=LOOK_S)


class _LatestMoment:
    """The latest moment of a run that is watched, and when its waits were asked for."""

    def __init__(self) -> None:
        self.moment: Moment | None = None
        self.asked_s = 0.0

    async def find_changed(self, services: ApiServices) -> Moment | None:
        """Return the moment with what the run waits for now; None where that is as it was."""
        moment, now_s = self.moment, _get_loop_time_s()
        if moment is None or now_s < self.asked_s + WAITS_S:
            return None
        self.asked_s = now_s
        changed = await moments.show_waits(services, moment)
        return None if changed == moment else changed


async def _show_changes(
    services: ApiServices,
    execution_id: ExecutionId,
    run: WatchedRun,
    latest: _LatestMoment,
    progress: LatestProgress,
) -> int:
    """Show what has changed since the last turn; return the version that the ledger has."""
    head = await services.history.ledger.find_head(execution_id)
    shown = run.moment
    if shown is None or (head is not None and head.version != shown.version):
        moment = await moments.view_present(services, execution_id)
        if shown is None or moment.version != shown.version:
            shown = _encode_moment(moment)
            latest.moment, latest.asked_s = moment, _get_loop_time_s()
    elif changed := await latest.find_changed(services):
        shown, latest.moment = _encode_moment(changed), changed
    progress_part = b"".join(
        event_stream.build_progress_message(item).encode() for item in progress.take_latest()
    )
    if shown is not run.moment or progress_part:
        run.show(shown, progress_part)
    return shown.version if head is None else head.version


def _encode_moment(moment: Moment) -> ShownMoment:
    is_over = moment.status in TERMINAL_EXECUTION
    return ShownMoment(
        version=moment.version,
        full=_encode_message(moment),
        hidden=_encode_message(structs.replace(moment, variables={}, workload=None)),
        is_last=is_over and moment.version == moment.head_version,
    )


def _encode_message(moment: Moment) -> bytes:
    data = bodies.encode_redacted(moment).decode()
    return ServerSentEventMessage(data=data, event=MOMENT, id=moment.version).encode()


def _get_loop_time_s() -> float:
    return asyncio.get_running_loop().time()


ROUTES = [follow_moment]
