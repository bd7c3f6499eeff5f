"""Replays for the API: a history folded up to a version, with as much of it as is asked for."""

import asyncio
from http import HTTPStatus

from noetl_chassis import redaction
from noetl_chassis.together import together
from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.stored import StoredEvent
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_replay import evidence, references, snapshot
from noetl_replay.evidence import PayloadCheck
from noetl_replay.replaying import Replay
from noetl_replay.state import empty
from noetl_storage.errors import NameRefused, PayloadCorrupt, PayloadMissing

PAGE_EVENTS = 1000
# An answer holds no more rows than this; whoever wants more asks for one projection, or a bundle.
ROWS_MAX = 200_000
PAYLOADS_MAX = 5000
_PAYLOADS_AT_ONCE = 8

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


async def replay(
    services: ApiServices, execution_id: ExecutionId, *, until: int, has_rows: bool
) -> Replay:
    """Fold a history up to a version; raises a 409 where it does not fold.

    Without rows a snapshot may stand for what came before it; rows need the whole history.
    """
    begun = empty(execution_id, **services.place)
    if not has_rows:
        kept = await services.past.find_before(execution_id, until)
        begun = snapshot.restore(kept) or begun
    replay = Replay(begun)
    while replay.state.version < until:
        await _take_page(services, replay, until=until)
        _check_size(replay)
        # Other requests have their turn between two pages.
        await asyncio.sleep(0)
    replay.feed(())
    return replay


async def _take_page(services: ApiServices, replay: Replay, *, until: int) -> None:
    execution_id, after = replay.state.execution_id, replay.state.version
    try:
        page = await services.ledger.read(
            execution_id, after_version=after, events_max=min(PAGE_EVENTS, until - after)
        )
        replay.feed(page)
    except _FOLD_FAILURES as failure:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="does_not_fold",
            detail=f"the history of execution {execution_id} does not fold behind version "
            f"{replay.state.version}: {failure}",
            hint=f"see what was done to it: noetl audit verify {execution_id}",
        ) from failure
    if page:
        return
    raise ApiError(
        HTTPStatus.CONFLICT,
        code="history_incomplete",
        detail=f"execution {execution_id} should reach version {until}, and has no event behind "
        f"{after}",
        hint=f"see what is missing: noetl audit verify {execution_id}",
    )


def _check_size(replay: Replay) -> None:
    total = sum(map(len, replay.surfaces.values()))
    if total > ROWS_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="replay_too_large",
            detail=f"the replay has more than {ROWS_MAX} rows",
            hint="ask for projection=execution, or for an earlier position",
        )


def conceal(one: StoredEvent) -> StoredEvent:
    """Hide sealed values of an event; one without any is returned as it is."""
    data = codec.encode(one)
    shown = redaction.unsealed_bytes(data)
    if shown is data:
        return one
    return codec.convert({**codec.decode(shown), "concealed": True}, StoredEvent)


async def check_payloads(services: ApiServices, found: references.Found) -> list[PayloadCheck]:
    """Read every payload and compare its digest, a few at a time."""
    gate = asyncio.Semaphore(_PAYLOADS_AT_ONCE)

    async def check(one: dict[str, object]) -> PayloadCheck:
        async with gate:
            return await _check(services, one)

    async with together() as group:
        tasks = [group.create_task(check(one)) for one in found.values()]
    return [task.result() for task in tasks]


async def _check(services: ApiServices, one: dict[str, object]) -> PayloadCheck:
    digest, uri = str(one["sha256"]), str(one["uri"])
    size, status, detail = 0, evidence.RESOLVED, ""
    try:
        async for piece in services.payloads.stream(codec.convert(one, PayloadRef)):
            size += len(piece)
    except PayloadMissing as failure:
        status, detail = "missing", str(failure)
    except PayloadCorrupt as failure:
        status, detail = "corrupt", str(failure)
    except (NameRefused, ValueError) as failure:
        status, detail = "refused", str(failure)
    rows = one.get("row_count")
    return PayloadCheck(
        sha256=digest,
        uri=uri,
        status=status,
        payload_bytes=size,
        row_count=rows if isinstance(rows, int) else None,
        detail=detail,
    )
