"""Templates on the control plane: what they may see, and how their errors become the step's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.errors import ErrorObject, get_error_code
from noetl_contracts.events.state_events import StateChanged
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_planner.domain.decision.draft import DecisionDraft, ReadBudget
from noetl_playbook.model.playbook import Expression
from noetl_playbook.templates import json_render, render_limits
from noetl_playbook.templates.expressions import TemplateError, compile_condition, describe_location
from noetl_playbook.templates.lookup import MISSING
from noetl_playbook.templates.render_limits import LimitExceededError
from noetl_playbook.templates.scope import ScopeParts, TemplateScope, TimeSource, last_name_key
from noetl_playbook.views import ctx_references, keychain, result_envelope
from noetl_playbook.views.loop_parts import FaninView
from noetl_playbook.views.output_view import OutputView
from noetl_playbook.views.result_view import ResultView, ViewNamespace
from noetl_playbook.views.results import LoopResult
from noetl_replay.state import StepState


class Refusal(Exception):  # noqa: N818 - the playbook is refused, nothing went wrong here
    """The playbook asks for something that cannot be done: the step fails with `error`."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error

    @classmethod
    def for_step(cls, kind: str, step: str, message: str) -> Self:
        """Name the step, the kind and the way out."""
        return cls(ErrorObject(kind=kind, code=get_error_code(kind), step=step, message=message))

    @classmethod
    def for_limit(cls, limit: str, step: str, message: str) -> Self:
        """Name a limit that is exceeded (language, 15)."""
        return cls(ErrorObject(kind="limit", code=limit, step=step, message=message))


UNDEFINED_IN_CONDITION = "undefined_in_condition"


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How an activation ended, and how its success moves the state that it read."""

    status: RunStatus
    error: ErrorObject | None = None
    notes: list[str] = []
    state_change: StateChanged | None = None


class StoredWorkload(Mapping[str, Any]):
    """Inputs that are kept by reference, loaded when one of them is touched."""

    def __init__(self, load: Callable[[], Mapping[str, Any]]) -> None:
        self._load = load

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def view_workload(draft: DecisionDraft) -> Mapping[str, Any]:
    """Return the execution's inputs as templates see them."""
    reference = draft.state.workload_ref
    if reference is None:
        return draft.state.workload
    return StoredWorkload(lambda: make_value_finder(draft)(reference))


def make_value_finder(draft: DecisionDraft) -> Callable[[PayloadRef], Any]:
    """Return what finds the values that templates look into.

    It raises `PayloadNeeded` while a value is not loaded, and `LimitExceededError` for one more
    than there may be, however it came to be named.
    """

    def find_value(reference: PayloadRef) -> Any:
        draft.reads.admit_read(reference)
        return draft.get_stored_value(reference)

    return find_value


@contextmanager
def bounded_reads(draft: DecisionDraft, *, step: str, field: str) -> Iterator[None]:
    """Look into values beside a template: what is too much refuses the step, naming the field."""
    draft.reads.begin_render()
    try:
        yield
    except LimitExceededError as error:
        text = f"step {step!r}, field {field!r}: {error}"
        raise Refusal.for_step(error.kind, step, text) from error


class StepResultViews(Mapping[str, Any]):
    """The latest result of every step that has run, shown when it is named."""

    def __init__(self, draft: DecisionDraft) -> None:
        self._draft = draft
        self._view_by_step: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._view_by_step:
            if name not in self:
                raise KeyError(name)
            self._view_by_step[name] = view_result(self._draft, self._draft.state.steps[name])
        return self._view_by_step[name]

    def __contains__(self, name: object) -> bool:
        step = self._draft.state.steps.get(name) if isinstance(name, str) else None
        return step is not None and (step.result is not None or step.error is not None)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._draft.state.steps if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class StepOutputViews(StepResultViews):
    """How the latest run of every step ended, as `steps.<name>` shows it."""

    def __getitem__(self, name: str) -> Any:
        if name not in self._view_by_step:
            if name not in self:
                raise KeyError(name)
            self._view_by_step[name] = view_output(self._draft, self._draft.state.steps[name])
        return self._view_by_step[name]


def view_result(draft: DecisionDraft, step: StepState) -> Any:
    """Show a step's latest result."""
    return result_envelope.view_result(
        step.result,
        execution_id=draft.state.execution_id,
        step=step.step,
        run=step.run_id or "",
        find=make_value_finder(draft),
        error=codec.to_builtins(step.error) if step.error is not None else None,
    )


def view_output(
    draft: DecisionDraft, step: StepState, error: ErrorObject | None = None
) -> OutputView:
    """Show how a step's latest run ended, as `view_output`."""
    failure = error or step.error
    view = view_result(draft, step)
    is_empty = failure is not None and isinstance(view, ResultView) and view.raw is None
    return OutputView(
        MISSING if is_empty else view,
        kind=view.kind if isinstance(view, ResultView) else "python",
        error=codec.to_builtins(failure) if failure is not None else None,
        meta=_build_output_meta(draft, step),
    )


def _build_output_meta(draft: DecisionDraft, step: StepState) -> dict[str, Any]:
    """Tell which attempt gave a step's outcome, and how long its run took so far."""
    if step.started_at is None:
        return {}
    lasted = (step.ended_at or draft.now) - step.started_at
    return {
        "attempt": step.attempt,
        "attempts_total": step.attempt,
        "duration_ms": lasted.total_seconds() * 1000,
        "started_at": step.started_at,
        "worker_id": step.worker_id,
    }


class PlannerScope(TemplateScope):
    """What a control-plane template may name; each render's reads are counted by themselves."""

    __slots__ = ("reads",)

    def __init__(self, fixed: Mapping[str, Any], parts: ScopeParts, *, reads: ReadBudget) -> None:
        super().__init__(fixed, parts)
        self.reads = reads


def begin_render(names: TemplateScope) -> None:
    """Count anew what the next render looks into."""
    if isinstance(names, PlannerScope):
        names.reads.begin_render()


def build_scope(
    draft: DecisionDraft, patch: Mapping[str, Any] | None = None, /, **bound: Any
) -> TemplateScope:
    """Build what a control-plane template may name.

    `patch` is laid over `ctx`; `bound` are `view_output`, `event`, `view_fanin` and their like.
    """
    state = draft.state
    steps = StepResultViews(draft)
    ctx = ctx_references.view_ctx(
        {**state.ctx, **patch} if patch else state.ctx, make_value_finder(draft)
    )
    inputs = view_workload(draft)
    fixed = {
        "workload": inputs,
        "ctx": ctx,
        "steps": ViewNamespace(StepOutputViews(draft)),
        **build_base_names(draft),
        **bound,
    }
    parts = ScopeParts(
        steps=steps,
        ctx=ctx,
        workload=inputs,
        limits=render_limits.PLANNER,
        renders=draft.renders,
        is_lenient=draft.program.is_lenient,
    )
    return PlannerScope(fixed, parts, reads=draft.reads)


def build_base_names(draft: DecisionDraft) -> dict[str, Any]:
    """Give the names that are the same everywhere in an execution."""
    execution_id = draft.state.execution_id
    return {
        "execution_id": execution_id,
        "catalog_id": draft.program.catalog_id,
        "job": {"uuid": execution_id, "execution_id": execution_id},
        "env": draft.limits.template_env,
        **keychain.build_withheld_names(),
        last_name_key("parent_execution_id"): draft.state.parent_execution_id,
        last_name_key("payload"): view_workload(draft),
        **TimeSource(now=lambda: draft.now, new_uuid=lambda: _derive_uuid(draft)).build_names(),
    }


def _derive_uuid(draft: DecisionDraft) -> str:
    """Derive an identity from the decision's place: deciding again gives the same one."""
    seed = f"{draft.state.execution_id}/{draft.state.version}/{len(draft.envelopes)}"
    return str(UUID(bytes=codec.digest_bytes(seed.encode())[:16], version=4))


def render_value(value: Any, names: TemplateScope, *, step: str, field: str) -> Any:
    """Render a value; a template error refuses the step, naming the field and expression."""
    begin_render(names)
    try:
        return json_render.render_as_json(value, names)
    except TemplateError as error:
        raise _build_template_refusal(error, step, field) from error


def is_condition_true(
    condition: Expression, names: TemplateScope, *, step: str, field: str
) -> bool:
    """Evaluate a condition; what is absent is false."""
    return evaluate_condition(condition, names, step=step, field=field)[0]


def evaluate_condition(
    condition: Expression, names: TemplateScope, *, step: str, field: str
) -> tuple[bool, str | None]:
    """Evaluate a condition; tell also which path was absent when the whole of it was."""
    begin_render(names)
    try:
        return compile_condition(condition).evaluate_condition(names)
    except TemplateError as error:
        raise _build_template_refusal(error, step, field) from error


def check_bounded_number(
    value: Any, *, step: str, field: str, least: int, most: int, limit: str | None = None
) -> int:
    """Admit a rendered number within its bounds; `limit` names the one that `most` is."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Refusal.for_step(
            "validation", step, f"{field}: {value!r:.80} is not a number"
        ) from error
    if limit is not None and number > most:
        raise Refusal.for_limit(limit, step, f"{field}: {number} exceeds the limit of {most}")
    if not least <= number <= most:
        raise Refusal.for_step(
            "validation", step, f"{field}: {number} is not within {least} and {most}"
        )
    return number


def find_fanin_counters(draft: DecisionDraft, step: str) -> dict[str, Any] | None:
    """Return the outcome that a loop step's latest result carries, or None."""
    step_state = draft.state.steps.get(step)
    if step_state is None or step_state.result is None:
        return None
    context = step_state.result.context
    fanin = context.get("fields", {}).get("fanin")
    if fanin is None and context.get("shape") == result_envelope.LOOP:
        fanin = context.get("data", {}).get("fanin")
    return fanin if isinstance(fanin, dict) else None


def view_fanin(draft: DecisionDraft, counters: Mapping[str, Any]) -> FaninView:
    """Show a loop's outcome; what its units gave is loaded when it is touched."""
    return result_envelope.view_fanin(counters, make_value_finder(draft))


def read_stored_rows(
    draft: DecisionDraft, form: CollectionForm, reference: PayloadRef
) -> list[Any]:
    """Return the items of a stored collection; raises as `make_value_finder` says."""
    data = make_value_finder(draft)(reference)
    return (
        list(data)
        if form is CollectionForm.LIST
        else result_envelope.list_result_rows(str(form), data)
    )


def make_loop_result(
    results: list[Any], stats: dict[str, Any], fanin: dict[str, Any] | None = None
) -> ResultEnvelope:
    """Carry a small loop result."""
    loop_result = LoopResult(results=results, stats=stats, fanin=fanin)
    return ResultEnvelope(status="ok", context=result_envelope.build_inline_context(loop_result))


def _build_template_refusal(error: TemplateError, step: str, field: str) -> Refusal:
    return Refusal.for_step(error.kind, step, describe_location(error, step=step, field=field))
