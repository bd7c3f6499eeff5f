"""The state of one pipeline run: its names, its writes, its results."""

from collections.abc import Mapping, MutableMapping
from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, structs

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import WorkerId
from noetl_playbook import forms, kept
from noetl_playbook.envelope import Output
from noetl_playbook.expressions import TemplateError
from noetl_playbook.lookup import MISSING, member
from noetl_playbook.results import PipelineResult, TaskResult
from noetl_playbook.scope import Scope
from noetl_playbook.views import ResultView, Views, body_of, pipeline_view, task_view
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.result import Collection, NotAccumulable, at_path, selected
from noetl_worker.domain.sites import Site
from noetl_worker.domain.storing import ACCUMULATE_TRUNCATED
from noetl_worker.lanes.block import Block, CompiledTask, Target
from noetl_worker.lanes.emitting import Emitter
from noetl_worker.lanes.parking import SavedScratch
from noetl_worker.lanes.unit import Surrounding, template_failure
from noetl_worker.tools.call import Outcome, Transaction


class Unit(Struct, frozen=True, kw_only=True):
    """One run of a pipeline: where it stands and what it may name besides the shared names.

    `may_park` says that it may wait; `place` then tells it from other rows of its command.
    An `emitter` takes the rows of a task that streams. Rows of one frame share what is `steady`.
    """

    site: Site
    fixed: dict[str, Any]
    iterators: dict[str, Any]
    ctx: MutableMapping[str, Any]
    transaction: Transaction | None = None
    may_park: bool = False
    place: str = ""
    emitter: Emitter | None = None
    steady: dict[Any, Any] | None = None


class Tried(Struct, frozen=True, kw_only=True):
    """One attempt of a task, after its tool has answered."""

    result: TaskResult
    view: ResultView
    error: ErrorObject | None


class Scratch:
    """Names and writes of one unit; nothing of it is shared with other units."""

    def __init__(
        self, *, block: Block, unit: Unit, surrounding: Surrounding, worker_id: WorkerId
    ) -> None:
        self.ctx = unit.ctx
        self.patch: dict[str, Any] = {}
        self.results: dict[str, TaskResult] = {}
        self.last: str | None = None
        self._previous: TaskResult | None = None
        self.notes: dict[str, None] = {}
        self._site = unit.site
        self._keychain = surrounding.keychain
        self._variables: dict[str, Any] = {}
        self._views: dict[str, ResultView] = {}
        self._collections: dict[str, Collection] = {}
        self._worker_id = worker_id
        self._step = block.step
        self._earlier = surrounding.steps.get(block.step.step)
        self._own = block.step.step if block.step.step in block.mentions else None
        self._steps = dict(surrounding.steps) if self._own else surrounding.steps
        self.scope: Scope = surrounding.scope(
            unit.fixed,
            ctx=unit.ctx,
            variables=self._variables,
            tasks=self._views,
            iterators=unit.iterators,
            steps=self._steps,
            steady=unit.steady,
        )
        self.scope["results"] = Views(self._views)

    def seed(self) -> None:
        """Go on with what earlier runs of the step have collected; raises `PayloadNeeded`.

        Only a block written on the step collects over its runs, and its last task carries it.
        """
        output, task = self._step.output, self._step.tool[-1]
        if output is None or output.accumulate is None or task.output is not None:
            return
        if self._step.loop is not None or self._earlier is None or task.name in self._collections:
            return
        found = member(self._earlier, output.accumulate.manifest_as)
        if found is not MISSING:
            self._collections[task.name] = Collection(forms.plain(found))

    def result(self) -> PipelineResult:
        """Return what the pipeline has produced."""
        return PipelineResult(tasks=self.results, last=self.last)

    def save(self) -> SavedScratch:
        """Return all that was found out so far; raises `PayloadNeeded` to be called again."""
        views = {
            name: TaskResult(
                kind=value.kind,
                raw=forms.plain(value.raw),
                names=forms.plain(dict(value.names)),
                error=None if value.error is None else dict(value.error),
            )
            for name, value in self._variables.items()
            if isinstance(value, ResultView)
        }
        return SavedScratch(
            ctx=forms.plain(self.ctx),
            patch=forms.plain(self.patch),
            iter=self._sealed(dict(self.scope["iter"])),
            results=self.results,
            last=self.last,
            previous=self._previous,
            variables={
                name: self._sealed(value)
                for name, value in self._variables.items()
                if name not in views
            },
            views=views,
            collections={name: one.value for name, one in self._collections.items()},
        )

    def _sealed(self, value: Any) -> Any:
        return self._keychain.kept_safe(forms.plain(value), is_secret=False)

    def restore(self, saved: SavedScratch) -> None:
        """Go on with what another worker had found out."""
        self.ctx, self.patch = saved.ctx, saved.patch
        parts = structs.replace(self.scope.parts, ctx=self.ctx)
        self.scope = self.scope.extended({"ctx": self.ctx}, parts=parts)
        self.scope["iter"].update(saved.iter)
        self.results.update(saved.results)
        self._views.update({name: task_view(one) for name, one in saved.results.items()})
        self._variables.update(saved.variables)
        self._variables.update({name: task_view(one) for name, one in saved.views.items()})
        self.last, self._previous = saved.last, saved.previous
        if saved.previous is not None:
            self.scope["_prev"] = task_view(saved.previous)
        for name, value in saved.collections.items():
            self._collections[name] = Collection(value)
        if self._own is not None and self.results:
            self._steps[self._own] = pipeline_view(self.result())

    def note(
        self,
        task: CompiledTask,
        outcome: Outcome,
        error: ErrorObject | None,
        *,
        attempt: int,
        started_at: datetime,
        duration_s: float,
    ) -> Tried:
        """Make an attempt the current `output`."""
        raw = None if outcome.data is UNSET else outcome.data
        try:
            names = self._names(task, raw, is_ok=error is None)
        except NotAccumulable as problem:
            names = {}
            error = failure(
                "schema", str(problem), step=self._site.step, task=task.name, attempt=attempt
            )
        about = None if error is None else codec.builtins(error)
        result = TaskResult(kind=task.kind, raw=raw, names=names, error=about)
        view = task_view(result)
        self.scope["output"] = Output(
            MISSING if outcome.data is UNSET else view,
            kind=task.kind,
            error=about,
            meta={
                "attempt": attempt,
                "attempts_total": attempt,
                "duration_ms": duration_s * 1000,
                "started_at": started_at,
                "worker_id": self._worker_id,
            },
        )
        return Tried(result=result, view=view, error=error)

    def _names(self, task: CompiledTask, raw: Any, *, is_ok: bool) -> dict[str, Any]:
        """Name what `select` and `accumulate` want kept of a result."""
        output = task.output
        if output is None:
            return {}
        body = body_of(task.kind, raw)
        names = selected(raw, body, output.select) if is_ok else {}
        how = output.accumulate
        if how is not None and how.enabled:
            collection = self._collections.setdefault(task.name, Collection())
            if how.on_success if is_ok else how.on_error:
                source = raw if body is None else body
                collection.add(output, at_path(source, how.merge_path or ""))
            if collection.is_truncated:
                self.notes[ACCUMULATE_TRUNCATED] = None
            names[how.manifest_as] = collection.value if collection.value is not None else []
            self._variables[how.manifest_as] = names[how.manifest_as]
        return names

    def record(self, task: CompiledTask, tried: Tried) -> None:
        """Make an attempt the task's result; one that succeeded is the pipeline's latest."""
        self.results.pop(task.name, None)
        self.results[task.name] = tried.result
        self._views.pop(task.name, None)
        self._views[task.name] = tried.view
        if tried.error is None:
            self.last, self._previous = task.name, tried.result
            self.scope["_prev"] = tried.view
        if task.output is not None and task.output.as_ is not None:
            self._variables[task.output.as_] = tried.view
        if self._own is not None:
            self._steps[self._own] = pipeline_view(self.result())

    def write_own(self, task: CompiledTask, tried: Tried) -> None:
        """Apply a task's own `set`, which sees its raw result as `output`."""
        if not task.set:
            return
        envelope = self.scope["output"]
        self.scope["output"] = tried.view
        try:
            self.write(task.set, task)
        finally:
            self.scope["output"] = envelope

    def write(self, targets: tuple[Target, ...], task: CompiledTask) -> None:
        """Render a `set` block against the state before it, then apply it as a whole."""
        if not targets:
            return
        values = [self._value(target, task) for target in targets]
        below = {target.path[0] for target in targets if target.room == "ctx" and target.path[1:]}
        # All that must be loaded is, before anything is written.
        whole = {name: forms.plain(self.ctx[name]) for name in below if name in self.ctx}
        for target, value in zip(targets, values, strict=True):
            match target.room:
                case "variable":
                    _write(self._variables, target.path, value)
                case "iter":
                    _write(self.scope["iter"], target.path, value)
                case "ctx":
                    self._write_ctx(target.path, value, whole)

    def _value(self, target: Target, task: CompiledTask) -> Any:
        render = target.value.render if target.room == "ctx" else target.value.evaluate
        try:
            value = render(self.scope)
        except TemplateError as error:
            field = f"set.{target.key}"
            raise ToolFailure(
                template_failure(error, step=self._site.step, task=task.name, field=field)
            ) from error
        if target.room != "ctx":
            return value
        # What is written to state leaves the worker: it must not carry a secret in the clear.
        return self._keychain.kept_safe(value, is_secret=target.is_secret)

    def _write_ctx(self, path: tuple[str, ...], value: Any, whole: dict[str, Any]) -> None:
        """Write to this unit's own copy of `ctx`, and to the patch that it hands in.

        `whole` holds the values of before into which is written.
        """
        if not self.patch:
            self.ctx = kept.overlaid(self.ctx, {})
            parts = structs.replace(self.scope.parts, ctx=self.ctx)
            self.scope = self.scope.extended({"ctx": self.ctx}, parts=parts)
        if path[0] in whole:
            self.ctx[path[0]] = whole.pop(path[0])
        _write(self.ctx, path, value)
        self.patch[path[0]] = self.ctx[path[0]]


def _write(room: MutableMapping[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Write at a dotted path; the mappings on the way are copied, not shared."""
    top, *rest = path
    room[top] = _within(room.get(top) if rest else None, rest, value)


def _within(base: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    branch = dict(base) if isinstance(base, Mapping) else {}
    branch[path[0]] = _within(branch.get(path[0]), path[1:], value)
    return branch
