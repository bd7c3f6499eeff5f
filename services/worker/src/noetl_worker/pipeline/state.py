"""The state of one pipeline run: its names, its writes, its results."""

from collections.abc import Iterable, MutableMapping
from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, structs

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import WorkerId
from noetl_contracts.payloads import ResultEnvelope
from noetl_playbook.templates import json_render, output_forms
from noetl_playbook.templates.expressions import TemplateError
from noetl_playbook.templates.lookup import MISSING, look_up_member
from noetl_playbook.templates.repeat_bound import REPEAT_BOUND
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.views import ctx_references
from noetl_playbook.views.payload_handle import PayloadHandle
from noetl_playbook.views.result_view import (
    ResultView,
    ViewNamespace,
    find_body,
    view_pipeline,
    view_task,
)
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_worker.commands.command_context import CommandContext, build_template_error
from noetl_worker.domain.dotted_writes import NotAMapping, compute_whole_values
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result import (
    ABSENT,
    CollectionFull,
    NotAccumulable,
    StepOutputNames,
    find_value,
    select_fields,
)
from noetl_worker.domain.result_storage import ACCUMULATE_TRUNCATED
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.pipeline import parked_work
from noetl_worker.pipeline.chunk_emitter import ChunkEmitter
from noetl_worker.pipeline.collected_values import TaskCollections
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline, CompiledTask, WriteTarget
from noetl_worker.pipeline.parked_work import SavedOutput, SavedState
from noetl_worker.pipeline.result_handles import build_handle
from noetl_worker.tools.calls.call import Outcome, Transaction


class PipelineUnit(Struct, frozen=True, kw_only=True):
    """One run of a pipeline: where it stands and what it may name besides the shared names.

    `may_park` says that it may wait; `place` then tells it from other rows of its command.
    An `emitter` takes the rows of a task that streams. Rows of one frame share what is `steady`.
    """

    site: UnitScope
    fixed: dict[str, Any]
    iterators: dict[str, Any]
    ctx: MutableMapping[str, Any]
    transaction: Transaction | None = None
    may_park: bool = False
    place: str = ""
    emitter: ChunkEmitter | None = None
    steady: dict[Any, Any] | None = None


class AttemptResult(Struct, frozen=True, kw_only=True):
    """One attempt of a task whose tool has answered; `ctx_references` stores its result."""

    result: TaskResult
    view: ResultView | PayloadHandle
    error: ErrorObject | None
    kept: ResultEnvelope | None = None


class PipelineState:
    """Names and writes of one unit; nothing of it is shared with other units."""

    def __init__(
        self,
        *,
        block: CompiledPipeline,
        unit: PipelineUnit,
        context: CommandContext,
        worker_id: WorkerId,
    ) -> None:
        self.ctx = unit.ctx
        self.patch: dict[str, Any] = {}
        self.results: dict[str, TaskResult] = {}
        self.last: str | None = None
        self._previous: TaskResult | None = None
        self.notes: dict[str, None] = {}
        self.site = unit.site
        self._context = context
        self._variables: dict[str, Any] = {}
        self._views: dict[str, ResultView | PayloadHandle] = {}
        self._stored_results: dict[str, ResultEnvelope] = {}
        self._collections = TaskCollections(block.tasks)
        self._output: SavedOutput | None = None
        self._worker_id = worker_id
        self._step = block.step
        self._step_names = (
            None if block.outputs.names is None else StepOutputNames(block.outputs.names)
        )
        self._earlier = context.steps.get(block.step.step)
        self._own_step = block.step.step if block.step.step in block.mentions else None
        self._steps = dict(context.steps) if self._own_step else context.steps
        self.scope: TemplateScope = context.build_scope(
            unit.fixed,
            ctx=unit.ctx,
            variables=self._variables,
            tasks=self._views,
            iterators=unit.iterators,
            steps=self._steps,
            steady=unit.steady,
        )
        self.scope["results"] = ViewNamespace(self._views)

    def seed_collection(self) -> None:
        """Go on with what earlier runs of the step have collected; raises `PayloadNeeded`.

        Only a block written on the step collects over its runs.
        """
        names = self._step_names
        if names is None or names.manifest_name is None:
            return
        if self._step.loop is None and self._earlier is not None:
            collection = look_up_member(self._earlier, names.manifest_name)
            if collection is not MISSING:
                names.resume_from(output_forms.to_plain(collection))
        self._variables.setdefault(names.manifest_name, names.collected_value)

    def collect_step_output(self, *, is_ok: bool) -> None:
        """Add what this run of the step gives to what earlier ones gave; raises `ToolFailure`."""
        assert self._step_names is not None, "only a step that names something collects"
        try:
            self._step_names.collect_result(
                PipelineResult(tasks=self.results, last=self.last), is_ok=is_ok
            )
        except (NotAccumulable, CollectionFull) as problem:
            raise ToolFailure(self._build_collect_error(problem)) from problem
        if self._step_names.is_truncated:
            self.notes[ACCUMULATE_TRUNCATED] = None

    def build_result(self, *, is_ok: bool = True) -> PipelineResult:
        """Return what the pipeline has produced, under the names that its step gives it too."""
        pipeline_result = PipelineResult(tasks=self.results, last=self.last)
        return (
            pipeline_result
            if self._step_names is None
            else self._step_names.add_names_to(pipeline_result, is_ok=is_ok)
        )

    def save_state(self) -> SavedState:
        """Return all that was found out so far; raises `PayloadNeeded` to be called again."""
        collections = self._collections
        kept_views = self._find_variables_of(self._stored_results)
        views = {
            name: TaskResult(
                kind=value.kind,
                raw=output_forms.to_plain(value.raw),
                names=output_forms.to_plain(collections.drop_collected(value.names)),
                error=None if value.error is None else dict(value.error),
            )
            for name, value in self._variables.items()
            if isinstance(value, ResultView)
        }
        saved_collections = collections.build_saved(self._variables)
        left_out = {
            name
            for saved_collection in saved_collections.values()
            for name in saved_collection.held_in
        }
        previous = self._previous
        return SavedState(
            ctx=output_forms.to_plain(self.ctx),
            patch=output_forms.to_plain(self.patch),
            iter=self._seal_value(dict(self.scope["iter"])),
            results={
                task: collections.drop_from_result(result) for task, result in self.results.items()
            },
            last=self.last,
            previous=None if previous is None else collections.drop_from_result(previous),
            variables={
                name: self._seal_value(value)
                for name, value in self._variables.items()
                if name not in views and name not in kept_views and name not in left_out
            },
            views=views,
            kept=self._stored_results,
            kept_views=kept_views,
            collected=saved_collections,
            view_tasks=self._find_variables_of(saved_collections),
            output=None
            if self._output is None
            else structs.replace(
                self._output, result=collections.drop_from_result(self._output.result)
            ),
        )

    def _find_variables_of(self, tasks: Iterable[str]) -> dict[str, str]:
        """Find the variables that hold what one of some tasks gave, by their names."""
        return {
            name: task
            for name, value in self._variables.items()
            for task in tasks
            if value is self._views.get(task)
        }

    @property
    def task_collections(self) -> TaskCollections:
        """Return what the tasks collect over their repeats."""
        return self._collections

    def _seal_value(self, value: Any) -> Any:
        return self._context.keychain.seal_secrets(output_forms.to_plain(value), is_secret=False)

    async def restore_state(self, saved_state: SavedState, payloads: TenantPayloads) -> None:
        """Go on with what another worker had found out; raises `ToolFailure`."""
        whole_of = self._collections.restore_result
        await self._collections.load_saved(saved_state, payloads)
        self.ctx, self.patch = saved_state.ctx, saved_state.patch
        parts = structs.replace(self.scope.parts, ctx=self.ctx)
        self.scope = self.scope.extend_scope({"ctx": self.ctx}, parts=parts)
        self.scope["iter"].update(saved_state.iter)
        self.results.update(
            {task: whole_of(task, task_result) for task, task_result in saved_state.results.items()}
        )
        self._views.update({name: view_task(item) for name, item in self.results.items()})
        for name, envelope in saved_state.kept.items():
            self._stored_results[name] = envelope
            self._views[name] = self._build_handle(name, envelope, view_task(self.results[name]))
        self._variables.update(saved_state.variables)
        for name, view in saved_state.views.items():
            task = saved_state.view_tasks.get(name)
            self._variables[name] = view_task(whole_of(task, view))
        for task_name, saved_collection in saved_state.collected.items():
            shown_value = self._collections.get_shown_value(task_name)
            self._variables.update(dict.fromkeys(saved_collection.held_in, shown_value))
        self._variables.update(
            {name: self._views[task] for name, task in saved_state.kept_views.items()}
        )
        self.last = saved_state.last
        if saved_state.previous is not None:
            self._previous = whole_of(saved_state.last, saved_state.previous)
            is_kept = saved_state.last in saved_state.kept
            self.scope["_prev"] = (
                self._views[str(saved_state.last)] if is_kept else view_task(self._previous)
            )
        if saved_state.output is not None:
            result = whole_of(saved_state.output.task, saved_state.output.result)
            self._show_output(structs.replace(saved_state.output, result=result))
        if self._own_step is not None and self.results:
            self._steps[self._own_step] = view_pipeline(self.build_result())

    def _build_handle(self, task: str, envelope: ResultEnvelope, view: ResultView) -> PayloadHandle:
        site = self.site
        return build_handle(
            envelope,
            view,
            execution_id=site.execution_id,
            step=site.step,
            run=self._context.command.run_id,
            task=task,
        )

    def note_attempt(
        self,
        task: CompiledTask,
        outcome: Outcome,
        error: ErrorObject | None,
        *,
        attempt: int,
        started_at: datetime,
        duration_s: float,
    ) -> AttemptResult:
        """Make an attempt the current `output`."""
        raw = None if outcome.data is UNSET else outcome.data
        if task.kind == "noop":
            # Its result is what its templates gave, which may be a collection itself.
            raw = self._collections.copy_growing_lists(raw)
        try:
            names = self._select_names(task, raw, is_ok=error is None)
        except (NotAccumulable, CollectionFull) as problem:
            names = {}
            error = self._build_collect_error(problem, task=task.name, attempt=attempt)
        about = None if error is None else codec.to_builtins(error)
        result = TaskResult(kind=task.kind, raw=raw, names=names, error=about)
        view = self._show_output(
            SavedOutput(
                task=task.name,
                result=result,
                has_data=outcome.data is not UNSET,
                attempt=attempt,
                duration_s=duration_s,
                started_at=started_at,
                worker_id=self._worker_id,
            )
        )
        return AttemptResult(result=result, view=view, error=error)

    def _show_output(self, saved_output: SavedOutput) -> ResultView:
        """Make an attempt the current `output`, also one that another worker made."""
        self._output = saved_output
        view = view_task(saved_output.result)
        stored_view = (
            None
            if saved_output.kept is None
            else self._build_handle(saved_output.task, saved_output.kept, view)
        )
        self.scope["output"] = parked_work.build_output(saved_output, stored_view or view)
        return view

    def _build_collect_error(
        self, problem: NotAccumulable | CollectionFull, **place: Any
    ) -> ErrorObject:
        """Say that a value has no place in what is collected."""
        step = self.site.step
        if isinstance(problem, NotAccumulable):
            return build_error("schema", str(problem), step=step, **place)
        text, about = f"step '{step}': {problem}", {"setting": "max_bytes"}
        return build_error("limit", text, code=REPEAT_BOUND, step=step, details=about, **place)

    def refer_to_stored(
        self, task: CompiledTask, attempt_result: AttemptResult, envelope: ResultEnvelope
    ) -> AttemptResult:
        """Show an attempt's result, the current `output`, as what is stored."""
        view = self._build_handle(task.name, envelope, view_task(attempt_result.result))
        assert self._output is not None, "what is stored was an attempt's output before"
        self._output = structs.replace(self._output, kept=envelope)
        self.scope["output"] = parked_work.build_output(self._output, view)
        self.notes.update(dict.fromkeys(envelope.context.get("notes", ())))
        return structs.replace(attempt_result, view=view, kept=envelope)

    def _select_names(self, task: CompiledTask, raw: Any, *, is_ok: bool) -> dict[str, Any]:
        """Name what `select` and `accumulate` want kept of a result."""
        output = task.output
        if output is None:
            return {}
        body = find_body(task.kind, raw)
        names = select_fields(raw, body, output.select) if is_ok else {}
        accumulate = output.accumulate
        if accumulate is not None and accumulate.enabled:
            value = ABSENT
            if accumulate.on_success if is_ok else accumulate.on_error:
                value = find_value(raw, body, accumulate.merge_path or "")
                self._collections.note_absence(task.name, value, self.notes)
            if self._collections.add_value(task.name, output, value):
                self.notes[ACCUMULATE_TRUNCATED] = None
            shown_value = self._collections.get_shown_value(task.name)
            names[accumulate.manifest_as] = self._variables[accumulate.manifest_as] = shown_value
        return names

    def record_result(self, task: CompiledTask, attempt_result: AttemptResult) -> None:
        """Make an attempt the task's result; one that succeeded is the pipeline's latest."""
        self.results.pop(task.name, None)
        self.results[task.name] = attempt_result.result
        self._views.pop(task.name, None)
        self._views[task.name] = attempt_result.view
        if task.is_kept:
            self._stored_results.pop(task.name, None)
            if attempt_result.kept is not None:
                self._stored_results[task.name] = attempt_result.kept
        if attempt_result.error is None:
            self.last, self._previous = task.name, attempt_result.result
            self.scope["_prev"] = attempt_result.view
        if task.output is not None and task.output.as_ is not None:
            self._variables[task.output.as_] = attempt_result.view
        if self._own_step is not None:
            self._steps[self._own_step] = view_pipeline(self.build_result())

    def write_task_set(self, task: CompiledTask, attempt_result: AttemptResult) -> None:
        """Apply a task's own `set`, which sees its raw result as `output`."""
        if not task.set:
            return
        envelope = self.scope["output"]
        self.scope["output"] = attempt_result.view
        try:
            self.write_targets(task.set, task)
        finally:
            self.scope["output"] = envelope

    def write_targets(self, targets: tuple[WriteTarget, ...], task: CompiledTask) -> None:
        """Render a `set` block against the state before it, then apply it as a whole."""
        if not targets:
            return
        values = [self._render_value(target, task) for target in targets]
        # All that can fail, or must be loaded, comes before anything is written.
        if [target for target in targets if target.path[1:]]:
            values = self._compute_whole_values(targets, values, task)
        for target, value in zip(targets, values, strict=True):
            match target.room:
                case "variable":
                    self._variables[target.path[0]] = value
                case "iter":
                    self.scope["iter"][target.path[0]] = value
                case "ctx":
                    self._write_ctx(target.path[0], value)

    def _compute_whole_values(
        self, targets: tuple[WriteTarget, ...], values: list[Any], task: CompiledTask
    ) -> list[Any]:
        """Return what each target's top-level name holds afterwards; raises `ToolFailure`.

        Raises `PayloadNeeded` for a value before it that is not loaded.
        """
        rooms = {"variable": self._variables, "iter": self.scope["iter"], "ctx": self.ctx}
        try:
            return compute_whole_values(
                targets,
                values,
                before=lambda write_target: rooms[write_target.room].get(write_target.path[0], {}),
            )
        except NotAMapping as problem:
            step = self.site.step
            text = f"step '{step}', task '{task.name}', field 'set.{problem.target}': {problem}"
            error_object = build_error("validation", text, step=step, task=task.name)
            raise ToolFailure(error_object) from problem

    def _render_value(self, target: WriteTarget, task: CompiledTask) -> Any:
        render = target.value.render if target.room == "ctx" else target.value.evaluate
        try:
            value = self._collections.copy_growing_lists(render(self.scope))
            if target.room == "ctx":
                # A value of `ctx` may hold `ctx` itself, and all that JSON does not keep.
                value = json_render.keep_as_json(value, target.value.source)
        except TemplateError as error:
            field = f"set.{target.key}"
            raise ToolFailure(
                build_template_error(error, step=self.site.step, task=task.name, field=field)
            ) from error
        if target.room != "ctx":
            return value
        # What is written to state leaves the worker: it must not carry a secret in the clear.
        return self._context.keychain.seal_secrets(value, is_secret=target.is_secret)

    def _write_ctx(self, name: str, value: Any) -> None:
        """Write to this unit's own copy of `ctx`, and to the patch that it hands in."""
        if not self.patch:
            self.ctx = ctx_references.overlay_ctx(self.ctx, {})
            parts = structs.replace(self.scope.parts, ctx=self.ctx)
            self.scope = self.scope.extend_scope({"ctx": self.ctx}, parts=parts)
        self.ctx[name] = self.patch[name] = value
