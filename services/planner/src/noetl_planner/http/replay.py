"""The past: what an execution was at any position, what changed, and whether it can be proven."""

from http import HTTPStatus
from typing import Annotated, Any, Literal

from litestar import Router, get
from litestar.di import Provide
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import Head
from noetl_contracts.stored import StoredEvent
from noetl_planner.http import cuts, problems, replaying
from noetl_planner.http.cuts import Cut, History, Version
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices, Services
from noetl_replay import diffing, evidence, references, rows
from noetl_replay import replaying as replays
from noetl_replay.diffing import Change
from noetl_replay.evidence import LiveRows, PayloadCheck, PayloadReport, Scope
from noetl_storage.audit_ports import Bucket

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
    changes: list[Change]
    tree: list[str]


class Density(Struct, frozen=True, kw_only=True):
    """How the events of a run are spread over its time; spans without events are left out."""

    execution_id: str
    version: int
    spans: int
    buckets: list[Bucket]


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
    replay = await replaying.replay(
        services, history.execution_id, until=until, has_rows=projection != "execution"
    )
    report = replays.report(replay, projection=projection, conceal=redaction.unsealed_bytes)
    if resolve_payloads:
        report["payload_resolution"] = await _resolution(services, report)
    return {**report, "head_version": history.version, "events_folded": replay.events}


async def _resolution(services: ApiServices, report: dict[str, Any]) -> PayloadReport:
    found = references.found_in([report["state"], report["surfaces"]])
    if len(found) > replaying.PAYLOADS_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="too_many_payloads",
            detail=f"the state refers to {len(found)} payloads; one answer resolves "
            f"{replaying.PAYLOADS_MAX}",
            hint="noetl replay verify resolves them page by page",
        )
    return evidence.summarize(await replaying.check_payloads(services, found))


@get("/diff", tags=["replay"])
async def show_diff(
    services: Services,
    history: History,
    before: Position,
    after: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
    projection: FromQuery[Projection] = "all",
) -> Diff:
    """Compare the states at two positions, or a position's with the live rows."""
    one = await _surfaces_at(
        services, history.execution_id, await _checked(services, history, before)
    )
    if after is None:
        live = await _live(services, history.execution_id)
        other: Any = evidence.keyed(live.rows)
        after = live.version
        is_live = True
    else:
        after = await _checked(services, history, after)
        other = await _surfaces_at(services, history.execution_id, after)
        is_live = False
    if projection != "all":
        one, other = {projection: one[projection]}, {projection: other[projection]}
    changes = diffing.compare(one, other)
    return Diff(
        execution_id=history.execution_id,
        before=before,
        after=after,
        is_live=is_live,
        is_equal=not changes,
        changes=changes,
        tree=diffing.tree(changes),
    )


async def _checked(services: ApiServices, history: Head, position: int) -> int:
    return await cuts.version_of(services, history, Cut(position=position))


async def _surfaces_at(services: ApiServices, execution_id: ExecutionId, version: int) -> Any:
    replay = await replaying.replay(services, execution_id, until=version, has_rows=True)
    return replays.report(replay, conceal=redaction.unsealed_bytes)["surfaces"]


@get("/events", tags=["replay"])
async def list_stored(
    services: Services,
    history: History,
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX)] = EVENTS_MAX,
) -> StoredPage:
    """List events as they are stored, with all that their checksums cover."""
    page = await services.audit.read_stored(
        history.execution_id, after_version=after, events_max=limit
    )
    last = page[-1].stream_version if page else after
    return StoredPage(
        execution_id=history.execution_id,
        events=[replaying.conceal(one) for one in page],
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
    page = await services.audit.read_stored(
        history.execution_id, after_version=after, events_max=limit
    )
    last = page[-1].stream_version if page else after
    found = references.found_in([[one.event, one.payload_ref] for one in page])
    return PayloadPage(
        execution_id=history.execution_id,
        payloads=await replaying.check_payloads(services, found),
        next_after=last,
        has_more=last < history.version and bool(page),
    )


@get("/live", tags=["replay"])
async def show_live(
    services: Services,
    history: History,
) -> LiveRows:
    """Show the rows of every read model, all of one position, with counts and a checksum."""
    return await _live(services, history.execution_id)


async def _live(services: ApiServices, execution_id: ExecutionId) -> LiveRows:
    """Read rows until none of them moved meanwhile; raises a 409 when they always do."""
    for _ in range(_MOVES_MAX):
        before = await services.projections.list_positions([execution_id])
        found = {
            surface: await services.projections.list_rows(surface, execution_id)
            for surface in rows.SURFACES
        }
        if before == await services.projections.list_positions([execution_id]):
            shown = codec.decode(redaction.unsealed_bytes(codec.encode(found)))
            return evidence.live_rows(
                shown,
                scope=Scope(execution_id=execution_id, **services.place),
                adapter=type(services.projections).__name__,
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
        buckets=await services.audit.list_buckets(history.execution_id, buckets=spans),
    )


ROUTES = [
    Router(
        path="/replay",
        dependencies={
            "history": Provide(cuts.get_history),
            "until": Provide(cuts.cut_at),
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
