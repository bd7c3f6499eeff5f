"""The one interpreter of a step's pipeline: attempts, rules, jumps, results."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, structs

from noetl_chassis import instruments, names
from noetl_contracts.errors import ErrorObject
from noetl_playbook import coercion
from noetl_playbook.expressions import Compiled, TemplateError
from noetl_playbook.handles import Needed
from noetl_playbook.repeats import NOTE as REPEAT_BOUND
from noetl_playbook.results import PipelineResult
from noetl_worker.domain import outcome as decisions
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.outcome import Choice
from noetl_worker.lanes.attempt import prepare
from noetl_worker.lanes.block import Block, CompiledAction, CompiledTask
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.scratch import Scratch, Tried, Unit
from noetl_worker.lanes.unit import Surrounding, template_failure
from noetl_worker.tools.call import Outcome

T = TypeVar("T")

JUMPS_MAX = 100_000
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
        self._hands = hands
        self._scratch = Scratch(block=block, unit=unit, surrounding=surrounding)
        self._notes: set[str] = set()

    async def run(self) -> PipelineEnd:
        """Run the tasks to the pipeline's end."""
        error: ErrorObject | None = None
        try:
            await self._run_tasks()
        except ToolFailure as failed:
            error = self._placed(failed.error)
        scratch = self._scratch
        return PipelineEnd(
            result=scratch.result(), error=error, patch=scratch.patch, notes=sorted(self._notes)
        )

    async def _run_tasks(self) -> None:
        position, jumps = 0, 0
        tasks = self._block.tasks
        visits = [0] * len(tasks)
        jumps_max = self._limit("max_jumps", JUMPS_MAX)
        while position < len(tasks):
            visits[position] += 1
            action = await self._run_task(tasks[position], visits[position])
            if action is None or action.do == "continue":
                position += 1
            elif action.do == "break":
                return
            else:
                jumps += 1
                if jumps > jumps_max:
                    text = f"step '{self._unit.site.step}' jumped more than {jumps_max} times"
                    raise ToolFailure(failure("limit", text, code="max_jumps"))
                await self._pause(self._delay_s(action) or 0.0)
                position = action.to

    async def _run_task(self, task: CompiledTask, visit: int) -> CompiledAction | None:
        """Try a task until the pipeline may go on; raises `ToolFailure` when it may not."""
        attempt = 0
        while True:
            attempt += 1
            tried = await self._try(task, attempt, visit)
            choice = _NO_RULES
            if task.rules:
                choice = await self._loading(lambda: self._choose(task, attempt))  # noqa: B023 - called at once
            if task.bounds:
                await self._loading(lambda: self._note_bound(task, choice))  # noqa: B023 - called at once
            if choice.index is None:
                self._check_unmatched(task, tried, attempt, choice)
                await self._finish(task, tried, None)
                return None
            action = task.rules[choice.index].action
            if action.do == "retry":
                await self._loading(lambda: self._scratch.write(action.set, task))  # noqa: B023 - called at once
                await self._pause(
                    await self._loading(lambda: self._retry_wait_s(action, attempt, tried.error))  # noqa: B023 - called at once
                )
                continue
            await self._finish(task, tried, action)
            if action.do == "fail":
                error = tried.error
                if error is None:
                    error = await self._loading(lambda: self._refusal(action, task, attempt))  # noqa: B023 - called at once
                raise ToolFailure(error)
            return action

    async def _try(self, task: CompiledTask, attempt: int, visit: int) -> Tried:
        """Run one attempt and make its outcome the current `output`."""
        clock = self._hands.clock
        started_at, started = clock.now(), clock.monotonic()
        outcome = await self._attempt(task, attempt, visit)
        duration_s = clock.monotonic() - started
        _measure(task.kind, outcome, duration_s)
        error = None
        if outcome.error is not None:
            error = self._placed(self._hands.mask.error(outcome.error), task, attempt)
        return self._scratch.note(
            task,
            outcome,
            error,
            attempt=attempt,
            started_at=started_at,
            duration_s=duration_s,
        )

    async def _attempt(self, task: CompiledTask, attempt: int, visit: int) -> Outcome:
        try:
            call = await self._loading(
                lambda: prepare(
                    task,
                    unit=self._unit,
                    scratch=self._scratch,
                    surrounding=self._surrounding,
                    attempt=attempt,
                    visit=visit,
                )
            )
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        outcome = await self._hands.tools.run(call)
        if task.shows_secrets:
            # Its result is a rendered field, not data that a short secret could be a part of.
            return Outcome(data=self._hands.mask.value(outcome.data), error=outcome.error)
        if task.returns and outcome.error is None:
            data = outcome.data if isinstance(outcome.data, dict) else {}
            missing = [name for name in task.returns if name not in data]
            if missing:
                text = f"the result lacks {', '.join(missing)}"
                return Outcome(data=outcome.data, error=failure("assertion", text))
        return outcome

    def _choose(self, task: CompiledTask, attempt: int) -> Choice:
        scope = self._scratch.scope

        def holds(index: int) -> bool:
            condition = task.rules[index].condition
            return condition is not None and condition.holds(scope)

        def attempts(index: int) -> int:
            return self._number(task.rules[index].action.attempts, task, "attempts")

        try:
            return decisions.choose(task.rules, holds=holds, attempts=attempts, attempt=attempt)
        except TemplateError as error:
            found = template_failure(
                error, step=self._unit.site.step, task=task.name, field="spec.policy.rules"
            )
            raise ToolFailure(found) from error

    def _note_bound(self, task: CompiledTask, choice: Choice) -> None:
        """Note a repeat that only its bound ended."""
        repeats = choice.index is not None and task.rules[choice.index].action.do == "jump"
        if not repeats and any(is_ended(self._scratch.scope) for is_ended in task.bounds):
            self._notes.add(REPEAT_BOUND)

    def _number(self, compiled: Compiled, task: CompiledTask, field: str) -> int:
        found = coercion.integer(compiled.render(self._scratch.scope))
        if found is None:
            text = f"task '{task.name}', field '{field}' is not a whole number"
            raise ToolFailure(failure("validation", text))
        most = self._limit(field, decisions.ATTEMPTS_MAX)
        if found > most:
            text = f"task '{task.name}', field '{field}': {found} exceeds the limit of {most}"
            raise ToolFailure(failure("limit", text, code=field))
        return found

    def _limit(self, name: str, most: int) -> int:
        """Return a bound of the language, lowered where the playbook lowers it."""
        return min(most, self._surrounding.command.limits.get(name, most))

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
            message = str(action.message.render(self._scratch.scope))
        return self._placed(failure("policy", message), task, attempt)

    def _retry_wait_s(self, action: CompiledAction, tries: int, error: ErrorObject | None) -> float:
        max_delay_s = coercion.duration_s(action.max_delay.render(self._scratch.scope))
        return decisions.wait_s(
            action.backoff,
            delay_s=self._delay_s(action),
            tries=tries,
            max_delay_s=decisions.DELAY_MAX_S if max_delay_s is None else max_delay_s,
            retry_after_s=None if error is None else error.retry_after,
        )

    def _delay_s(self, action: CompiledAction) -> float | None:
        if action.delay is None:
            return None
        return coercion.duration_s(action.delay.render(self._scratch.scope))

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


def _measure(kind: str, outcome: Outcome, duration_s: float) -> None:
    """Count a call, and time it where there is something to time."""
    if kind == "noop":
        return
    label = "ok" if outcome.error is None else outcome.error.kind
    instruments.count(names.TOOL_CALLS, labels={names.TOOL: kind, names.OUTCOME: label})
    instruments.count(names.TOOL_SECONDS, duration_s, labels={names.TOOL: kind})
