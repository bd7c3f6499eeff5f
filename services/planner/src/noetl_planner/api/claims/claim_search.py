"""Finds a command for a worker over HTTP, and waits until the planner grants it.

Which commands wait is read from a projection, which may be late; whose a command is says the
history alone, so that of many who ask for one command exactly one gets it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from noetl_chassis import identity
from noetl_chassis.loop import wait_for_wake
from noetl_contracts.commands import placement
from noetl_contracts.commands.placement import LocalityMalformed, PlacementPreference
from noetl_contracts.commands.worker_pools import LANES
from noetl_contracts.ids import CommandId, WorkerId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import IssuedCommand
from noetl_contracts.requests.facts import CommandStarted
from noetl_contracts.status import CommandStatus
from noetl_planner.api.claims import command_view, execution_watch, leases
from noetl_planner.api.claims.command_view import CommandView, FrameView
from noetl_planner.api.claims.execution_watch import ExecutionWatch
from noetl_planner.api.claims.leases import Lease, Terms, WorkerName
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_replay.state import CommandState, ExecutionState

WAIT_S_MAX = 20
CANDIDATES_MAX = 32
# Of commands that wait equally long, those who ask at once begin with different ones.
SPREAD = 8
TRIES_MAX = 8
CLAIM_KEY = "claim"
_POLL_FIRST_S = 0.1
_POLL_MAX_S = 1.0

Candidates = Callable[[], Awaitable[list[IssuedCommand]]]


class Asker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asks for work, from where, and how long the answer may wait for some.

    `locality` names its `cluster`, `region`, `zone` and `node`, and with `max_distance` how far
    from there the inputs may be; what else it holds is kept with the command.
    """

    worker_id: WorkerName
    locality: dict[str, Any] = msgspec.field(default_factory=dict)
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 0


class Claim(Struct, frozen=True, kw_only=True):
    """A command that is the asker's now; `lease` is what later calls repeat."""

    lease: Lease
    terms: Terms
    pool: str
    lane: str
    step: str
    command: dict[str, Any]
    tasks: list[command_view.TaskView]
    item: Any = None
    frame: FrameView | None = None


async def claim_command(
    services: ApiServices, asker: Asker, candidates: Candidates, *, place: str
) -> Claim | None:
    """Take the nearest command that can be had, waiting for one if the asker wants to.

    Raises a 429 when too many wait at this place already.
    """
    leases.check_worker(services, asker.worker_id)
    preference = _read_preference(asker)
    with services.admission.claim_limiter.limit_waiting(place, asker.worker_id):
        return await _wait_for_claim(services, asker, preference, candidates)


async def _wait_for_claim(
    services: ApiServices, asker: Asker, preference: PlacementPreference, candidates: Candidates
) -> Claim | None:
    clock = services.clock
    deadline = clock.monotonic_s() + asker.wait_s
    poll_s = _POLL_FIRST_S
    while True:
        claim = await _claim_first(services, asker, preference, await candidates())
        left_s = deadline - clock.monotonic_s()
        if claim is not None or left_s <= 0 or services.stop.is_set():
            return claim
        await wait_for_wake(min(poll_s, left_s), services.stop)
        poll_s = min(poll_s * 2, _POLL_MAX_S)


def order_commands(waiting: list[IssuedCommand], *, lot: int) -> list[IssuedCommand]:
    """Order commands by urgency and by how long they wait, the first few by lot."""
    ordered = sorted(
        waiting,
        key=lambda issued_command: (_lane_urgency(issued_command.lane), issued_command.since),
    )
    first = [item for item in ordered[:SPREAD] if item.lane == ordered[0].lane]
    turn = lot % len(first) if first else 0
    return first[turn:] + first[:turn] + ordered[len(first) :]


def _lane_urgency(lane: str) -> int:
    return LANES.index(lane) if lane in LANES else len(LANES)


def _read_preference(asker: Asker) -> PlacementPreference:
    try:
        return placement.read_preference(asker.locality)
    except LocalityMalformed as problem:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="locality_malformed",
            detail=str(problem),
            hint="docs/operations/placement.md shows what a locality says",
        ) from problem


async def _claim_first(
    services: ApiServices,
    asker: Asker,
    preference: PlacementPreference,
    waiting: list[IssuedCommand],
) -> Claim | None:
    token = identity.mint_token()
    ordered = order_commands(waiting, lot=int(token[:8], 16))
    async for candidate_id, command_id in _iterate_candidates(services, preference, ordered):
        command_state = candidate_id.state.commands.get(CommandId(command_id))
        if command_state is None or not _can_begin(candidate_id.state, command_state):
            continue
        with services.admission.claim_limiter.reserve_command(command_state.command_id) as is_free:
            is_ours = is_free and await _try_claim(
                candidate_id, command_state, asker, preference, token
            )
        if is_ours:
            return await _build_claim(services, candidate_id.state, command_state.command_id, asker)
    return None


async def _iterate_candidates(
    services: ApiServices, preference: PlacementPreference, ordered: list[IssuedCommand]
) -> AsyncIterator[tuple[ExecutionWatch, str]]:
    """Yield what is worth asking for: of what is equally urgent the nearest first."""
    for issued_command in ordered:
        if issued_command.pool not in services.pools.by_http:
            raise leases.build_not_http_pool_error(issued_command.pool)
    if not preference.place:
        for issued_command in ordered[:TRIES_MAX]:
            yield (
                await execution_watch.open_watch(services, issued_command.execution_id),
                issued_command.command_id,
            )
        return
    watches: dict[str, ExecutionWatch] = {}
    ranked: list[tuple[int, int, int]] = []
    for number, issued_command in enumerate(ordered):
        if issued_command.execution_id not in watches and len(watches) < TRIES_MAX:
            watches[issued_command.execution_id] = await execution_watch.open_watch(
                services, issued_command.execution_id
            )
        source = _find_input_locality(
            watches.get(issued_command.execution_id), issued_command.command_id
        )
        if source is not None and preference.admits_source(source):
            ranked.append(
                (_lane_urgency(issued_command.lane), preference.rank_source(source), number)
            )
    for _, _, number in sorted(ranked)[:TRIES_MAX]:
        issued_command = ordered[number]
        yield watches[issued_command.execution_id], issued_command.command_id


def _find_input_locality(watch: ExecutionWatch | None, command_id: str) -> dict[str, str] | None:
    command_state = watch.state.commands.get(CommandId(command_id)) if watch is not None else None
    return None if command_state is None else command_state.source_locality


def _can_begin(state: ExecutionState, command_state: CommandState) -> bool:
    return (
        command_state.status is CommandStatus.ISSUED
        and command_state.command_id not in state.held
        and not state.is_halted()
        and command_state.slot is None
    )


async def _try_claim(
    watch: ExecutionWatch,
    command_state: CommandState,
    asker: Asker,
    preference: PlacementPreference,
    token: str,
) -> bool:
    """Tell the planner that the asker takes an attempt; True when it is the asker's."""
    attempt = command_state.attempt
    fact = CommandStarted(
        command_id=command_state.command_id,
        attempt=attempt,
        worker_id=WorkerId(asker.worker_id),
        locality={**asker.locality, **preference.place, CLAIM_KEY: token},
        max_distance=preference.max_distance if preference.has_distance_limit else None,
    )
    await watch.publish_fact(fact, key=f"{command_state.command_id}/{attempt}/claimed/{token}")

    def is_claim_ours(_: Envelope | None) -> bool | None:
        now = watch.state.commands.get(command_state.command_id)
        if now is None or now.attempt != attempt:
            return False
        if now.status is CommandStatus.ISSUED:
            return None
        return now.locality.get(CLAIM_KEY) == token

    return await watch.wait_until(is_claim_ours)


async def _build_claim(
    services: ApiServices, state: ExecutionState, command_id: str, asker: Asker
) -> Claim:
    live_command = next(
        command_state
        for command_state in state.commands.values()
        if command_state.command_id == command_id
    )
    handed: CommandView = await command_view.build_command_view(services, state, live_command)
    return Claim(
        lease=Lease(
            execution_id=state.execution_id,
            command_id=live_command.command_id,
            attempt=live_command.attempt,
            worker_id=asker.worker_id,
        ),
        terms=leases.build_lease_terms(services),
        pool=live_command.pool,
        lane=live_command.lane,
        step=live_command.step,
        command=handed.command,
        tasks=handed.tasks,
        item=handed.item,
        frame=handed.frame,
    )
