"""How an execution begins: inputs merged and rendered, a token on the entry step."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from noetl_contracts import facts, spelling, triggers, webhooks
from noetl_contracts.errors import ErrorObject, code_of
from noetl_contracts.events import execution, files
from noetl_planner.domain import (
    bounds,
    evaluation,
    flow,
    growth,
    requirements,
    rerunning,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook import inputs, lasting
from noetl_playbook.expressions import TemplateError, located
from noetl_playbook.scope import Parts, Scope, last_name
from noetl_playbook.templates.rendering import PLANNER

WORKLOAD = "(workload)"
VARS = "(vars)"


def start(draft: Draft, fact: facts.ExecutionRequested) -> None:
    """Begin the execution; a repetition of the request changes nothing."""
    if draft.state.version > 0:
        return
    taken = rerunning.inherited_of(draft, fact.rerun) if fact.rerun is not None else None
    request = _request(draft, fact, taken)
    workload, error = render_workload(draft, request)
    ctx: dict[str, Any] = {}
    if error is None and taken is None and draft.program.playbook.vars:
        ctx, error = _render_vars(draft, workload)
    expires_at, unusable = _expires_at(draft, workload)
    error = error or _input_error(draft, fact) or _return_error(draft, fact)
    error = error or requirements.missing(draft, fact.pool) or unusable
    error = error or growth.workload_error(workload, step=WORKLOAD)
    ctx, refused = growth.carried(draft, ctx, step=VARS)
    inline, workload_ref = growth.kept_workload(draft, workload)
    draft.correlation_id = fact.correlation_id or draft.correlation_id
    draft.emit(
        execution.PlaybookInitialized(
            path=fact.path,
            catalog_id=draft.program.catalog_id,
            catalog_version=draft.program.catalog_version,
            playbook_digest=draft.program.digest,
            entry_step=_entry(draft, fact),
            workload=inline,
            workload_ref=workload_ref,
            ctx=ctx,
            parent_execution_id=fact.parent_execution_id,
            requested_by=fact.requested_by,
            expires_at=expires_at,
            source=fact.rerun.source if fact.rerun is not None else None,
            came_from=fact.rerun.came_from if fact.rerun is not None else None,
            parent=fact.parent,
            pool=fact.pool,
            priority=fact.priority,
        )
    )
    if fact.files_digest is not None:
        draft.emit(files.FilesChanged(entries=1))
    if taken is not None:
        rerunning.inherit(draft, taken)
    error = error or refused
    if error is not None:
        flow.fail_execution(draft, error, step=error.step or WORKLOAD)
        return
    flow.advance(draft)


def _request(
    draft: Draft, fact: facts.ExecutionRequested, taken: facts.Inherited | None
) -> Mapping[str, Any]:
    """Return the inputs: those given, over those of the execution that is repeated."""
    given = _given(draft, fact)
    return given if taken is None else deep_merge(taken.workload, given)


def _given(draft: Draft, fact: facts.ExecutionRequested) -> Mapping[str, Any]:
    if fact.workload_ref is None:
        return fact.workload
    given: Mapping[str, Any] = draft.value_of(fact.workload_ref)
    return given


def _input_error(draft: Draft, fact: facts.ExecutionRequested) -> ErrorObject | None:
    """Return the error of inputs that the playbook does not have.

    What a call or a message brings was judged where it came in: there it is known whether its names
    were chosen for this playbook.
    """
    playbook = draft.program.playbook
    asker = fact.requested_by or ""
    if draft.program.is_lenient or asker.startswith((webhooks.ASKER, triggers.ASKER)):
        return None
    fault = inputs.find_fault(playbook.workload, playbook.inputs, _given(draft, fact))
    if fault is None or not fault.is_refused:
        return None
    return ErrorObject(
        kind="validation", code=code_of("validation"), step=WORKLOAD, message=fault.text
    )


def _return_error(draft: Draft, fact: facts.ExecutionRequested) -> ErrorObject | None:
    """Return the error of a parent that wants the result of a step which this playbook lacks."""
    wanted = fact.parent.return_step if fact.parent is not None else None
    steps = draft.program.steps
    if wanted is None or wanted in steps or draft.program.is_lenient:
        return None
    meant = spelling.hint_or_list(wanted, steps, label="its steps are")
    return ErrorObject(
        kind="validation",
        code=code_of("validation"),
        step=WORKLOAD,
        message=f"return_step: the playbook has no step {wanted!r} ({meant})",
    )


def _entry(draft: Draft, fact: facts.ExecutionRequested) -> str:
    """Return the first step; the API has refused a rerun from one that the playbook lacks."""
    wanted = fact.rerun.source.step if fact.rerun is not None else draft.program.entry
    return wanted if wanted in draft.program.steps else draft.program.entry


def _expires_at(
    draft: Draft, workload: Mapping[str, Any]
) -> tuple[datetime | None, ErrorObject | None]:
    names = start_scope(draft, request=workload, workload=workload)
    try:
        return bounds.of_execution(draft, names), None
    except Refusal as refusal:
        return None, refusal.error


def render_workload(
    draft: Draft, request: Mapping[str, Any]
) -> tuple[dict[str, Any], ErrorObject | None]:
    """Merge the request over the rendered defaults (language, 2.3)."""
    lazy = _Defaults(draft, draft.program.playbook.workload, request)
    merged: dict[str, Any] = {}
    for key in lazy:
        try:
            merged[key] = lazy[key]
        except TemplateError as error:
            message = located(error, step=WORKLOAD, field=key)
            return dict(request), ErrorObject(
                kind=error.kind, code=code_of(error.kind), step=WORKLOAD, message=message
            )
    return merged, None


def deep_merge(defaults: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; lists and scalars are replaced."""
    merged = dict(defaults)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merge(below, value)
        else:
            merged[key] = value
    return merged


def start_scope(draft: Draft, *, request: Mapping[str, Any], workload: Mapping[str, Any]) -> Scope:
    """Build what workload defaults and `vars` may name."""
    fixed = {
        "workload": workload,
        **evaluation.base_names(draft),
        last_name("payload"): request,
        last_name("input"): request,
    }
    is_lenient = draft.program.is_lenient
    parts = Parts(
        ctx=workload,
        workload=workload,
        limits=PLANNER,
        renders=draft.renders,
        is_lenient=is_lenient,
    )
    return Scope(fixed, parts)


def _unsupplied(default: Any, given: Any) -> Any:
    """Return what of a default the request leaves to it: the rest is not rendered."""
    if not isinstance(default, Mapping) or not isinstance(given, Mapping):
        return default
    return {
        key: _unsupplied(value, given.get(key))
        for key, value in default.items()
        if key not in given or (isinstance(value, Mapping) and isinstance(given[key], Mapping))
    }


class _CircularError(KeyError):
    """A default that is being rendered was asked for."""

    def __str__(self) -> str:
        return f"the default of {self.args[0]!r} refers to itself"


class _Defaults(Mapping[str, Any]):
    """Renders a default when it is first named, and lays over it what the request says.

    Of a default that is being rendered there is only what the request says.
    """

    def __init__(
        self, draft: Draft, defaults: Mapping[str, Any], request: Mapping[str, Any]
    ) -> None:
        self._draft = draft
        self._defaults = defaults
        self._request = request
        self._done: dict[str, Any] = {}
        self._busy: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key in self._done:
            return self._done[key]
        if self._is_supplied(key) or (key in self._busy and key in self._request):
            return self._request[key]
        if key in self._busy:
            raise _CircularError(key)
        default = _unsupplied(self._defaults[key], self._request.get(key))
        self._busy.add(key)
        try:
            names = start_scope(self._draft, request=self._request, workload=self)
            rendered = lasting.rendered(default, names)
        finally:
            self._busy.discard(key)
        given = self._request.get(key)
        self._done[key] = deep_merge(rendered, given) if isinstance(given, Mapping) else rendered
        return self._done[key]

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
    draft: Draft, workload: Mapping[str, Any]
) -> tuple[dict[str, Any], ErrorObject | None]:
    names = start_scope(draft, request=workload, workload=workload)
    try:
        return dict(lasting.rendered(draft.program.playbook.vars, names)), None
    except TemplateError as error:
        return {}, ErrorObject(
            kind=error.kind,
            code=code_of(error.kind),
            step=VARS,
            message=located(error, step=VARS),
        )
