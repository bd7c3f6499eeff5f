"""`ctx` of an execution by top-level key: read, written and removed from outside (language, 18)."""

from http import HTTPStatus
from typing import Annotated, Any

from litestar import delete, get, put
from litestar.params import FromPath, JSONBody
from litestar.status_codes import HTTP_202_ACCEPTED
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, JSON_MEDIA_TYPE
from noetl_contracts.requests.facts import CtxWriteRequested
from noetl_planner.api.executions import control_requests
from noetl_planner.api.executions.start_requests import PRODUCER
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, payload_reader
from noetl_playbook.model import language_names
from noetl_playbook.views import ctx_references

NAME_CHARACTERS_MAX = 200


class Value(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value to write: any JSON."""

    value: Any


class Variables(Struct, frozen=True, kw_only=True):
    """All of `ctx`; what is kept by reference shows its reference."""

    execution_id: str
    variables: dict[str, Any]


class Variable(Struct, frozen=True, kw_only=True):
    """One value of `ctx`, whole."""

    execution_id: str
    name: str
    value: Any


class WriteAnswer(Struct, frozen=True, kw_only=True):
    """A stored request to write; renders see the value once the planner has decided on it."""

    execution_id: str
    name: str
    accepted: Annotated[bool, Meta(description="always true: what came too late is a 409")]


@get("/vars/{execution_id:str}", tags=["variables"])
async def list_variables(services: Services, execution_id: FromPath[str]) -> Variables:
    """Show `ctx`."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    return Variables(
        execution_id=row["execution_id"],
        variables=ctx_references.show_markers(row.get("variables") or {}),
    )


@get("/vars/{execution_id:str}/{name:str}", tags=["variables"])
async def show_variable(
    services: Services, execution_id: FromPath[str], name: FromPath[str]
) -> Variable:
    """Show one value of `ctx`; one that is kept by reference is read."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    variables = row.get("variables") or {}
    if name not in variables:
        raise _build_no_variable_error(row["execution_id"], name)
    value = variables[name]
    if ctx_references.is_marker(value):
        value = await payload_reader.read_payload(
            services, ctx_references.get_marker_reference(value)
        )
    return Variable(execution_id=row["execution_id"], name=name, value=value)


@put("/vars/{execution_id:str}/{name:str}", status_code=HTTP_202_ACCEPTED, tags=["variables"])
async def write_variable(
    services: Services,
    execution_id: FromPath[str],
    name: FromPath[str],
    data: JSONBody[Value],
) -> WriteAnswer:
    """Write one value of `ctx`; it becomes a `ctx.patched` event."""
    if not language_names.is_identifier(name) or len(name) > NAME_CHARACTERS_MAX:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="invalid_name",
            detail=f"{name[:80]!r} cannot name a value of ctx",
            hint="use letters, digits and '_', not beginning with a digit",
        )
    if ctx_references.is_marker(data.value):
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="invalid_value",
            detail="a reference of the engine cannot be written as a value",
            hint="write the value itself",
        )
    value = await _store_value(services, data.value)
    answer = await control_requests.submit_control(
        services,
        execution_id,
        "write",
        lambda request: CtxWriteRequested(
            request_id=request, patch={name: value}, requested_by=PRODUCER
        ),
    )
    control_requests.check_accepted_answer(answer)
    return WriteAnswer(execution_id=answer.execution_id, name=name, accepted=True)


@delete("/vars/{execution_id:str}/{name:str}", status_code=HTTP_202_ACCEPTED, tags=["variables"])
async def remove_variable(
    services: Services, execution_id: FromPath[str], name: FromPath[str]
) -> WriteAnswer:
    """Remove one value from `ctx`; it becomes a `ctx.patched` event."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    if name not in (row.get("variables") or {}):
        raise _build_no_variable_error(row["execution_id"], name)
    answer = await control_requests.submit_control(
        services,
        execution_id,
        "remove",
        lambda request: CtxWriteRequested(
            request_id=request, removed=[name], requested_by=PRODUCER
        ),
    )
    control_requests.check_accepted_answer(answer)
    return WriteAnswer(execution_id=answer.execution_id, name=name, accepted=True)


async def _store_value(services: ApiServices, value: Any) -> Any:
    """Store what is too large, or too deep, for an event, and give what stands for it."""
    data = codec.encode_canonical(value)
    if len(data) <= EVENT_INLINE_BYTES_MAX and not is_nested_deeper(value, DEPTH_MAX):
        return value
    reference = await services.payloads.put_payload(
        data,
        media_type=JSON_MEDIA_TYPE,
        row_count=len(value) if isinstance(value, list) else None,
        **services.tenant_scope,
    )
    return ctx_references.build_marker(reference, value)


def _build_no_variable_error(execution_id: str, name: str) -> ApiError:
    return problems.build_not_found_error(
        f"ctx of execution {execution_id} has no {name[:80]!r}",
        hint=f"GET /api/vars/{execution_id} lists what it has",
    )


ROUTES = [list_variables, show_variable, write_variable, remove_variable]
