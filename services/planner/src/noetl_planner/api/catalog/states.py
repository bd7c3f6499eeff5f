"""`state`: how far playbooks have read their sources; looked at, and set by a person."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from litestar import delete, get, put
from litestar.params import JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts import codec, spelling
from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import (
    IncrementRange,
    StateChange,
    StateType,
    StateValue,
    StateValueError,
)
from noetl_contracts.ledger.records import CatalogEntry, OwnedStateChange
from noetl_planner.api.catalog import catalog_entries
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import NUMBER_MAX, ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Incremental, Playbook
from noetl_playbook.sections.increments import get_state_name
from noetl_storage.ports.errors import StateMoved

LISTED_MAX = 200
_UNTIL = b"until"
PRINTABLE = r"^[^\x00]*\S[^\x00]*$"
Words = Annotated[str, Meta(min_length=1, max_length=2000, pattern=PRINTABLE)]
Who = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
Path = Annotated[str, QueryParameter(min_length=1, max_length=512)]
Name = Annotated[str, QueryParameter(min_length=1, max_length=100)]
WhoAsks = Annotated[str, QueryParameter(min_length=1, max_length=200, pattern=PRINTABLE)]
Reason = Annotated[str, QueryParameter(min_length=1, max_length=2000, pattern=PRINTABLE)]
Limit = Annotated[int, QueryParameter(ge=1, le=LISTED_MAX)]
Before = Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)]


class StateView(Struct, frozen=True, kw_only=True):
    """A value of `state`, and who changed it to that: a step of an execution, or a person."""

    path: str
    name: str
    type: StateType
    value: int | str
    revision: int
    changed_at: datetime | None
    execution_id: str | None
    step: str | None
    changed_by: str | None
    reason: str | None


class StateList(Struct, frozen=True, kw_only=True):
    """States by path and name; with `has_more` ask again after the last one."""

    states: list[StateView]
    has_more: bool


class StateHistory(Struct, frozen=True, kw_only=True):
    """Changes of a state, the latest first; ask again with `next_before` for more."""

    changes: list[StateView]
    next_before: int | None


class StateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value to set, by whom and why; with `revision` only if it is still the present one."""

    path: Annotated[str, Meta(min_length=1, max_length=512)]
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    value: int | str
    who: Who
    reason: Words
    type: StateType | None = None
    revision: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | None = None


@get("/state", tags=["state"])
async def list_states(
    services: Services,
    path: Annotated[str | None, QueryParameter(max_length=512)] = None,
    after_path: Annotated[str, QueryParameter(max_length=512)] = "",
    after_name: Annotated[str, QueryParameter(max_length=100)] = "",
    limit: Limit = 50,
) -> StateList:
    """List how far playbooks have read, by path and name."""
    states = await services.registry.states.list_states(
        **services.tenant_scope,
        path=None if path is None else path.strip("/"),
        after=(after_path, after_name),
        states_max=limit + 1,
    )
    return StateList(
        states=[
            _build_state_view(change)
            for change in states[:limit]
            if services.covers_path(change.path)
        ],
        has_more=len(states) > limit,
    )


@get("/state/value", tags=["state"])
async def show_state(services: Services, path: Path, name: Name) -> StateView:
    """Show the present value of a state."""
    return await _view_present(services, path, name)


@get("/state/history", tags=["state"])
async def show_history(
    services: Services, path: Path, name: Name, before: Before = None, limit: Limit = 50
) -> StateHistory:
    """Show the changes of a state, the latest first."""
    changes = await _list_changes(services, path, name, before=before, changes_max=limit)
    return StateHistory(
        changes=[_build_state_view(change) for change in changes],
        next_before=changes[-1].revision if len(changes) == limit else None,
    )


@put("/state/value", status_code=HTTP_200_OK, tags=["state"])
async def set_state(services: Services, data: JSONBody[StateBody]) -> StateView:
    """Set a state outside an execution; who did it and why is kept for good."""
    path = data.path.strip("/")
    services.check_path(path, f"playbook {path!r}")
    present = await services.registry.states.find_state(path, data.name, **services.tenant_scope)
    type_ = data.type or (
        await _get_declared_type(services, path, data) if present is None else present.value.type
    )
    revision = 0 if present is None else present.revision
    if data.revision not in {None, revision}:
        raise _build_moved_error(path, data.name)
    change = StateChange(
        path=path,
        name=data.name,
        value=_parse_value(data.value, type_),
        revision=revision + 1,
        changed_by=services.name_asker(data.who),
        reason=data.reason,
    )
    try:
        async with services.record_change("state.set", f"{path} {data.name}", reason=data.reason):
            await services.registry.states.change_state(
                OwnedStateChange(**services.tenant_scope, change=change)
            )
    except StateMoved as failure:
        raise _build_moved_error(path, data.name) from failure
    return await _view_present(services, path, data.name)


@delete("/state/value", status_code=HTTP_200_OK, tags=["state"])
async def remove_state(
    services: Services, path: Path, name: Name, who: WhoAsks, reason: Reason
) -> StateView:
    """Remove a state and its history: the next run reads from `initial` on."""
    state = await _view_present(services, path, name)
    about = {"value": str(state.value), "revision": state.revision, "reason": reason}
    try:
        async with services.record_change(
            "state.removed", f"{state.path} {name}", who=services.name_asker(who), **about
        ):
            await services.registry.states.remove_state(
                state.path, name, **services.tenant_scope, revision=state.revision
            )
    except StateMoved as failure:
        raise _build_moved_error(state.path, name) from failure
    return state


async def _view_present(services: ApiServices, path: str, name: str) -> StateView:
    (change,) = await _list_changes(services, path, name, before=None, changes_max=1)
    return _build_state_view(change)


def check_backfill(entry: CatalogEntry, backfill: IncrementRange | None) -> None:
    """Refuse a range for a playbook that reads no increments, or of other types than its steps."""
    if backfill is None:
        return
    increments = list_increments(entry)
    _check_until_is_read(entry)
    if not increments:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="no_increments",
            detail=f"no step of {entry.path} reads increments: a backfill would run it as it is",
            hint="write incremental on the step that reads, or run the playbook without a range",
        )
    for incremental in increments:
        if incremental.type is None and coercion.is_template(incremental.initial):
            continue
        declared = incremental.type or state_values.guess_state_type(incremental.initial)
        try:
            since, until = (
                state_values.parse_state_value(value, StateType(declared))
                for value in (backfill.since, backfill.until)
            )
            is_empty = not state_values.is_later(until, since)
        except StateValueError as problem:
            raise _build_invalid_value_error(str(problem)) from problem
        if is_empty:
            raise _build_invalid_value_error(
                f"the range from {since.value} to {until.value} is empty: until is before which "
                "rows are read"
            )


def list_increments(entry: CatalogEntry) -> list[Incremental]:
    """List how the steps of a playbook read increments."""
    playbook = codec.convert_value(entry.model, Playbook)
    return [step.incremental for step in playbook.workflow if step.incremental is not None]


def _check_until_is_read(entry: CatalogEntry) -> None:
    """Refuse a range whose end no query of a step looks at: each range would read all that follows.

    Raises a 422.
    """
    playbook = codec.convert_value(entry.model, Playbook)
    for step in playbook.workflow:
        if step.incremental is not None and _UNTIL not in codec.encode_json(step.tool):
            raise ApiError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                code="range_not_read",
                detail=f"step {step.step!r} of {entry.path} does not read increment.until: each "
                "range of a backfill would read all rows from its begin on",
                hint="compare the cursor with {{ increment.until }} too; it is null in other runs",
            )


async def _get_declared_type(services: ApiServices, path: str, data: StateBody) -> StateType:
    """Return the type of a state that has no value yet; raises a 404 where no step reads it."""
    entry = await catalog_entries.get_playbook_entry(services, path, None)
    by_name = {get_state_name(incremental): incremental for incremental in list_increments(entry)}
    incremental = by_name.get(data.name)
    if incremental is None:
        raise problems.build_not_found_error(
            f"no step of {entry.path} reads a state {data.name[:80]!r}",
            hint=spelling.suggest_or_list(data.name, by_name, label="its states are"),
        )
    if incremental.type is not None:
        return StateType(incremental.type)
    is_open = coercion.is_template(incremental.initial)
    return state_values.guess_state_type(data.value if is_open else incremental.initial)


async def _list_changes(
    services: ApiServices, path: str, name: str, *, before: int | None, changes_max: int
) -> list[StateChange]:
    """List changes of a state that has some; raises a 404."""
    path = path.strip("/")
    services.check_path(path, f"playbook {path!r}")
    changes = await services.registry.states.list_changes(
        path, name, **services.tenant_scope, before=before, changes_max=changes_max
    )
    if not changes and before is None:
        raise problems.build_not_found_error(
            f"state {name[:80]!r} of {path} has no value yet",
            hint="the first run that reads rows gives it one; noetl state ls lists what there is",
        )
    return changes


def _parse_value(value: int | str, type_: StateType) -> StateValue:
    try:
        return state_values.parse_state_value(value, type_)
    except StateValueError as problem:
        raise _build_invalid_value_error(str(problem)) from problem


def _build_invalid_value_error(detail: str) -> ApiError:
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, code="invalid_value", detail=detail)


def _build_moved_error(path: str, name: str) -> ApiError:
    return ApiError(
        HTTPStatus.CONFLICT,
        code="state_moved",
        detail=f"state {name[:80]!r} of {path} has been changed meanwhile",
        hint="look at it again, then set it from its present revision",
    )


def _build_state_view(change: StateChange) -> StateView:
    fields: dict[str, Any] = {
        name: getattr(change, name)
        for name in StateView.__struct_fields__
        if name not in {"type", "value"}
    }
    return StateView(type=change.value.type, value=change.value.value, **fields)


ROUTES = [list_states, show_state, show_history, set_state, remove_state]
