"""The API of business objects: listed, and shown as they are or as they were at a version."""

import asyncio
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.events.execution_events import BusinessObjectChanged
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import HistoryCut
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, fold_slices
from noetl_planner.moments.replay_folds import ReplayFold
from noetl_replay import fold_control, rows
from noetl_replay.state import build_empty_state

PAGE_CHANGES = 1000


async def find_past_row(
    services: ApiServices, execution_id: ExecutionId, object_id: str, *, until: int
) -> dict[str, Any] | None:
    """Return an object's row at a version, or None where nothing had changed it yet.

    Its own changes say all of it, so that only they are read; where the beginning of the history
    has left the ledger, all of it is folded. Raises a 409 where it does not fold.
    """
    state, after = build_empty_state(execution_id, **services.tenant_scope), 0
    while after < until:
        page = await services.history.objects.list_object_changes(
            execution_id,
            object_id,
            after_version=after,
            until_version=until,
            changes_max=PAGE_CHANGES,
        )
        if page is None:
            fold = ReplayFold(build_empty_state(execution_id, **services.tenant_scope), ())
            await fold_slices.feed_until(services.history, fold, until=until)
            state = fold.state
            break
        for envelope in page:
            assert isinstance(envelope.event, BusinessObjectChanged), "its events are of one type"
            fold_control.apply_object_change(state, envelope, envelope.event)
        if len(page) < PAGE_CHANGES:
            break
        after = page[-1].stream_version
        # Other requests have their turn between two pages.
        await asyncio.sleep(0)
    thing = state.objects.get(object_id)
    return None if thing is None else rows.build_object_row(state, thing)


OBJECTS_MAX = 1000
ROWS_MAX = 100
NAME_CHARACTERS_MAX = 1024

Limit = Annotated[int, QueryParameter(ge=1, le=OBJECTS_MAX)]
Name = Annotated[str, QueryParameter(min_length=1, max_length=NAME_CHARACTERS_MAX)]


class ObjectView(Struct, frozen=True, kw_only=True):
    """An object as one execution left it; `key` tells it apart within its type.

    `version` counts the execution's changes of it. `payload_refs` are the latest results that it
    comes from, the two events those that first and last changed it.
    """

    object_type: str
    key: str
    object_id: str
    execution_id: str
    status: str | None
    version: int
    attributes: dict[str, Any]
    payload_refs: list[dict[str, Any]]
    first_event_id: str | None
    last_event_id: str | None
    is_deleted: bool
    created_at: datetime | None
    updated_at: datetime | None


class ObjectList(Struct, frozen=True, kw_only=True):
    """Objects by type and key; ask again with `next_after` for more."""

    objects: list[ObjectView]
    next_after: str | None


class ObjectPage(Struct, frozen=True, kw_only=True):
    """An object: its latest state, and that of every execution that changed it, latest first.

    `as_of_position` is set for the past of one execution.
    """

    latest: ObjectView
    executions: list[ObjectView]
    has_more: bool = False
    as_of_position: int | None = None


@get("/objects", tags=["objects"])
async def list_objects(
    services: Services,
    object_type: Annotated[Name | None, QueryParameter(name="type")] = None,
    execution_id: FromQuery[str | None] = None,
    after: Annotated[str | None, QueryParameter(max_length=NAME_CHARACTERS_MAX)] = None,
    limit: Limit = 100,
    *,
    deleted: FromQuery[bool] = True,
) -> ObjectList:
    """List objects, each as the latest execution left it; removed ones too unless told not to."""
    checked_id = None
    if execution_id is not None:
        checked_id = ExecutionId(
            (await execution_lookup.get_execution_row(services, execution_id))["execution_id"]
        )
    rows = await services.history.objects.list_objects(
        **services.tenant_scope,
        object_type=object_type,
        execution_id=checked_id,
        has_deleted=deleted,
        after=("", "") if after is None else _parse_page_end(after),
        objects_max=limit,
    )
    return ObjectList(
        objects=[_view_object(row) for row in rows],
        next_after=rows[-1]["object_id"] if len(rows) == limit else None,
    )


@get("/objects/{object_type:str}/{key:path}", tags=["objects"])
async def show_object(
    services: Services,
    object_type: FromPath[str],
    key: FromPath[str],
    execution_id: FromQuery[str | None] = None,
    as_of_event_id: FromQuery[str | None] = None,
    as_of_position: Annotated[
        int | None, QueryParameter(ge=-problems.NUMBER_MAX, le=problems.NUMBER_MAX)
    ] = None,
    as_of_time: FromQuery[datetime | None] = None,
) -> ObjectPage:
    """Show an object, or what it was at an event, a position or a time of an execution."""
    # A key may have slashes; the path begins with the one before it.
    object_id = f"{object_type}/{key.removeprefix('/')}"
    cut = HistoryCut(event_id=as_of_event_id, position=as_of_position, time=as_of_time)
    if execution_id is not None:
        return await _view_past_object(services, object_type, object_id, execution_id, cut)
    if cut != HistoryCut():
        raise problems.build_bad_request_error(
            "a position, event or time is one of an execution", hint="give execution_id as well"
        )
    rows = await services.history.objects.list_object_rows(
        object_type, object_id, **services.tenant_scope, rows_max=ROWS_MAX + 1
    )
    if not rows:
        raise _build_unknown_object_error(object_id)
    views = [_view_object(row) for row in rows[:ROWS_MAX]]
    return ObjectPage(latest=views[0], executions=views, has_more=len(rows) > ROWS_MAX)


async def _view_past_object(
    services: ApiServices, object_type: str, object_id: str, execution_id: str, cut: HistoryCut
) -> ObjectPage:
    """Fold an object's changes up to a cut, and show what it was there."""
    checked_id = ExecutionId(
        (await execution_lookup.get_execution_row(services, execution_id))["execution_id"]
    )
    head = await services.history.ledger.find_head(checked_id)
    if head is None:
        raise _build_unknown_object_error(object_id)
    version = await cuts.get_version_at_cut(services.history, head, cut)
    row = await find_past_row(services, checked_id, object_id, until=version)
    if row is None or row["object_type"] != object_type:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            code="not_found",
            detail=f"execution {checked_id} had not changed object {object_id[:200]!r} at position "
            f"{version}",
            hint="GET /api/objects?execution_id= lists what it has changed",
        )
    view = _view_object(row)
    return ObjectPage(latest=view, executions=[view], as_of_position=version)


def _view_object(row: dict[str, Any]) -> ObjectView:
    plain = codec.to_builtins(row)
    plain["key"] = str(row["object_id"]).removeprefix(f"{row['object_type']}/")
    plain["is_deleted"] = bool(row["is_deleted"])
    plain["version"] = row["version"] or 0
    plain["attributes"] = plain["attributes"] or {}
    plain["payload_refs"] = plain["payload_refs"] or []
    return codec.convert_value(plain, ObjectView)


def _parse_page_end(object_id: str) -> tuple[str, str]:
    """Read where a page ended: an object's id begins with its type."""
    return object_id.partition("/")[0], object_id


def _build_unknown_object_error(object_id: str) -> ApiError:
    return problems.build_not_found_error(
        f"no execution has changed an object {object_id[:200]!r}",
        hint="GET /api/objects lists them",
    )


ROUTES = [list_objects, show_object]
