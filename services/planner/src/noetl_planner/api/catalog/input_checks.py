"""Checks inputs of a request against the playbook: unknown ones are refused or reported."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from noetl_contracts import codec, spelling
from noetl_contracts.ledger.records import CatalogEntry
from noetl_contracts.written_names import find_name_problem
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, RequestScope
from noetl_planner.identity.permissions import Permission
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import InputDeclaration
from noetl_playbook.parse import declared_inputs, inputs
from noetl_playbook.parse.inputs import InputFault
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.sandbox import GLOBALS


def check_inputs(entry: CatalogEntry, fields: Mapping[str, Any]) -> None:
    """Refuse inputs that a playbook does not have; raises a 422 that names the nearest ones."""
    for name in fields:
        if (problem := find_name_problem(name)) is not None:
            raise ApiError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                code="inputs_do_not_fit",
                detail=f"{entry.path}: {problem}",
                hint="name each input with visible characters on one line",
            )
    fault = inputs.find_model_input_fault(entry.model, fields)
    if fault is None or not fault.is_refused:
        return
    raise ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="inputs_do_not_fit",
        detail=f"{entry.path}: {fault.message}",
        hint=fault.hint,
    )


def check_required_inputs(entry: CatalogEntry, input_names: Iterable[str]) -> None:
    """Refuse a start that lacks an input which the playbook requires; raises a 422 with its name.

    `input_names` are the names of all inputs of the start.
    """
    fault = find_required_fault(entry.model, input_names)
    if fault is not None:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="inputs_missing",
            detail=f"{entry.path}: {fault.message}",
            hint=fault.hint,
        )


def find_required_fault(model: Mapping[str, Any], input_names: Iterable[str]) -> InputFault | None:
    """Judge a start by the canonical form of a playbook, as the catalog holds it."""
    declared = model.get("declared_inputs")
    if not declared:
        return None
    declarations = codec.convert_value(declared, dict[str, InputDeclaration])
    return declared_inputs.find_missing_inputs(declarations, input_names)


def check_templates(templates: Any, names: Collection[str], *, of: str) -> None:
    """Check the input templates of a webhook or trigger, which read `names` of a call or message.

    Raises a 422 if one does not compile, or reads what there is not.
    """
    try:
        unknown = compile_value(templates).names - frozenset(names) - GLOBALS.keys()
    except TemplateError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY, code="template_refused", detail=str(error)
        ) from error
    if unknown:
        name = min(unknown)
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="template_refused",
            detail=f"inputs: {name!r} is nothing of a {of}",
            hint=spelling.suggest_word(name, names)
            or f"inputs read {', '.join(sorted(names))} of a {of}",
        )


def list_input_warnings(entry: CatalogEntry, fields: Mapping[str, Any]) -> list[str] | UnsetType:
    """Tell the inputs that a playbook does not have, and runs without."""
    fault = inputs.find_model_input_fault(entry.model, fields)
    return UNSET if fault is None else [fault.full_text]


_PLAYBOOK = "playbook"


class _PlaybookCall(Struct, frozen=True, kw_only=True):
    """A task that calls a playbook whose path and version are written out.

    It `has_all_inputs` where `inputs` are all that it gives.
    """

    place: str
    path: str
    version: int | None
    return_step: str | None
    inputs: Mapping[str, Any]
    has_all_inputs: bool


async def check_playbook_calls(services: ApiServices, new: Sequence[CatalogEntry]) -> None:
    """Refuse calls that name a step or an input which the called playbook does not have.

    `new` are registered together and know one another. A playbook that is not registered yet is
    judged when it starts, a lenient one is not. Raises a 422.
    """
    new_by_path = {entry.path: entry for entry in new}
    for entry in new:
        _check_call_reach(services, entry)
        for call in _list_playbook_calls(entry.model):
            called = new_by_path.get(call.path) if call.version is None else None
            if called is None:
                called = await services.playbooks.catalog.find_playbook(
                    call.path, version=call.version, **services.tenant_scope
                )
            if called is not None and not inputs.is_lenient(called.model):
                _check_playbook_call(entry, call, called)


def _check_call_reach(scope: RequestScope, entry: CatalogEntry) -> None:
    """Raise a 403 for a call of a playbook that who writes it may not run.

    Else a role for a folder would be one for all of them: a child runs with what its own playbook
    may use. Of a path with templates what stands before them counts.
    """
    prefixes = scope.access.list_path_prefixes(Permission.RUN)
    if not prefixes and scope.access.has_permission(Permission.RUN):
        return
    for place, task in _list_call_tasks(entry.model):
        path = str(task.get("fields", {}).get("path", ""))
        written, braces, _ = path.partition("{")
        called = written.strip("/ ") if not braces else written.lstrip("/ ")
        is_inside = any(
            called.startswith(f"{prefix}/") or (not braces and called == prefix)
            for prefix in prefixes
        )
        if not is_inside:
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                code="forbidden",
                detail=f"{entry.path}: {place}: {scope.access.principal.name} may not run "
                f"{path[:200]!r}",
                hint=f"call playbooks of {', '.join(prefixes) or 'no folder'}, with their folder "
                "written out",
            )


def _check_playbook_call(entry: CatalogEntry, call: _PlaybookCall, called: CatalogEntry) -> None:
    steps = [str(step["step"]) for step in called.model.get("workflow", ())]
    if call.return_step is not None and call.return_step not in steps:
        raise _build_call_error(
            f"{entry.path}: {call.place}, field 'return_step': "
            f"playbook {call.path!r} has no step {call.return_step!r}",
            hint=spelling.suggest_or_list(call.return_step, steps, label="its steps are"),
        )
    fault = inputs.find_model_input_fault(called.model, call.inputs)
    if call.has_all_inputs and (fault is None or not fault.is_refused):
        fault = find_required_fault(called.model, call.inputs)
    if fault is not None and fault.is_refused:
        raise _build_call_error(
            f"{entry.path}: {call.place}, field 'input': {call.path!r}: {fault.message}",
            hint=fault.hint,
        )


def _build_call_error(detail: str, *, hint: str) -> ApiError:
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return ApiError(status, code="playbook_invalid", detail=detail, hint=hint)


def _list_playbook_calls(model: Mapping[str, Any]) -> Iterator[_PlaybookCall]:
    """List the calls of a canonical playbook; what templates decide is left to the run."""
    for place, task in _list_call_tasks(model):
        fields = task.get("fields", {})
        path, version = fields.get("path"), fields.get("version")
        if not isinstance(path, str) or coercion.is_template(path):
            continue
        if version == "latest":
            version = None
        elif version is not None and (version := coercion.coerce_integer(version)) is None:
            continue
        step = fields.get("return_step")
        is_written = isinstance(step, str) and not coercion.is_template(step)
        yield _PlaybookCall(
            place=place,
            path=path.strip("/ "),
            version=version,
            return_step=step if is_written else None,
            inputs=task.get("input", {}),
            has_all_inputs=fields.keys().isdisjoint({"payload", "workload"}),
        )


def _list_call_tasks(model: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for step in model.get("workflow", ()):
        for task in step.get("tool", ()):
            if task.get("kind") == _PLAYBOOK:
                yield f"step {step['step']!r}, task {task['name']!r}", task
