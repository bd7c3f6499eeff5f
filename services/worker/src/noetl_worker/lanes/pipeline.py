"""The one interpreter of a step's pipeline: attempts, rules, jumps, results."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import structlog
from msgspec import Struct, structs

from noetl_contracts.errors import ErrorObject
from noetl_contracts.parking import STOPPED, TIMED_OUT
from noetl_playbook.expressions import TemplateError
from noetl_playbook.handles import Needed
from noetl_playbook.model import Output
from noetl_playbook.repeats import NOTE as REPEAT_BOUND
from noetl_playbook.results import PipelineResult
from noetl_worker.domain import outcome as decisions
from noetl_worker.domain.failures import ToolFailure, failure, not_a_text
from noetl_worker.domain.outcome import Choice
from noetl_worker.lanes import emitting, external, pacing, parking
from noetl_worker.lanes.attempt import INPUT, checked, prepare
from noetl_worker.lanes.block import Block, CompiledAction, CompiledRule, CompiledTask
from noetl_worker.lanes.bounds import Bounds
from noetl_worker.lanes.counting import count_call
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.kept_results import kept
from noetl_worker.lanes.output_blocks import rendered
from noetl_worker.lanes.pacing import CompiledLimit
from noetl_worker.lanes.parking import Halted, Parked, Resumed, Saved, Walk
from noetl_worker.lanes.scratch import Scratch, Tried, Unit
from noetl_worker.lanes.unit import Surrounding, template_failure
from noetl_worker.tools.call import Call, Outcome

T = TypeVar("T")

JUMPS_MAX = 100_000

log = structlog.get_logger(__name__)
_NO_RULES = Choice(index=None)


class PipelineEnd(Struct, frozen=True, kw_only=True):
    """How a pipeline ended; `patch` holds its writes to `ctx`, also when it failed."""

    result: PipelineResult
    error: ErrorObject | None
    patch: dict[str, Any]
    notes: list[str] = []


class Pipeline:
    """Interprets one block for one unit."""

    def __init__(self, *, block: Block, unit: Unit, surrounding: Surrounding, hands: Hands) -> None:
        self._block = block
        self._unit = unit
        self._surrounding = surrounding
        self._bounds = Bounds(surrounding.command.limits, step=unit.site.step)
        self._hands = hands
        self._scratch = Scratch(
            block=block, unit=unit, surrounding=surrounding, worker_id=hands.worker_id
        )
        self._notes: set[str] = set()
        self._walk = Walk(visits=[0] * len(block.tasks))
        self._resumed: Resumed | None = None
        self._waited_s = 0.0

    async def run(self, resumed: Resumed | None = None) -> PipelineEnd:
        """Run the tasks to the pipeline's end; raises `Parked` when a task waits."""
        if resumed is not None:
            self._scratch.restore(resumed.saved.scratch)
            self._walk, self._resumed = resumed.saved.walk, resumed
        scratch = self._scratch
        error: ErrorObject | None = None
        try:
            await self._run_tasks()
        except ToolFailure as failed:
            error = self._placed(failed.error)
        if self._block.outputs.names is not None:
            try:
                scratch.collect(is_ok=error is None)
            except ToolFailure as failed:
                error = error or failed.error
        return PipelineEnd(
            result=scratch.result(is_ok=error is None),
            error=error,
            patch=scratch.patch,
            notes=sorted({*self._notes, *scratch.notes}),
        )

    async def output_of(self, end: PipelineEnd) -> Output | None:
        """Return how the step's result is to be kept; raises `ToolFailure`."""
        output, scope = self._block.outputs.of(end.result), self._scratch.scope
        return await self._loading(lambda: rendered(output, scope, step=self._unit.site.step))

    async def saved(self) -> Saved:
        """Return the parked pipeline as another worker takes it up."""
        return Saved(walk=self._walk, scratch=await self._loading(self._scratch.save))

    async def _run_tasks(self) -> None:
        walk, tasks = self._walk, self._block.tasks
        jumps_max = self._bounds.limit("max_jumps", JUMPS_MAX)
        await self._loading(self._scratch.seed)
        while walk.position < len(tasks):
            if self._resumed is None:
                walk.visits[walk.position] += 1
                walk.attempt = 0
            task = tasks[walk.position]
            action = await self._run_task(task)
            if action is None or action.do == "continue":
                walk.position += 1
            elif action.do == "break":
                return
            else:
                walk.jumps += 1
                if walk.jumps > jumps_max:
                    text = f"step '{self._unit.site.step}' jumped more than {jumps_max} times"
                    about = {"step": self._unit.site.step, "task": task.name}
                    raise ToolFailure(failure("limit", text, code="max_jumps", **about))
                await self._pause(
                    await self._loading(lambda: self._jump_wait_s(action, task))  # noqa: B023 - called at once
                )
                walk.position = action.to

    async def _run_task(self, task: CompiledTask) -> CompiledAction | None:
        """Try a task until the pipeline may go on; raises `ToolFailure` when it may not."""
        while True:
            if self._resumed is None:
                self._walk.attempt += 1
            attempt = self._walk.attempt
            tried = await self._try(task, attempt)
            rules = task.rules_of_success if tried.error is None else task.rules
            choice = _NO_RULES
            if rules:
                choice = await self._loading(lambda: self._choose(rules, task, attempt))  # noqa: B023 - called at once
            action = None if choice.index is None else rules[choice.index].action
            if task.bounds:
                await self._loading(lambda: self._note_bound(task, action))  # noqa: B023 - called at once
            if action is None:
                self._check_unmatched(task, tried, attempt, choice)
                await self._finish(task, tried, None)
                return None
            if action.do == "retry":
                await self._loading(lambda: self._scratch.write(action.set, task))  # noqa: B023 - called at once
                await self._pause(
                    await self._loading(lambda: self._retry_wait_s(action, task, tried, attempt))  # noqa: B023 - called at once
                )
                continue
            await self._finish(task, tried, action)
            if action.do == "fail":
                error = tried.error
                if error is None:
                    error = await self._loading(lambda: self._refusal(action, task, attempt))  # noqa: B023 - called at once
                raise ToolFailure(error)
            return action

    async def _try(self, task: CompiledTask, attempt: int) -> Tried:
        """Run one attempt, or end the one that waited; make its outcome the current `output`."""
        clock = self._hands.clock
        started = clock.monotonic()
        if self._resumed is None:
            self._waited_s = 0.0
            started_at = self._walk.started_at = clock.now()
            outcome = await self._attempt(task, attempt)
            duration_s = clock.monotonic() - started - self._waited_s
        else:
            started_at = self._walk.started_at or clock.now()
            outcome = await self._end_wait(task, attempt, self._resumed)
            # Another worker began it: only the clocks on the wall tell how long it took.
            duration_s = max(0.0, (clock.now() - started_at).total_seconds())
        count_call(task.kind, outcome, duration_s)
        error = None
        if outcome.error is not None:
            error = self._placed(self._hands.mask.error(outcome.error), task, attempt)
        tried = self._scratch.note(
            task,
            outcome,
            error,
            attempt=attempt,
            started_at=started_at,
            duration_s=duration_s,
        )
        if task.is_kept and tried.error is None:
            tried = await kept(
                task, tried, scratch=self._scratch, hands=self._hands, loading=self._loading
            )
        return tried

    async def _end_wait(self, task: CompiledTask, attempt: int, resumed: Resumed) -> Outcome:
        """Take the outcome of a wait for the tool's, under the names of its attempt."""
        self._resumed = None
        names = self._scratch.scope
        names["_task"], names["_attempt"] = task.name, attempt
        names[INPUT] = self._walk.input
        wait, outcome = self._walk.wait, resumed.outcome
        if wait is not None:
            if resumed.status in (TIMED_OUT, STOPPED):
                await self._call_off(task, attempt)
            if resumed.status == STOPPED:
                raise Halted
            outcome = external.outcome_of(wait, resumed.status, outcome, self._walk.submitted)
        return checked(task, outcome)

    async def _attempt(self, task: CompiledTask, attempt: int) -> Outcome:
        try:
            if task.kind == parking.EXTERNAL:
                await self._introduce(task, attempt)
            call = await self._prepared(task, attempt)
            if task.rate_limit is not None:
                call = await self._paced(task, task.rate_limit, call)
            if task.kind in parking.KINDS:
                await self._park(task, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        try:
            if self._unit.emitter is None:
                outcome = await self._hands.tools.run(call)
            else:
                outcome = await emitting.run(call, self._unit.emitter, self._hands)
        except UnicodeEncodeError:
            return Outcome(error=not_a_text())
        if task.shows_secrets:
            # Its result is a rendered field, not data that a short secret could be a part of.
            return Outcome(data=self._hands.mask.value(outcome.data), error=outcome.error)
        return checked(task, outcome)

    async def _paced(self, task: CompiledTask, limit: CompiledLimit, call: Call) -> Call:
        """Wait until a call may go; one that has grown old meanwhile is rendered again."""
        step, scope = self._unit.site.step, self._scratch.scope
        wanted = await self._loading(lambda: pacing.rendered(limit, scope, step, task.name))
        self._waited_s = await self._hands.pacer.wait(wanted, self._surrounding.command)
        is_old = self._waited_s > pacing.HORIZON_S
        return await self._prepared(task, call.attempt) if is_old else call

    async def _prepared(self, task: CompiledTask, attempt: int) -> Call:
        return await self._loading(
            partial(
                prepare,
                task,
                unit=self._unit,
                scratch=self._scratch,
                surrounding=self._surrounding,
                attempt=attempt,
                visit=self._walk.visits[self._walk.position],
            )
        )

    async def _park(self, task: CompiledTask, call: Call) -> None:
        """Let the pipeline wait: raises `Parked`, or `ToolFailure` when it cannot."""
        if not self._unit.may_park:
            raise ToolFailure(parking.unavailable(task.kind))
        walk = self._walk
        # The input was opened for the tool; what is kept is sealed again.
        walk.input = self._surrounding.keychain.kept_safe(call.input, is_secret=False)
        walk.wait, walk.submitted = None, None
        key = parking.key_of(
            task.name, visit=call.visit, attempt=call.attempt, place=self._unit.place
        )
        if task.kind == parking.PLAYBOOK:
            raise Parked(await parking.child_wait(call, self._hands, key=key))
        mask = self._hands.mask
        shown = structs.replace(call, input=mask.value(call.input), fields=mask.value(call.fields))
        walk.wait = external.message_wait(
            shown,
            key=key,
            command_id=self._surrounding.command.command_id,
            names=self._scratch.scope,
            cancels=task.cancel is not None,
        )
        if task.submit is not None:
            sent = await self._hands.tools.run(await self._prepared(task.submit, call.attempt))
            if sent.error is not None:
                raise ToolFailure(sent.error)
            walk.submitted = sent.data
        raise Parked(walk.wait)

    async def _introduce(self, task: CompiledTask, attempt: int) -> None:
        """Give the templates of an `external` task the names of its answer's address."""
        await self._loading(
            lambda: external.introduce(
                task,
                names=self._scratch.scope,
                surrounding=self._surrounding,
                hands=self._hands,
                unit=self._unit.site.unit,
                place=self._unit.place,
                attempt=attempt,
                visit=self._walk.visits[self._walk.position],
            )
        )

    async def _call_off(self, task: CompiledTask, attempt: int) -> None:
        """Run the task that calls off what was submitted; its own failure changes nothing."""
        if task.cancel is None:
            return
        names = self._scratch.scope
        names["submitted"] = self._walk.submitted
        try:
            await self._introduce(task, attempt)
            outcome = await self._hands.tools.run(await self._prepared(task.cancel, attempt))
            error = outcome.error
        except ToolFailure as problem:
            error = problem.error
        if error is not None:
            log.warning(
                "not called off", task=task.name, reason=self._hands.mask.text(error.message)
            )
        names["_task"], names[INPUT] = task.name, self._walk.input

    def _choose(self, rules: tuple[CompiledRule, ...], task: CompiledTask, attempt: int) -> Choice:
        scope = self._scratch.scope

        def holds(index: int) -> bool:
            condition = rules[index].condition
            return condition is not None and condition.holds(scope)

        def attempts(index: int) -> int:
            return self._bounds.attempts(rules[index].action.attempts, scope, task=task)

        try:
            return decisions.choose(rules, holds=holds, attempts=attempts, attempt=attempt)
        except TemplateError as error:
            found = template_failure(
                error, step=self._unit.site.step, task=task.name, field="spec.policy.rules"
            )
            raise ToolFailure(found) from error

    def _note_bound(self, task: CompiledTask, action: CompiledAction | None) -> None:
        """Note a repeat that only its bound ended."""
        repeats = action is not None and action.do == "jump"
        if not repeats and any(is_ended(self._scratch.scope) for is_ended in task.bounds):
            self._notes.add(REPEAT_BOUND)

    def _check_unmatched(
        self, task: CompiledTask, tried: Tried, attempt: int, choice: Choice
    ) -> None:
        """Let an attempt pass that no rule decides, or fail the pipeline with it."""
        passes = tried.error is None if task.on_unmatched == "default" else True
        if passes and task.on_unmatched != "fail" and not choice.is_exhausted:
            return
        self._scratch.record(task, tried)
        text = f"task '{task.name}' was tried {attempt} times and no rule lets it pass"
        raise ToolFailure(tried.error or self._placed(failure("policy", text), task, attempt))

    async def _finish(
        self, task: CompiledTask, tried: Tried, action: CompiledAction | None
    ) -> None:
        """Record a task's result and apply its writes, then the rule's."""
        scratch = self._scratch
        scratch.record(task, tried)
        if task.set and (action is None or action.do != "fail"):
            await self._loading(lambda: scratch.write_own(task, tried))
        if action is not None and action.set:
            await self._loading(lambda: scratch.write(action.set, task))

    def _refusal(self, action: CompiledAction, task: CompiledTask, attempt: int) -> ErrorObject:
        message = "a rule failed the task"
        if action.message is not None:
            try:
                message = str(action.message.render(self._scratch.scope))
            except TemplateError as error:
                step = self._unit.site.step
                found = template_failure(error, step=step, task=task.name, field="message")
                raise ToolFailure(found) from error
        return self._placed(failure("policy", message), task, attempt)

    def _retry_wait_s(
        self, action: CompiledAction, task: CompiledTask, tried: Tried, tries: int
    ) -> float:
        scope = self._scratch.scope
        return self._bounds.retry_wait_s(action, scope, task=task, tries=tries, error=tried.error)

    def _jump_wait_s(self, action: CompiledAction, task: CompiledTask) -> float:
        return self._bounds.delay_s(action, self._scratch.scope, task=task) or 0.0

    async def _pause(self, seconds: float) -> None:
        # Also without a wait: a pipeline of jumps alone would never hear that it is to stop.
        await asyncio.sleep(max(0.0, seconds))

    def _placed(
        self, error: ErrorObject, task: CompiledTask | None = None, attempt: int | None = None
    ) -> ErrorObject:
        """Say in which step, task and attempt an error happened."""
        return structs.replace(
            error,
            step=error.step or self._unit.site.step,
            task=error.task or (task.name if task is not None else None),
            attempt=error.attempt or attempt,
        )

    async def _loading(self, render: Callable[[], T]) -> T:
        try:
            return render()
        except Needed:
            return await self._surrounding.loading(render, self._hands.payloads)
