"""How an execution begins: inputs merged and rendered, a token on the entry step."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import UNSET

from noetl_contracts import spelling
from noetl_contracts.commands.state_values import IncrementRange
from noetl_contracts.errors import ErrorObject, get_error_code
from noetl_contracts.events import execution_events
from noetl_contracts.requests import facts, triggers, webhooks
from noetl_planner.domain import executions
from noetl_planner.domain.decision import ctx_writes, evaluation, limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_planner.domain.loops import reruns
from noetl_planner.domain.steps import pools
from noetl_playbook.parse import declared_inputs, inputs
from noetl_playbook.templates import json_render
from noetl_playbook.templates.expressions import TemplateError, describe_location
from noetl_playbook.templates.render_limits import PLANNER
from noetl_playbook.templates.scope import ScopeParts, TemplateScope, last_name_key

WORKLOAD = "(workload)"
VARS = "(vars)"


def start_execution(draft: DecisionDraft, fact: facts.ExecutionRequested) -> None:
    """Begin the execution; a repetition of the request changes nothing."""
    if draft.state.version > 0:
        return
    inheritance = reruns.load_inherited(draft, fact.rerun) if fact.rerun is not None else None
    request = _merge_request(draft, fact, inheritance)
    workload, error = render_workload(draft, request)
    error = _find_missing_error(draft, request) or error
    ctx: dict[str, Any] = {}
    if error is None and inheritance is None and draft.program.playbook.vars:
        ctx, error = _render_vars(draft, workload)
    expires_at, due_at, unusable = _compute_bounds(draft, workload)
    error = error or _find_input_error(draft, fact) or _find_return_error(draft, fact)
    error = error or pools.find_missing_requirement(draft, fact.pool) or unusable
    error = error or ctx_writes.find_workload_error(workload, step=WORKLOAD)
    ctx, refused = ctx_writes.store_ctx_patch(draft, ctx, step=VARS)
    inline, workload_ref = ctx_writes.store_workload(draft, workload)
    draft.correlation_id = fact.correlation_id or draft.correlation_id
    draft.append_event(
        execution_events.PlaybookInitialized(
            path=fact.path,
            catalog_id=draft.program.catalog_id,
            catalog_version=draft.program.catalog_version,
            playbook_digest=draft.program.digest,
            entry_step=_select_entry_step(draft, fact),
            workload=inline,
            workload_ref=workload_ref,
            ctx=ctx,
            parent_execution_id=fact.parent_execution_id,
            requested_by=fact.requested_by,
            expires_at=expires_at,
            due_at=due_at,
            source=fact.rerun.source if fact.rerun is not None else None,
            came_from=fact.rerun.came_from if fact.rerun is not None else None,
            parent=fact.parent,
            pool=fact.pool,
            priority=fact.priority,
            backfill=_find_backfill(fact),
        )
    )
    if fact.files_digest is not None:
        draft.append_event(execution_events.FilesChanged(entries=1))
    if inheritance is not None:
        reruns.append_inherited(draft, inheritance)
    error = draft.stamp.start_refusal or error or refused
    if error is not None:
        executions.fail_execution(draft, error, step=error.step or WORKLOAD)
        return
    executions.advance_execution(draft)


def _find_backfill(fact: facts.ExecutionRequested) -> IncrementRange | None:
    """Return the range that steps read instead of their states, also of a repeated backfill."""
    backfill = fact.rerun.backfill if fact.rerun is not None else fact.backfill
    return None if backfill is UNSET else backfill


def _merge_request(
    draft: DecisionDraft,
    fact: facts.ExecutionRequested,
    inherited_state: facts.InheritedState | None,
) -> Mapping[str, Any]:
    """Return the inputs: those given, over those of the execution that is repeated."""
    given_workload = _read_given_workload(draft, fact)
    return (
        given_workload
        if inherited_state is None
        else merge_deeply(inherited_state.workload, given_workload)
    )


def _read_given_workload(draft: DecisionDraft, fact: facts.ExecutionRequested) -> Mapping[str, Any]:
    if fact.workload_ref is None:
        return fact.workload
    stored_value: Mapping[str, Any] = draft.get_stored_value(fact.workload_ref)
    return stored_value


def _find_missing_error(draft: DecisionDraft, request: Mapping[str, Any]) -> ErrorObject | None:
    """Return the error of a start without an input that the playbook requires."""
    fault = declared_inputs.find_missing_inputs(draft.program.playbook.declared_inputs, request)
    if fault is None:
        return None
    return ErrorObject(
        kind="validation", code=get_error_code("validation"), step=WORKLOAD, message=fault.full_text
    )


def _find_input_error(draft: DecisionDraft, fact: facts.ExecutionRequested) -> ErrorObject | None:
    """Return the error of inputs that the playbook does not have.

    What a call or a message brings was judged where it came in: there it is known whether its names
    were chosen for this playbook.
    """
    playbook = draft.program.playbook
    asker = fact.requested_by or ""
    if draft.program.is_lenient or asker.startswith((webhooks.ASKER, triggers.ASKER)):
        return None
    fault = inputs.find_input_fault(
        playbook.known_workload, playbook.inputs, _read_given_workload(draft, fact)
    )
    if fault is None or not fault.is_refused:
        return None
    return ErrorObject(
        kind="validation", code=get_error_code("validation"), step=WORKLOAD, message=fault.full_text
    )


def _find_return_error(draft: DecisionDraft, fact: facts.ExecutionRequested) -> ErrorObject | None:
    """Return the error of a parent that wants the result of a step which this playbook lacks."""
    return_step = fact.parent.return_step if fact.parent is not None else None
    steps = draft.program.steps
    if return_step is None or return_step in steps or draft.program.is_lenient:
        return None
    meant = spelling.suggest_or_list(return_step, steps, label="its steps are")
    return ErrorObject(
        kind="validation",
        code=get_error_code("validation"),
        step=WORKLOAD,
        message=f"return_step: the playbook has no step {return_step!r} ({meant})",
    )


def _select_entry_step(draft: DecisionDraft, fact: facts.ExecutionRequested) -> str:
    """Return the first step; the API has refused a rerun from one that the playbook lacks."""
    step = fact.rerun.source.step if fact.rerun is not None else draft.program.entry
    return step if step in draft.program.steps else draft.program.entry


def _compute_bounds(
    draft: DecisionDraft, workload: Mapping[str, Any]
) -> tuple[datetime | None, datetime | None, ErrorObject | None]:
    """Return until when the execution may last and when it is late, or why that cannot be told."""
    names = build_start_scope(draft, request=workload, workload=workload)
    try:
        expires_at = limits.compute_execution_expiry(draft, names)
        return expires_at, limits.compute_execution_deadline(draft, names), None
    except Refusal as refusal:
        return None, None, refusal.error


def render_workload(
    draft: DecisionDraft, request: Mapping[str, Any]
) -> tuple[dict[str, Any], ErrorObject | None]:
    """Merge the request over the rendered defaults (language, 2.3)."""
    lazy = _LazyDefaults(draft, draft.program.playbook.workload, request)
    merged: dict[str, Any] = {}
    for key in lazy:
        try:
            merged[key] = lazy[key]
        except TemplateError as error:
            message = describe_location(error, step=WORKLOAD, field=key)
            return dict(request), ErrorObject(
                kind=error.kind, code=get_error_code(error.kind), step=WORKLOAD, message=message
            )
    return merged, None


def merge_deeply(defaults: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; lists and scalars are replaced."""
    merged = dict(defaults)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_deeply(below, value)
        else:
            merged[key] = value
    return merged


def build_start_scope(
    draft: DecisionDraft, *, request: Mapping[str, Any], workload: Mapping[str, Any]
) -> TemplateScope:
    """Build what workload defaults and `vars` may name."""
    fixed = {
        "workload": workload,
        **evaluation.build_base_names(draft),
        last_name_key("payload"): request,
        last_name_key("input"): request,
    }
    is_lenient = draft.program.is_lenient
    parts = ScopeParts(
        ctx=workload,
        workload=workload,
        limits=PLANNER,
        renders=draft.renders,
        is_lenient=is_lenient,
    )
    return TemplateScope(fixed, parts)


def _select_unsupplied(default: Any, request: Any) -> Any:
    """Return what of a default the request leaves to it: the rest is not rendered."""
    if not isinstance(default, Mapping) or not isinstance(request, Mapping):
        return default
    return {
        key: _select_unsupplied(value, request.get(key))
        for key, value in default.items()
        if key not in request or (isinstance(value, Mapping) and isinstance(request[key], Mapping))
    }


class _CircularError(KeyError):
    """A default that is being rendered was asked for."""

    def __str__(self) -> str:
        return f"the default of {self.args[0]!r} refers to itself"


class _LazyDefaults(Mapping[str, Any]):
    """Renders a default when it is first named, and lays over it what the request says.

    Of a default that is being rendered there is only what the request says.
    """

    def __init__(
        self, draft: DecisionDraft, defaults: Mapping[str, Any], request: Mapping[str, Any]
    ) -> None:
        self._draft = draft
        self._defaults = defaults
        self._request = request
        self._value_by_key: dict[str, Any] = {}
        self._busy: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key in self._value_by_key:
            return self._value_by_key[key]
        if self._is_supplied(key) or (key in self._busy and key in self._request):
            return self._request[key]
        if key in self._busy:
            raise _CircularError(key)
        default = _select_unsupplied(self._defaults[key], self._request.get(key))
        self._busy.add(key)
        try:
            names = build_start_scope(self._draft, request=self._request, workload=self)
            rendered = json_render.render_as_json(default, names)
        finally:
            self._busy.discard(key)
        request = self._request.get(key)
        self._value_by_key[key] = (
            merge_deeply(rendered, request) if isinstance(request, Mapping) else rendered
        )
        return self._value_by_key[key]

    def _is_supplied(self, key: str) -> bool:
        """Tell whether nothing of a key is left to its default."""
        if key not in self._request:
            return False
        both = (self._request[key], self._defaults.get(key))
        return not all(isinstance(value, Mapping) for value in both)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._defaults, **self._request})

    def __len__(self) -> int:
        return len({**self._defaults, **self._request})


def _render_vars(
    draft: DecisionDraft, workload: Mapping[str, Any]
) -> tuple[dict[str, Any], ErrorObject | None]:
    names = build_start_scope(draft, request=workload, workload=workload)
    try:
        return dict(json_render.render_as_json(draft.program.playbook.vars, names)), None
    except TemplateError as error:
        return {}, ErrorObject(
            kind=error.kind,
            code=get_error_code(error.kind),
            step=VARS,
            message=describe_location(error, step=VARS),
        )
