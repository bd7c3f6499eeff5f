"""The API of replays: a history up to a version, its differences, its payloads and its density."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, Protocol

from litestar import Router, get
from litestar.di import Provide
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from noetl_chassis import redaction
from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.payloads import PayloadRef
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import History, HistoryCut, Version
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices, Services
from noetl_replay import comparison, payload_references, rows, snapshot
from noetl_replay import history_replay as replays
from noetl_replay.audit import evidence
from noetl_replay.audit.evidence import EvidenceScope, ExportedRows, PayloadCheck, PayloadReport
from noetl_replay.comparison import ValueChange
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import ExecutionState, build_empty_state
from noetl_storage.ports.errors import NameRefused, PayloadCorrupt, PayloadMissing
from noetl_storage.ports.history_ports import TimeBucket
from noetl_storage.ports.ledger_ports import Payloads

PAGE_EVENTS = 1000
# An answer holds no more rows than this; a client that needs more asks for one projection, or for
# the evidence.
ROWS_MAX = 200_000
PAYLOADS_MAX = 5000
_PAYLOADS_AT_ONCE = 8

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


async def replay_history(
    services: ApiServices, execution_id: ExecutionId, *, until: int, has_rows: bool
) -> HistoryReplay:
    """Fold a history up to a version; raises a 409 where it does not fold.

    Without rows a snapshot may stand for what came before it; rows need the whole history.
    """
    start_state = build_empty_state(execution_id, **services.tenant_scope)
    if not has_rows:
        past_snapshot = await services.history.past_snapshots.find_snapshot_before(
            execution_id, until
        )
        start_state = snapshot.restore_state(past_snapshot) or start_state
    replay = HistoryReplay(start_state)
    while replay.state.version < until:
        await feed_page(services.history, replay, until=until)
        _check_row_count(replay)
        # Other requests have their turn between two pages.
        await asyncio.sleep(0)
    replay.feed_events(())
    return replay


class EventFold(Protocol):
    """What a history is fed to, page by page."""

    @property
    def state(self) -> ExecutionState:
        """Return what it has come to."""

    def feed_events(self, page: Sequence[Envelope], /) -> None:
        """Fold what follows."""


async def feed_page(history: HistoryStores, replay: EventFold, *, until: int) -> None:
    """Fold the next page of a history up to a version; raises a 409 where it does not fold."""
    execution_id, after = replay.state.execution_id, replay.state.version
    try:
        page = await history.ledger.read_events(
            execution_id, after_version=after, events_max=min(PAGE_EVENTS, until - after)
        )
        replay.feed_events(page)
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


def _check_row_count(replay: HistoryReplay) -> None:
    total = sum(map(len, replay.surfaces.values()))
    if total > ROWS_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="replay_too_large",
            detail=f"the replay has more than {ROWS_MAX} rows",
            hint="ask for projection=execution, or for an earlier position",
        )


def redact_event(stored_event: StoredEvent) -> StoredEvent:
    """Hide sealed values of an event; one without any is returned as it is."""
    data = codec.encode_json(stored_event)
    masked_data = redaction.mask_sealed_bytes(data)
    if masked_data is data:
        return stored_event
    return codec.convert_value({**codec.decode_json(masked_data), "concealed": True}, StoredEvent)


async def check_payloads(payloads: Payloads, refs: payload_references.Found) -> list[PayloadCheck]:
    """Read every payload and compare its digest, a few at a time."""
    gate = asyncio.Semaphore(_PAYLOADS_AT_ONCE)

    async def check_in_turn(one: dict[str, object]) -> PayloadCheck:
        async with gate:
            return await _check_payload(payloads, one)

    async with open_task_group() as group:
        tasks = [group.create_task(check_in_turn(item)) for item in refs.values()]
    return [task.result() for task in tasks]


async def _check_payload(payloads: Payloads, one: dict[str, object]) -> PayloadCheck:
    digest, uri = str(one["sha256"]), str(one["uri"])
    size, status, detail = 0, evidence.RESOLVED, ""
    try:
        async for piece in payloads.stream_payload(codec.convert_value(one, PayloadRef)):
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


Projection = Literal["all", "execution", "stage", "frame", "command", "loop", "business_object"]
Position = Annotated[int, QueryParameter(ge=1)]
EVENTS_MAX = 1000
_MOVES_MAX = 5


class StoredPage(Struct, frozen=True, kw_only=True):
    """Events as they are stored, after a version; ask again with `next_after` while `has_more`."""

    execution_id: str
    events: list[StoredEvent]
    next_after: int
    has_more: bool


class PayloadPage(Struct, frozen=True, kw_only=True):
    """The payloads that a page of events refers to, each read and compared with its digest."""

    execution_id: str
    payloads: list[PayloadCheck]
    next_after: int
    has_more: bool


class Diff(Struct, frozen=True, kw_only=True):
    """What differs between two states; `before` is a position, `after` one or the live rows."""

    execution_id: str
    before: int
    after: int
    is_live: bool
    is_equal: bool
    changes: list[ValueChange]
    tree: list[str]


class Density(Struct, frozen=True, kw_only=True):
    """How the events of a run are spread over its time; spans without events are left out."""

    execution_id: str
    version: int
    spans: int
    buckets: list[TimeBucket]


@get("/state", tags=["replay"])
async def show_state(
    services: Services,
    history: History,
    until: Version,
    projection: FromQuery[Projection] = "all",
    *,
    resolve_payloads: FromQuery[bool] = False,
) -> dict[str, Any]:
    """Replay a history up to an event, a position or a time, and sum what it comes to."""
    replay = await replay_history(
        services, history.execution_id, until=until, has_rows=projection != "execution"
    )
    report = replays.build_replay_report(
        replay, projection=projection, conceal=redaction.mask_sealed_bytes
    )
    if resolve_payloads:
        report["payload_resolution"] = await _resolve_payloads(services.payloads, report)
    return {**report, "head_version": history.version, "events_folded": replay.events}


async def _resolve_payloads(payloads: Payloads, report: dict[str, Any]) -> PayloadReport:
    references = payload_references.collect_references([report["state"], report["surfaces"]])
    if len(references) > PAYLOADS_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="too_many_payloads",
            detail=f"the state refers to {len(references)} payloads; "
            f"one answer resolves {PAYLOADS_MAX}",
            hint="noetl replay verify resolves them page by page",
        )
    return evidence.build_payload_report(await check_payloads(payloads, references))


@get("/diff", tags=["replay"])
async def show_diff(
    services: Services,
    history: History,
    before: Position,
    after: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
    projection: FromQuery[Projection] = "all",
) -> Diff:
    """Compare the states at two positions, or a position's with the live rows."""
    former = await _replay_surfaces(
        services, history.execution_id, await _check_position(services, history, before)
    )
    if after is None:
        exported_rows = await _read_live_rows(services, history.execution_id)
        other: Any = evidence.index_rows_by_key(exported_rows.rows)
        after = exported_rows.version
        is_live = True
    else:
        after = await _check_position(services, history, after)
        other = await _replay_surfaces(services, history.execution_id, after)
        is_live = False
    if projection != "all":
        former, other = {projection: former[projection]}, {projection: other[projection]}
    changes = comparison.compare_values(former, other)
    return Diff(
        execution_id=history.execution_id,
        before=before,
        after=after,
        is_live=is_live,
        is_equal=not changes,
        changes=changes,
        tree=comparison.render_change_tree(changes),
    )


async def _check_position(services: ApiServices, history: HistoryHead, position: int) -> int:
    return await cuts.get_version_at_cut(services.history, history, HistoryCut(position=position))


async def _replay_surfaces(services: ApiServices, execution_id: ExecutionId, version: int) -> Any:
    replay = await replay_history(services, execution_id, until=version, has_rows=True)
    return replays.build_replay_report(replay, conceal=redaction.mask_sealed_bytes)["surfaces"]


@get("/events", tags=["replay"])
async def list_stored(
    services: Services,
    history: History,
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX)] = EVENTS_MAX,
) -> StoredPage:
    """List events as they are stored, with all that their checksums cover."""
    page = await services.history.audit.read_stored_events(
        history.execution_id, after_version=after, events_max=limit
    )
    last = page[-1].stream_version if page else after
    return StoredPage(
        execution_id=history.execution_id,
        events=[redact_event(stored_event) for stored_event in page],
        next_after=last,
        has_more=last < history.version and bool(page),
    )


@get("/payloads", tags=["replay"])
async def list_payloads(
    services: Services,
    history: History,
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX)] = 200,
) -> PayloadPage:
    """Read the payloads that a page of events refers to, and compare each with its digest."""
    page = await services.history.audit.read_stored_events(
        history.execution_id, after_version=after, events_max=limit
    )
    last = page[-1].stream_version if page else after
    references = payload_references.collect_references(
        [[stored_event.event, stored_event.payload_ref] for stored_event in page]
    )
    return PayloadPage(
        execution_id=history.execution_id,
        payloads=await check_payloads(services.payloads, references),
        next_after=last,
        has_more=last < history.version and bool(page),
    )


@get("/live", tags=["replay"])
async def show_live(
    services: Services,
    history: History,
) -> ExportedRows:
    """Show the rows of every read model, all of one position, with counts and a checksum."""
    return await _read_live_rows(services, history.execution_id)


async def _read_live_rows(services: ApiServices, execution_id: ExecutionId) -> ExportedRows:
    """Read rows until none of them moved meanwhile; raises a 409 when they always do."""
    for _ in range(_MOVES_MAX):
        before = await services.history.projections.list_positions([execution_id])
        rows_by_surface = {
            surface: await services.history.projections.list_rows(surface, execution_id)
            for surface in rows.SURFACES
        }
        if before == await services.history.projections.list_positions([execution_id]):
            masked_rows = codec.decode_json(
                redaction.mask_sealed_bytes(codec.encode_json(rows_by_surface))
            )
            return evidence.build_exported_rows(
                masked_rows,
                scope=EvidenceScope(execution_id=execution_id, **services.tenant_scope),
                adapter=type(services.history.projections).__name__,
                version=before.get(execution_id, 0),
                exported_at=services.clock.now(),
            )
    raise ApiError(
        HTTPStatus.CONFLICT,
        code="moving",
        detail=f"execution {execution_id} moved on {_MOVES_MAX} times while it was read",
        hint="ask again, or pause it first: noetl pause",
    )


@get("/density", tags=["replay"])
async def show_density(
    services: Services,
    history: History,
    spans: Annotated[int, QueryParameter(ge=1, le=1000)] = 100,
) -> Density:
    """Show how the events of a run are spread over its time, for a slider."""
    return Density(
        execution_id=history.execution_id,
        version=history.version,
        spans=spans,
        buckets=await services.history.audit.list_buckets(history.execution_id, buckets=spans),
    )


ROUTES = [
    Router(
        path="/replay",
        dependencies={
            "history": Provide(cuts.get_history_head),
            "until": Provide(cuts.resolve_cut),
        },
        route_handlers=[
            show_state,
            show_diff,
            list_stored,
            list_payloads,
            show_live,
            show_density,
        ],
    )
]
