"""The one interpreter of a step's pipeline: attempts, rules, jumps, results."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import structlog
from msgspec import Struct, structs

from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_contracts.parking import ELAPSED, STOPPED, TIMED_OUT
from noetl_contracts.task_metrics import MetricsByTask
from noetl_playbook.handles import Needed
from noetl_playbook.model import Output
from noetl_playbook.results import PipelineResult
from noetl_worker.domain.failures import ToolFailure, failure, not_a_text
from noetl_worker.lanes import emitting, external, pacing, parking
from noetl_worker.lanes.attempt import INPUT, checked, observed, prepare
from noetl_worker.lanes.block import Block, CompiledAction, CompiledTask
from noetl_worker.lanes.bounds import Bounds
from noetl_worker.lanes.checkpoints import Checkpoints, is_resumable
from noetl_worker.lanes.failed_tries import keep_failed_try, list_failed_tries
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.kept_results import kept
from noetl_worker.lanes.measured_tries import measure_try
from noetl_worker.lanes.output_blocks import rendered
from noetl_worker.lanes.pacing import CompiledLimit
from noetl_worker.lanes.parking import Halted, Parked, Resumed, Saved, Walk
from noetl_worker.lanes.rules import Rules
from noetl_worker.lanes.scratch import Scratch, Tried, Unit
from noetl_worker.lanes.time_waits import Waits
from noetl_worker.lanes.unit import Surrounding
from noetl_worker.tools.call import Call, Outcome

T = TypeVar("T")

JUMPS_MAX = 100_000

log = structlog.get_logger(__name__)


class PipelineEnd(Struct, frozen=True, kw_only=True):
    """How a pipeline ended; `patch` holds its writes to `ctx`, also when it failed."""

    result: PipelineResult
    error: ErrorObject | None
    patch: dict[str, Any]
    notes: list[str] = []
    tries: list[FailedTry] = []
    metrics: MetricsByTask = {}


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
        self._rules = Rules(bounds=self._bounds, scratch=self._scratch, site=unit.site)
        self._waits = Waits(
            clock=hands.clock,
            held_s=hands.held_wait_s,
            is_parkable=unit.may_park and hands.may_park,
            emitter=unit.emitter,
            step=unit.site.step,
            place=unit.place,
        )
        self._checkpoints = Checkpoints(
            command=surrounding.command,
            hands=hands,
            is_wanted=is_resumable(unit) and hands.may_park,
        )
        self._notes: set[str] = set()
        self._walk = Walk(visits=[0] * len(block.tasks))
        self._resumed: Resumed | None = None
        self._waited_s = 0.0

    async def run(self, resumed: Resumed | None = None) -> PipelineEnd:
        """Run the tasks to the pipeline's end; raises `Parked` when a task waits."""
        scratch = self._scratch
        if resumed is not None:
            await scratch.restore(resumed.saved.scratch, self._hands.payloads)
            self._walk = resumed.saved.walk
            notes = scratch.collections.take_up_notes(resumed.saved.notes, scratch.notes)
            self._notes.update(notes)
            # After a wait for nothing but time no attempt is under way.
            self._resumed = None if resumed.status == ELAPSED else resumed
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
            tries=self._walk.tries,
            metrics=self._walk.metrics,
        )

    async def output_of(self, end: PipelineEnd) -> Output | None:
        """Return how the step's result is to be kept; raises `ToolFailure`."""
        output, scope = self._block.outputs.of(end.result), self._scratch.scope
        return await self._loading(lambda: rendered(output, scope, step=self._unit.site.step))

    async def saved(self) -> Saved:
        """Return the pipeline as another worker takes it up; raises `ToolFailure`."""
        await self._scratch.collections.store(self._hands)
        return Saved(
            walk=self._walk,
            scratch=await self._loading(self._scratch.save),
            attempt=self._surrounding.command.attempt,
            notes=sorted({*self._notes, *self._scratch.notes}),
        )

    async def _run_tasks(self) -> None:
        walk, tasks = self._walk, self._block.tasks
        jumps_max = self._bounds.limit("max_jumps", JUMPS_MAX)
        await self._loading(self._scratch.seed)
        while walk.position < len(tasks):
            if self._resumed is None and not walk.is_between_tries:
                walk.visits[walk.position] += 1
                walk.attempt = 0
            position, task = walk.position, tasks[walk.position]
            action, wait_s = await self._run_task(task)
            if action is None or action.do == "continue":
                walk.position += 1
                if wait_s:
                    await self._waits.pause(wait_s, task, walk, "continue")
            elif action.do == "break":
                return
            else:
                walk.jumps += 1
                if walk.jumps > jumps_max:
                    text = f"step '{self._unit.site.step}' jumped more than {jumps_max} times"
                    about = {"step": self._unit.site.step, "task": task.name}
                    raise ToolFailure(failure("limit", text, code="max_jumps", **about))
                walk.position = action.to
                await self._waits.pause(wait_s, task, walk, "jump")
                if action.to <= position:
                    await self._checkpoints.count(self.saved)

    async def _run_task(self, task: CompiledTask) -> tuple[CompiledAction | None, float]:
        """Try a task until the pipeline may go on, after a wait; raises `ToolFailure` if never."""
        walk = self._walk
        while True:
            if self._resumed is None:
                walk.attempt += 1
                walk.is_between_tries = False
            attempt = walk.attempt
            tried = await self._try(task, attempt)
            action, is_exhausted = await self._loading(partial(self._choose, task, tried))
            if task.bounds:
                note = await self._loading(partial(self._rules.note_bound, task, action))
                self._notes.update(() if note is None else (note,))
            if action is None:
                self._check_unmatched(task, tried, attempt, is_exhausted=is_exhausted)
                await self._finish(task, tried, None)
                return None, 0.0
            wait_s = partial(self._rules.wait_s, action, task, tried, attempt=attempt)
            if action.do == "retry":
                await self._loading(partial(self._scratch.write, action.set, task))
                walk.is_between_tries = True
                if tried.error is not None:
                    now = self._hands.clock.now()
                    keep_failed_try(walk, task.name, tried.error, now=now)
                await self._waits.pause(await self._loading(wait_s), task, walk, "retry")
                continue
            await self._finish(task, tried, action)
            if action.do == "fail":
                error = tried.error
                if error is None:
                    error = await self._loading(partial(self._rules.refusal, action, task))
                raise ToolFailure(self._placed(error, task, attempt))
            return action, await self._loading(wait_s)

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
        measure_try(self._walk, task, outcome, duration_s=duration_s, mask=self._hands.mask)
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
            return structs.replace(outcome, data=self._hands.mask.value(outcome.data))
        return checked(task, outcome)

    async def _paced(self, task: CompiledTask, limit: CompiledLimit, call: Call) -> Call:
        """Wait until a call may go; one that has grown old meanwhile is rendered again."""
        step, scope = self._unit.site.step, self._scratch.scope
        wanted = await self._loading(lambda: pacing.rendered(limit, scope, step, task.name))
        try:
            self._waited_s = await self._hands.pacer.wait(
                wanted, self._surrounding.command, may_leave=self._waits.may_park
            )
        except pacing.LongWait as wait:
            # The attempt has not begun: it is made when the time has come.
            self._walk.attempt -= 1
            self._walk.is_between_tries = True
            self._waits.leave(wait.seconds, task, self._walk, "rate_limit")
        is_old = self._waited_s > pacing.HORIZON_S
        return await self._prepared(task, call.attempt) if is_old else call

    async def _prepared(self, task: CompiledTask, attempt: int) -> Call:
        call = await self._loading(
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
        return observed(call, self._hands)

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

    def _choose(self, task: CompiledTask, tried: Tried) -> tuple[CompiledAction | None, bool]:
        """Return what follows an attempt, and whether it has used up its tries."""
        rules = task.rules_of_success if tried.error is None else task.rules
        if not rules:
            return None, False
        choice = self._rules.choose(rules, task, attempt=self._walk.attempt)
        action = None if choice.index is None else rules[choice.index].action
        return action, choice.is_exhausted

    def _check_unmatched(
        self, task: CompiledTask, tried: Tried, attempt: int, *, is_exhausted: bool
    ) -> None:
        """Let an attempt pass that no rule decides, or fail the pipeline with it."""
        passes = tried.error is None if task.on_unmatched == "default" else True
        if passes and task.on_unmatched != "fail" and not is_exhausted:
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

    def _placed(
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

    async def _loading(self, render: Callable[[], T]) -> T:
        try:
            return render()
        except Needed:
            return await self._surrounding.loading(render, self._hands.payloads)
