"""How a worker over HTTP comes by a command: it asks, and the planner decides who has it.

Which commands wait is read from a projection, which may be late; whose a command is says the
history alone, so that of many who ask for one command exactly one gets it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from noetl_chassis import identity
from noetl_chassis.loop import rest
from noetl_contracts import placement
from noetl_contracts.envelope import Envelope
from noetl_contracts.facts import CommandStarted
from noetl_contracts.ids import CommandId, WorkerId
from noetl_contracts.lanes import LANES
from noetl_contracts.ledger import IssuedCommand
from noetl_contracts.placement import LocalityMalformed, Preference
from noetl_contracts.status import CommandStatus
from noetl_planner.http import handing, leases, unfolding
from noetl_planner.http.handing import FrameView, Handed
from noetl_planner.http.leases import Lease, Terms, WorkerName
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_planner.http.unfolding import Unfolding
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
    tasks: list[handing.TaskView]
    item: Any = None
    frame: FrameView | None = None


async def claim(
    services: ApiServices, asker: Asker, candidates: Candidates, *, place: str
) -> Claim | None:
    """Take the nearest command that can be had, waiting for one if the asker wants to.

    Raises a 429 when too many wait at this place already.
    """
    preference = _preference(asker)
    with services.rooms.wait(place, asker.worker_id):
        return await _wait(services, asker, preference, candidates)


async def _wait(
    services: ApiServices, asker: Asker, preference: Preference, candidates: Candidates
) -> Claim | None:
    clock = services.clock
    deadline = clock.monotonic() + asker.wait_s
    poll_s = _POLL_FIRST_S
    while True:
        taken = await _first(services, asker, preference, await candidates())
        left_s = deadline - clock.monotonic()
        if taken is not None or left_s <= 0 or services.stop.is_set():
            return taken
        await rest(min(poll_s, left_s), services.stop)
        poll_s = min(poll_s * 2, _POLL_MAX_S)


def in_order(waiting: list[IssuedCommand], *, lot: int) -> list[IssuedCommand]:
    """Order commands by urgency and by how long they wait, the first few by lot."""
    ordered = sorted(waiting, key=lambda one: (_urgency(one.lane), one.since))
    first = [one for one in ordered[:SPREAD] if one.lane == ordered[0].lane]
    turn = lot % len(first) if first else 0
    return first[turn:] + first[:turn] + ordered[len(first) :]


def _urgency(lane: str) -> int:
    return LANES.index(lane) if lane in LANES else len(LANES)


def _preference(asker: Asker) -> Preference:
    try:
        return placement.read(asker.locality)
    except LocalityMalformed as problem:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="locality_malformed",
            detail=str(problem),
            hint="docs/placement.md shows what a locality says",
        ) from problem


async def _first(
    services: ApiServices, asker: Asker, preference: Preference, waiting: list[IssuedCommand]
) -> Claim | None:
    token = identity.token()
    ordered = in_order(waiting, lot=int(token[:8], 16))
    async for known, command_id in _tries(services, preference, ordered):
        live = known.state.commands.get(CommandId(command_id))
        if live is None or not _may_begin(known.state, live):
            continue
        with services.rooms.reach_for(live.command_id) as is_free:
            is_ours = is_free and await _begin(known, live, asker, preference, token)
        if is_ours:
            return await _claimed(services, known.state, live.command_id, asker)
    return None


async def _tries(
    services: ApiServices, preference: Preference, ordered: list[IssuedCommand]
) -> AsyncIterator[tuple[Unfolding, str]]:
    """Yield what is worth asking for: of what is equally urgent the nearest first."""
    for one in ordered:
        if one.pool not in services.pools.by_http:
            raise leases.not_http(one.pool)
    if not preference.place:
        for one in ordered[:TRIES_MAX]:
            yield await unfolding.begin(services, one.execution_id), one.command_id
        return
    known: dict[str, Unfolding] = {}
    ranked: list[tuple[int, int, int]] = []
    for number, one in enumerate(ordered):
        if one.execution_id not in known and len(known) < TRIES_MAX:
            known[one.execution_id] = await unfolding.begin(services, one.execution_id)
        source = _source(known.get(one.execution_id), one.command_id)
        if source is not None and preference.admits(source):
            ranked.append((_urgency(one.lane), preference.order(source), number))
    for _, _, number in sorted(ranked)[:TRIES_MAX]:
        one = ordered[number]
        yield known[one.execution_id], one.command_id


def _source(known: Unfolding | None, command_id: str) -> dict[str, str] | None:
    live = known.state.commands.get(CommandId(command_id)) if known is not None else None
    return None if live is None else live.source_locality


def _may_begin(state: ExecutionState, live: CommandState) -> bool:
    return (
        live.status is CommandStatus.ISSUED
        and live.command_id not in state.held
        and not state.is_halted()
        and live.slot is None
    )


async def _begin(
    known: Unfolding, live: CommandState, asker: Asker, preference: Preference, token: str
) -> bool:
    """Tell the planner that the asker takes an attempt; True when it is the asker's."""
    attempt = live.attempt
    fact = CommandStarted(
        command_id=live.command_id,
        attempt=attempt,
        worker_id=WorkerId(asker.worker_id),
        locality={**asker.locality, **preference.place, CLAIM_KEY: token},
        max_distance=preference.max_distance if preference.is_bounded else None,
    )
    await known.tell(fact, key=f"{live.command_id}/{attempt}/claimed/{token}")

    def seen(_: Envelope | None) -> bool | None:
        now = known.state.commands.get(live.command_id)
        if now is None or now.attempt != attempt:
            return False
        if now.status is CommandStatus.ISSUED:
            return None
        return now.locality.get(CLAIM_KEY) == token

    return await known.until(seen)


async def _claimed(
    services: ApiServices, state: ExecutionState, command_id: str, asker: Asker
) -> Claim:
    live = next(one for one in state.commands.values() if one.command_id == command_id)
    handed: Handed = await handing.hand(services, state, live)
    return Claim(
        lease=Lease(
            execution_id=state.execution_id,
            command_id=live.command_id,
            attempt=live.attempt,
            worker_id=asker.worker_id,
        ),
        terms=leases.terms(services),
        pool=live.pool,
        lane=live.lane,
        step=live.step,
        command=handed.command,
        tasks=handed.tasks,
        item=handed.item,
        frame=handed.frame,
    )
