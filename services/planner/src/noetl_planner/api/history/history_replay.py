"""The API of replays: a history up to a version, its differences, its payloads and its density."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal

from litestar import Router, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct, structs

from noetl_chassis import redaction
from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.payloads import PayloadRef
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import History, HistoryCut, Version
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import fold_slices, live_rows, replay_slices
from noetl_planner.moments import replay_folds
from noetl_planner.moments.replay_folds import EncodedSurfaces, ReplayFold, build_fold_report
from noetl_replay import comparison, payload_references, rows
from noetl_replay.audit import evidence
from noetl_replay.audit.evidence import ExportedRows, PayloadCheck, PayloadReport
from noetl_replay.comparison import ValueChange
from noetl_storage.ports.errors import NameRefused, PayloadCorrupt, PayloadMissing
from noetl_storage.ports.history_ports import TimeBucket
from noetl_storage.ports.ledger_ports import Payloads

# The rows of one answer, encoded; and of the rows of a diff, those that are compared by column.
ANSWER_BYTES_MAX = 128 * 1024 * 1024
DIFF_ROWS_MAX = 5000
PAYLOADS_MAX = 5000
_PAYLOADS_AT_ONCE = 8


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
    """What differs between two states; `before` is a position, `after` one or the live rows.

    `more_rows` counts rows that differ and are in neither `changes` nor `tree`.
    """

    execution_id: str
    before: int
    after: int
    is_live: bool
    is_equal: bool
    changes: list[ValueChange]
    tree: list[str]
    more_rows: int = 0


class Density(Struct, frozen=True, kw_only=True):
    """How the events of a run are spread over its time; spans without events are left out."""

    execution_id: str
    version: int
    spans: int
    buckets: list[TimeBucket]


@get("/state", tags=["replay"], responses=fold_slices.UNDER_WAY)
async def show_state(
    services: Services,
    history: History,
    until: Version,
    projection: FromQuery[Projection] = "all",
    *,
    has_rows: Annotated[bool, QueryParameter(name="rows")] = True,
    resolve_payloads: FromQuery[bool] = False,
) -> dict[str, Any]:
    """Replay a history up to an event, a position or a time, and sum what it comes to.

    A far position is folded in slices: 202 says how far, and the same question goes on. Without
    `rows` there are their counts and checksums.
    """
    fold = await replay_slices.fold_in_slices(
        services, history.execution_id, _list_surfaces(projection), until=until
    )
    if (has_rows or resolve_payloads) and fold.row_bytes > ANSWER_BYTES_MAX:
        raise replay_slices.build_too_large_error(fold, replay_slices.TO_SEND, ANSWER_BYTES_MAX)
    report = build_fold_report(fold, projection=projection, has_rows=has_rows)
    if resolve_payloads:
        report["payload_resolution"] = await _resolve_payloads(services.payloads, fold, report)
    return {**report, "head_version": history.version, "events_folded": fold.events}


def _list_surfaces(projection: Projection) -> tuple[str, ...]:
    return rows.SURFACES if projection == "all" else (projection,)


async def _resolve_payloads(
    payloads: Payloads, fold: ReplayFold, report: dict[str, Any]
) -> PayloadReport:
    encoded_rows = [row for keyed in fold.rows_by_surface.values() for row in keyed.values()]
    references = payload_references.collect_references(
        [report["state"], [codec.decode_json(row) for row in encoded_rows]]
    )
    if len(references) > PAYLOADS_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="too_many_payloads",
            detail=f"the state refers to {len(references)} payloads; "
            f"one answer resolves {PAYLOADS_MAX}",
            hint="noetl replay verify resolves them page by page",
        )
    return evidence.build_payload_report(await check_payloads(payloads, references))


@get("/diff", tags=["replay"], responses=fold_slices.UNDER_WAY)
async def show_diff(
    services: Services,
    history: History,
    before: Position,
    after: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
    projection: FromQuery[Projection] = "all",
) -> Diff:
    """Compare the states at two positions, or a position's with the live rows.

    A far position is folded in slices: 202 says how far, and the same question goes on.
    """
    return await _compare_positions(services, history, before, after, projection)


@get(
    "/executions/{execution_id:str}/moments/difference",
    tags=["replay"],
    responses=fold_slices.UNDER_WAY,
)
async def show_moment_difference(
    services: Services,
    execution_id: FromPath[str],
    before: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
    after: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
) -> Diff:
    """Compare two moments of a run: the middle of its history with the latest, if none is named."""
    history = await cuts.get_history_head(
        services, execution_id, services.tenant_id, services.organization_id
    )
    middle = max(1, history.version // 2)
    return await _compare_positions(
        services, history, before or middle, after or history.version, "all"
    )


async def _compare_positions(
    services: ApiServices,
    history: HistoryHead,
    before: int,
    after: int | None,
    projection: Projection,
) -> Diff:
    before = await _check_position(services, history, before)
    surfaces = _list_surfaces(projection)
    if after is None:
        fold = await replay_slices.fold_in_slices(
            services, history.execution_id, surfaces, until=before
        )
        former = fold.rows_by_surface
        live = await live_rows.read_live_rows(
            services, history.execution_id, surfaces, bytes_max=replay_folds.BYTES_MAX
        )
        other, version, is_live = live.rows_by_surface, live.version, True
    else:
        version = await _check_position(services, history, after)
        former, other = await _fold_sides(services, history.execution_id, surfaces, before, version)
        is_live = False
    return _build_diff(
        Diff(
            execution_id=history.execution_id,
            before=before,
            after=version,
            is_live=is_live,
            is_equal=True,
            changes=[],
            tree=[],
        ),
        former,
        other,
    )


async def _fold_sides(
    services: ApiServices,
    execution_id: ExecutionId,
    surfaces: tuple[str, ...],
    before: int,
    after: int,
) -> tuple[EncodedSurfaces, EncodedSurfaces]:
    """Fold once, up to the later of two positions; return the rows at each."""
    earlier, later = min(before, after), max(before, after)
    fold = await replay_slices.fold_in_slices(
        services, execution_id, surfaces, until=later, mark=earlier
    )
    sides = fold.marked_rows, fold.rows_by_surface
    return sides if before <= after else (sides[1], sides[0])


def _build_diff(outline: Diff, former: EncodedSurfaces, other: EncodedSurfaces) -> Diff:
    """Compare rows as they are encoded, and those that differ by column."""
    different_rows = [
        (surface, key)
        for surface in former
        for key in sorted(former[surface].keys() | other[surface].keys())
        if former[surface].get(key) != other[surface].get(key)
    ]
    sides = [_decode_rows(surfaces, different_rows[:DIFF_ROWS_MAX]) for surfaces in (former, other)]
    changes = comparison.compare_values(*sides)
    return structs.replace(
        outline,
        is_equal=not different_rows,
        changes=changes,
        tree=comparison.render_change_tree(changes),
        more_rows=max(0, len(different_rows) - DIFF_ROWS_MAX),
    )


def _decode_rows(
    surfaces: EncodedSurfaces, places: Sequence[tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    decoded_rows: dict[str, dict[str, Any]] = {surface: {} for surface in surfaces}
    for surface, key in places:
        row = surfaces[surface].get(key)
        if row is not None:
            decoded_rows[surface][key] = codec.decode_json(row)
    return decoded_rows


async def _check_position(services: ApiServices, history: HistoryHead, position: int) -> int:
    return await cuts.get_version_at_cut(services.history, history, HistoryCut(position=position))


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
    projection: FromQuery[Projection] = "all",
) -> ExportedRows:
    """Show the rows of the read models, all of one position, with counts and a checksum."""
    execution_id = history.execution_id
    live = await live_rows.read_live_rows(
        services, execution_id, _list_surfaces(projection), bytes_max=ANSWER_BYTES_MAX
    )
    return ExportedRows(
        format_version=evidence.FORMAT_VERSION,
        adapter=type(services.history.projections).__name__,
        execution_id=execution_id,
        **services.tenant_scope,
        projection=projection,
        version=live.version,
        exported_at=services.clock.now(),
        rows=live.show_rows(),
        row_counts={surface: len(keyed) for surface, keyed in live.rows_by_surface.items()},
        rows_checksum=live.compute_checksum(),
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


ROUTES: list[Router | HTTPRouteHandler] = [
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
    ),
    show_moment_difference,
]
