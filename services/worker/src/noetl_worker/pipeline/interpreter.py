"""The one interpreter of a step's pipeline: attempts, rules, jumps, results."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import structlog
from msgspec import UNSET, Struct, UnsetType, structs

from noetl_contracts.commands.state_values import ProposedState
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.commands.waits import ELAPSED, STOPPED, TIMED_OUT
from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_playbook.model.playbook import Output
from noetl_playbook.views.payload_handle import NeededForRender
from noetl_playbook.views.results import PipelineResult
from noetl_worker.commands import call_pacer
from noetl_worker.commands.call_pacer import CompiledLimit
from noetl_worker.commands.command_context import CommandContext
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.failures import ToolFailure, build_broken_text_error, build_error
from noetl_worker.pipeline import chunk_emitter, parked_work, task_waits
from noetl_worker.pipeline.attempt import (
    INPUT,
    attach_observers,
    render_call,
    store_task_output,
    verify_outcome,
)
from noetl_worker.pipeline.attempt_records import (
    list_failed_tries,
    record_failed_try,
    record_metrics,
)
from noetl_worker.pipeline.checkpoints import CheckpointWriter, is_resumable
from noetl_worker.pipeline.compiled_tasks import CompiledAction, CompiledPipeline, CompiledTask
from noetl_worker.pipeline.increment_cursor import find_increment_cursor
from noetl_worker.pipeline.output_blocks import render_output
from noetl_worker.pipeline.parked_work import (
    PipelineHalted,
    PipelineParked,
    PipelinePosition,
    ResumedPipeline,
    SavedPipeline,
)
from noetl_worker.pipeline.state import AttemptResult, PipelineState, PipelineUnit
from noetl_worker.pipeline.task_rules import RuleLimits, TaskRules
from noetl_worker.pipeline.task_waits import TimeWaits
from noetl_worker.tools.calls.call import Call, Outcome

T = TypeVar("T")

JUMPS_MAX = 100_000

log = structlog.get_logger(__name__)


class PipelineEnd(Struct, frozen=True, kw_only=True):
    """How a pipeline ended; `patch` holds its writes to `ctx`, also when it failed.

    `state` is how far it has read increments.
    """

    result: PipelineResult
    error: ErrorObject | None
    patch: dict[str, Any]
    notes: list[str] = []
    tries: list[FailedTry] = []
    metrics: MetricsByTask = {}
    state: ProposedState | UnsetType = UNSET


class Pipeline:
    """Interprets one block for one unit."""

    def __init__(
        self,
        *,
        block: CompiledPipeline,
        unit: PipelineUnit,
        context: CommandContext,
        services: CommandServices,
    ) -> None:
        self._block = block
        self._unit = unit
        self._context = context
        self._bounds = RuleLimits(context.command.limits, step=unit.site.step)
        self._services = services
        self._scratch = PipelineState(
            block=block, unit=unit, context=context, worker_id=services.worker_id
        )
        self._rules = TaskRules(bounds=self._bounds, scratch=self._scratch, site=unit.site)
        self._waits = TimeWaits(
            clock=services.clock,
            held_s=services.held_wait_s,
            is_parkable=unit.may_park and services.may_park,
            emitter=unit.emitter,
            step=unit.site.step,
            place=unit.place,
        )
        self._checkpoints = CheckpointWriter(
            command=context.command,
            services=services,
            is_wanted=is_resumable(unit) and services.may_park,
        )
        self._notes: set[str] = set()
        self._increment = find_increment_cursor(context.command, block.step)
        self._walk = PipelinePosition(visits=[0] * len(block.tasks))
        self._resumed: ResumedPipeline | None = None
        self._waited_s = 0.0

    async def run(self, resumed: ResumedPipeline | None = None) -> PipelineEnd:
        """Run the tasks to the pipeline's end; raises `PipelineParked` when a task waits."""
        scratch = self._scratch
        if resumed is not None:
            await scratch.restore_state(resumed.saved.scratch, self._services.payloads)
            self._walk = resumed.saved.walk
            notes = scratch.task_collections.restore_nothing_collected_note(
                resumed.saved.notes, scratch.notes
            )
            self._notes.update(notes)
            # After a wait for nothing but time no attempt is under way.
            self._resumed = None if resumed.status == ELAPSED else resumed
        error: ErrorObject | None = None
        try:
            await self._run_tasks()
        except ToolFailure as failure:
            error = self._locate_error(failure.error)
        if self._block.outputs.names is not None:
            try:
                scratch.collect_step_output(is_ok=error is None)
            except ToolFailure as failure:
                error = error or failure.error
        return PipelineEnd(
            result=scratch.build_result(is_ok=error is None),
            error=error,
            patch=scratch.patch,
            notes=sorted({*self._notes, *scratch.notes}),
            tries=self._walk.tries,
            metrics=self._walk.metrics,
            state=UNSET if self._increment is None else self._increment.build_proposal(self._walk),
        )

    async def render_step_output(self, end: PipelineEnd) -> Output | None:
        """Return how the step's result is to be kept; raises `ToolFailure`."""
        output, scope = self._block.outputs.get_block(end.result), self._scratch.scope
        return await self._render_loading(
            lambda: render_output(output, scope, step=self._unit.site.step)
        )

    async def build_saved(self) -> SavedPipeline:
        """Return the pipeline as another worker takes it up; raises `ToolFailure`."""
        await self._scratch.task_collections.store_chunks(self._services)
        return SavedPipeline(
            walk=self._walk,
            scratch=await self._render_loading(self._scratch.save_state),
            attempt=self._context.command.attempt,
            notes=sorted({*self._notes, *self._scratch.notes}),
        )

    async def _run_tasks(self) -> None:
        walk, tasks = self._walk, self._block.tasks
        jumps_max = self._bounds.get_limit("max_jumps", JUMPS_MAX)
        await self._render_loading(self._scratch.seed_collection)
        while walk.position < len(tasks):
            if self._resumed is None and not walk.is_between_tries:
                walk.visits[walk.position] += 1
                walk.attempt = 0
            position, task = walk.position, tasks[walk.position]
            action, wait_s = await self._run_task(task)
            if action is None or action.do == "continue":
                walk.position += 1
                if wait_s:
                    await self._waits.pause_for(wait_s, task, walk, "continue")
            elif action.do == "break":
                return
            else:
                walk.jumps += 1
                if walk.jumps > jumps_max:
                    text = f"step '{self._unit.site.step}' jumped more than {jumps_max} times"
                    about = {"step": self._unit.site.step, "task": task.name}
                    raise ToolFailure(build_error("limit", text, code="max_jumps", **about))
                walk.position = action.to
                await self._waits.pause_for(wait_s, task, walk, "jump")
                if action.to <= position:
                    await self._checkpoints.count_jump(self.build_saved)

    async def _run_task(self, task: CompiledTask) -> tuple[CompiledAction | None, float]:
        """Try a task until the pipeline may go on, after a wait; raises `ToolFailure` if never."""
        walk = self._walk
        while True:
            if self._resumed is None:
                walk.attempt += 1
                walk.is_between_tries = False
            attempt = walk.attempt
            attempt_result = await self._try_task(task, attempt)
            action, is_exhausted = await self._render_loading(
                partial(self._choose_action, task, attempt_result)
            )
            if task.bounds:
                note = await self._render_loading(
                    partial(self._rules.find_bound_note, task, action)
                )
                self._notes.update(() if note is None else (note,))
            if action is None:
                self._check_unmatched(task, attempt_result, attempt, is_exhausted=is_exhausted)
                await self._record_and_write(task, attempt_result, None)
                return None, 0.0
            wait_s = partial(
                self._rules.compute_wait_s, action, task, attempt_result, attempt=attempt
            )
            if action.do == "retry":
                await self._render_loading(partial(self._scratch.write_targets, action.set, task))
                walk.is_between_tries = True
                if attempt_result.error is not None:
                    now = self._services.clock.now()
                    record_failed_try(walk, task.name, attempt_result.error, now=now)
                await self._waits.pause_for(await self._render_loading(wait_s), task, walk, "retry")
                continue
            await self._record_and_write(task, attempt_result, action)
            if action.do == "fail":
                error = attempt_result.error
                if error is None:
                    error = await self._render_loading(
                        partial(self._rules.build_refusal, action, task)
                    )
                raise ToolFailure(self._locate_error(error, task, attempt))
            return action, await self._render_loading(wait_s)

    async def _try_task(self, task: CompiledTask, attempt: int) -> AttemptResult:
        """Run one attempt, or end the one that waited; make its outcome the current `output`."""
        clock = self._services.clock
        if (lease := self._services.lease) is not None:
            await lease.stop_when_over()
        started_s = clock.monotonic_s()
        if self._resumed is None:
            self._waited_s = 0.0
            started_at = self._walk.started_at = clock.now()
            outcome = await self._attempt_call(task, attempt)
            duration_s = clock.monotonic_s() - started_s - self._waited_s
        else:
            started_at = self._walk.started_at or clock.now()
            outcome = await self._end_wait(task, attempt, self._resumed)
            # Another worker began it: only the clocks on the wall tell how long it took.
            duration_s = max(0.0, (clock.now() - started_at).total_seconds())
        if self._increment is not None:
            payloads = self._services.payloads
            outcome = await self._increment.read_outcome(task, outcome, self._walk, payloads)
        record_metrics(self._walk, task, outcome, duration_s=duration_s, mask=self._services.mask)
        error = None
        if outcome.error is not None:
            error = self._locate_error(self._services.mask.mask_error(outcome.error), task, attempt)
        attempt_result = self._scratch.note_attempt(
            task,
            outcome,
            error,
            attempt=attempt,
            started_at=started_at,
            duration_s=duration_s,
        )
        if task.is_kept and attempt_result.error is None:
            attempt_result = await store_task_output(
                task,
                attempt_result,
                scratch=self._scratch,
                services=self._services,
                loading=self._render_loading,
            )
        return attempt_result

    async def _end_wait(
        self, task: CompiledTask, attempt: int, resumed: ResumedPipeline
    ) -> Outcome:
        """Take the outcome of a wait for the tool's, under the names of its attempt."""
        self._resumed = None
        names = self._scratch.scope
        names["_task"], names["_attempt"] = task.name, attempt
        names[INPUT] = self._walk.input
        wait, outcome = self._walk.wait, resumed.outcome
        if wait is not None:
            if resumed.status in (TIMED_OUT, STOPPED):
                await self._cancel_submitted(task, attempt)
            if resumed.status == STOPPED:
                raise PipelineHalted
            outcome = task_waits.build_outcome(wait, resumed.status, outcome, self._walk.submitted)
        return verify_outcome(task, outcome)

    async def _attempt_call(self, task: CompiledTask, attempt: int) -> Outcome:
        try:
            if task.kind == parked_work.EXTERNAL:
                await self._name_answer_address(task, attempt)
            call = await self._prepare_call(task, attempt)
            if task.rate_limit is not None:
                call = await self._wait_for_pace(task, task.rate_limit, call)
            if task.kind in parked_work.KINDS:
                await self._park_task(task, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        try:
            if self._unit.emitter is None:
                outcome = await self._services.tools.run(call)
            else:
                outcome = await chunk_emitter.run_streaming_call(
                    call, self._unit.emitter, self._services
                )
        except UnicodeEncodeError:
            return Outcome(error=build_broken_text_error())
        if task.shows_secrets:
            # Its result is a rendered field, not data that a short secret could be a part of.
            return structs.replace(outcome, data=self._services.mask.mask_value(outcome.data))
        return verify_outcome(task, outcome)

    async def _wait_for_pace(self, task: CompiledTask, limit: CompiledLimit, call: Call) -> Call:
        """Wait until a call may go; one that has grown old meanwhile is rendered again."""
        step, scope = self._unit.site.step, self._scratch.scope
        call_limit = await self._render_loading(
            lambda: call_pacer.render_limit(limit, scope, step, task.name)
        )
        try:
            self._waited_s = await self._services.pacer.wait_for_turn(
                call_limit, self._context.command, may_leave=self._waits.may_park
            )
        except call_pacer.LongWait as wait:
            # The attempt has not begun: it is made when the time has come.
            self._walk.attempt -= 1
            self._walk.is_between_tries = True
            self._waits.leave_worker(wait.seconds, task, self._walk, "rate_limit")
        is_old = self._waited_s > call_pacer.HORIZON_S
        return await self._prepare_call(task, call.attempt) if is_old else call

    async def _prepare_call(self, task: CompiledTask, attempt: int) -> Call:
        call = await self._render_loading(
            partial(
                render_call,
                task,
                unit=self._unit,
                scratch=self._scratch,
                context=self._context,
                attempt=attempt,
                visit=self._walk.visits[self._walk.position],
            )
        )
        call = attach_observers(call, self._services)
        return call if self._increment is None else self._increment.prepare_call(call)

    async def _park_task(self, task: CompiledTask, call: Call) -> None:
        """Let the pipeline wait: raises `PipelineParked`, or `ToolFailure` when it cannot."""
        if not self._unit.may_park:
            raise ToolFailure(parked_work.build_cannot_wait_error(task.kind))
        walk = self._walk
        # The input was opened for the tool; what is kept is sealed again.
        walk.input = self._context.keychain.seal_secrets(call.input, is_secret=False)
        walk.wait, walk.submitted = None, None
        key = parked_work.build_wait_key(
            task.name, visit=call.visit, attempt=call.attempt, place=self._unit.place
        )
        if task.kind == parked_work.PLAYBOOK:
            raise PipelineParked(await parked_work.build_child_wait(call, self._services, key=key))
        mask = self._services.mask
        masked_call = structs.replace(
            call, input=mask.mask_value(call.input), fields=mask.mask_value(call.fields)
        )
        walk.wait = task_waits.build_message_wait(
            masked_call,
            key=key,
            command_id=self._context.command.command_id,
            names=self._scratch.scope,
            cancels=task.cancel is not None,
        )
        if task.submit is not None:
            submitted_outcome = await self._services.tools.run(
                await self._prepare_call(task.submit, call.attempt)
            )
            if submitted_outcome.error is not None:
                raise ToolFailure(submitted_outcome.error)
            walk.submitted = submitted_outcome.data
        raise PipelineParked(walk.wait)

    async def _name_answer_address(self, task: CompiledTask, attempt: int) -> None:
        """Give the templates of an `task_waits` task the names of its answer's address."""
        await self._render_loading(
            lambda: task_waits.name_answer_address(
                task,
                names=self._scratch.scope,
                context=self._context,
                services=self._services,
                unit=self._unit.site.unit,
                place=self._unit.place,
                attempt=attempt,
                visit=self._walk.visits[self._walk.position],
            )
        )

    async def _cancel_submitted(self, task: CompiledTask, attempt: int) -> None:
        """Run the task that calls off what was submitted; its own failure changes nothing."""
        if task.cancel is None:
            return
        names = self._scratch.scope
        names["submitted"] = self._walk.submitted
        try:
            await self._name_answer_address(task, attempt)
            outcome = await self._services.tools.run(await self._prepare_call(task.cancel, attempt))
            error = outcome.error
        except ToolFailure as problem:
            error = problem.error
        if error is not None:
            log.warning(
                "external work not cancelled",
                task=task.name,
                reason=self._services.mask.mask_text(error.message),
            )
        names["_task"], names[INPUT] = task.name, self._walk.input

    def _choose_action(
        self, task: CompiledTask, attempt_result: AttemptResult
    ) -> tuple[CompiledAction | None, bool]:
        """Return what follows an attempt, and whether it has used up its tries."""
        rules = task.rules_of_success if attempt_result.error is None else task.rules
        if not rules:
            return None, False
        choice = self._rules.choose_rule(rules, task, attempt=self._walk.attempt)
        action = None if choice.index is None else rules[choice.index].action
        return action, choice.is_exhausted

    def _check_unmatched(
        self, task: CompiledTask, attempt_result: AttemptResult, attempt: int, *, is_exhausted: bool
    ) -> None:
        """Let an attempt pass that no rule decides, or fail the pipeline with it."""
        passes = attempt_result.error is None if task.on_unmatched == "default" else True
        if passes and task.on_unmatched != "fail" and not is_exhausted:
            return
        self._scratch.record_result(task, attempt_result)
        text = f"task '{task.name}' was tried {attempt} times and no rule lets it pass"
        raise ToolFailure(
            attempt_result.error or self._locate_error(build_error("policy", text), task, attempt)
        )

    async def _record_and_write(
        self, task: CompiledTask, attempt_result: AttemptResult, action: CompiledAction | None
    ) -> None:
        """Record a task's result and apply its writes, then the rule's."""
        scratch = self._scratch
        scratch.record_result(task, attempt_result)
        if task.set and (action is None or action.do != "fail"):
            await self._render_loading(lambda: scratch.write_task_set(task, attempt_result))
        if action is not None and action.set:
            await self._render_loading(lambda: scratch.write_targets(action.set, task))

    def _locate_error(
        self, error: ErrorObject, task: CompiledTask | None = None, attempt: int | None = None
    ) -> ErrorObject:
        """Say in which step, task and attempt an error happened."""
        return structs.replace(
            error,
            step=error.step or self._unit.site.step,
            task=error.task or (task.name if task is not None else None),
            attempt=error.attempt or attempt,
            tries=error.tries or list_failed_tries(self._walk, task.name if task else None),
        )

    async def _render_loading(self, render: Callable[[], T]) -> T:
        try:
            return render()
        except NeededForRender:
            return await self._context.render_with_loads(render, self._services.payloads)
