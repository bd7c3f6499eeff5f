"""Templates on the control plane: what they may see, and how their errors become the step's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject, code_of
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.slicing import Form
from noetl_contracts.status import RunStatus
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.reads import Reads
from noetl_playbook import carried, kept, keychain, lasting
from noetl_playbook.canonical import Expression
from noetl_playbook.envelope import Output
from noetl_playbook.expressions import (
    TemplateError,
    compile_condition,
    located,
)
from noetl_playbook.lookup import MISSING
from noetl_playbook.parts import Fanin
from noetl_playbook.results import LoopResult
from noetl_playbook.scope import Clockwork, Parts, Scope, last_name
from noetl_playbook.templates import rendering
from noetl_playbook.templates.rendering import LimitExceededError
from noetl_playbook.views import ResultView, Views
from noetl_replay.state import StepState


class Refusal(Exception):  # noqa: N818 - the playbook is refused, nothing went wrong here
    """The playbook asks for something that cannot be done: the step fails with `error`."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error

    @classmethod
    def of(cls, kind: str, step: str, message: str) -> Self:
        """Name the step, the kind and the way out."""
        return cls(ErrorObject(kind=kind, code=code_of(kind), step=step, message=message))

    @classmethod
    def over(cls, limit: str, step: str, message: str) -> Self:
        """Name a limit that is exceeded (language, 15)."""
        return cls(ErrorObject(kind="limit", code=limit, step=step, message=message))


UNDEFINED_IN_CONDITION = "undefined_in_condition"


class Outcome(Struct, frozen=True, kw_only=True):
    """How an activation ended."""

    status: RunStatus
    error: ErrorObject | None = None
    notes: list[str] = []


class Inputs(Mapping[str, Any]):
    """Inputs that are kept by reference, loaded when one of them is touched."""

    def __init__(self, load: Callable[[], Mapping[str, Any]]) -> None:
        self._load = load

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def workload(draft: Draft) -> Mapping[str, Any]:
    """Return the execution's inputs as templates see them."""
    reference = draft.state.workload_ref
    if reference is None:
        return draft.state.workload
    return Inputs(lambda: find(draft)(reference))


def find(draft: Draft) -> Callable[[PayloadRef], Any]:
    """Return what finds the values that templates look into.

    It raises `PayloadNeeded` while a value is not loaded, and `LimitExceededError` for one more
    than there may be, however it came to be named.
    """

    def found(reference: PayloadRef) -> Any:
        draft.reads.admit(reference)
        return draft.value_of(reference)

    return found


@contextmanager
def bounded(draft: Draft, *, step: str, field: str) -> Iterator[None]:
    """Look into values beside a template: what is too much refuses the step, naming the field."""
    draft.reads.begin_render()
    try:
        yield
    except LimitExceededError as error:
        text = f"step {step!r}, field {field!r}: {error}"
        raise Refusal.of(error.kind, step, text) from error


class StepViews(Mapping[str, Any]):
    """The latest result of every step that has run, shown when it is named."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._shown: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._shown:
            if name not in self:
                raise KeyError(name)
            self._shown[name] = view(self._draft, self._draft.state.steps[name])
        return self._shown[name]

    def __contains__(self, name: object) -> bool:
        step = self._draft.state.steps.get(name) if isinstance(name, str) else None
        return step is not None and (step.result is not None or step.error is not None)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._draft.state.steps if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class StepEnvelopes(StepViews):
    """How the latest run of every step ended, as `steps.<name>` shows it."""

    def __getitem__(self, name: str) -> Any:
        if name not in self._shown:
            if name not in self:
                raise KeyError(name)
            self._shown[name] = output(self._draft, self._draft.state.steps[name])
        return self._shown[name]


def view(draft: Draft, step: StepState) -> Any:
    """Show a step's latest result."""
    return carried.view(
        step.result,
        execution_id=draft.state.execution_id,
        step=step.step,
        run=step.run_id or "",
        find=find(draft),
        error=codec.builtins(step.error) if step.error is not None else None,
    )


def output(draft: Draft, step: StepState, error: ErrorObject | None = None) -> Output:
    """Show how a step's latest run ended, as `output`."""
    failure = error or step.error
    shown = view(draft, step)
    is_empty = failure is not None and isinstance(shown, ResultView) and shown.raw is None
    return Output(
        MISSING if is_empty else shown,
        kind=shown.kind if isinstance(shown, ResultView) else "python",
        error=codec.builtins(failure) if failure is not None else None,
        meta=_meta(draft, step),
    )


def _meta(draft: Draft, step: StepState) -> dict[str, Any]:
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


class Names(Scope):
    """What a control-plane template may name; each render's reads are counted by themselves."""

    __slots__ = ("reads",)

    def __init__(self, fixed: Mapping[str, Any], parts: Parts, *, reads: Reads) -> None:
        super().__init__(fixed, parts)
        self.reads = reads


def begin_render(names: Scope) -> None:
    """Count anew what the next render looks into."""
    if isinstance(names, Names):
        names.reads.begin_render()


def scope(draft: Draft, patch: Mapping[str, Any] | None = None, /, **bound: Any) -> Scope:
    """Build what a control-plane template may name.

    `patch` is laid over `ctx`; `bound` are `output`, `event`, `fanin` and their like.
    """
    state = draft.state
    steps = StepViews(draft)
    ctx = kept.view({**state.ctx, **patch} if patch else state.ctx, find(draft))
    inputs = workload(draft)
    fixed = {
        "workload": inputs,
        "ctx": ctx,
        "steps": Views(StepEnvelopes(draft)),
        **base_names(draft),
        **bound,
    }
    parts = Parts(
        steps=steps,
        ctx=ctx,
        workload=inputs,
        limits=rendering.PLANNER,
        renders=draft.renders,
        is_lenient=draft.program.is_lenient,
    )
    return Names(fixed, parts, reads=draft.reads)


def base_names(draft: Draft) -> dict[str, Any]:
    """Give the names that are the same everywhere in an execution."""
    execution_id = draft.state.execution_id
    return {
        "execution_id": execution_id,
        "catalog_id": draft.program.catalog_id,
        "job": {"uuid": execution_id, "execution_id": execution_id},
        "env": draft.limits.template_env,
        **keychain.withheld(),
        last_name("parent_execution_id"): draft.state.parent_execution_id,
        last_name("payload"): workload(draft),
        **Clockwork(now=lambda: draft.now, new_uuid=lambda: _uuid(draft)).names(),
    }


def _uuid(draft: Draft) -> str:
    """Derive an identity from the decision's place: deciding again gives the same one."""
    seed = f"{draft.state.execution_id}/{draft.state.version}/{len(draft.envelopes)}"
    return str(UUID(bytes=codec.digest_bytes(seed.encode())[:16], version=4))


def render(value: Any, names: Scope, *, step: str, field: str) -> Any:
    """Render a value; a template error refuses the step, naming the field and expression."""
    begin_render(names)
    try:
        return lasting.rendered(value, names)
    except TemplateError as error:
        raise _refused(error, step, field) from error


def holds(condition: Expression, names: Scope, *, step: str, field: str) -> bool:
    """Evaluate a condition; what is absent is false."""
    return judge(condition, names, step=step, field=field)[0]


def judge(condition: Expression, names: Scope, *, step: str, field: str) -> tuple[bool, str | None]:
    """Evaluate a condition; tell also which path was absent when the whole of it was."""
    begin_render(names)
    try:
        return compile_condition(condition).judge(names)
    except TemplateError as error:
        raise _refused(error, step, field) from error


def number(
    value: Any, *, step: str, field: str, least: int, most: int, limit: str | None = None
) -> int:
    """Admit a rendered number within its bounds; `limit` names the one that `most` is."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Refusal.of("validation", step, f"{field}: {value!r:.80} is not a number") from error
    if limit is not None and found > most:
        raise Refusal.over(limit, step, f"{field}: {found} exceeds the limit of {most}")
    if not least <= found <= most:
        raise Refusal.of("validation", step, f"{field}: {found} is not within {least} and {most}")
    return found


def fanin_counters(draft: Draft, step: str) -> dict[str, Any] | None:
    """Return the outcome that a loop step's latest result carries, or None."""
    known = draft.state.steps.get(step)
    if known is None or known.result is None:
        return None
    context = known.result.context
    found = context.get("fields", {}).get("fanin")
    if found is None and context.get("shape") == carried.LOOP:
        found = context.get("data", {}).get("fanin")
    return found if isinstance(found, dict) else None


def fanin(draft: Draft, counters: Mapping[str, Any]) -> Fanin:
    """Show a loop's outcome; what its units gave is loaded when it is touched."""
    return carried.fanin(counters, find(draft))


def rows_at(draft: Draft, form: Form, reference: PayloadRef) -> list[Any]:
    """Return the items of a stored collection; raises as `find` says."""
    data = find(draft)(reference)
    return list(data) if form is Form.LIST else carried.rows(str(form), data)


def loop_result(
    results: list[Any], stats: dict[str, Any], fanin: dict[str, Any] | None = None
) -> ResultEnvelope:
    """Carry a small loop result."""
    kept = LoopResult(results=results, stats=stats, fanin=fanin)
    return ResultEnvelope(status="ok", context=carried.inline(kept))


def _refused(error: TemplateError, step: str, field: str) -> Refusal:
    return Refusal.of(error.kind, step, located(error, step=step, field=field))
