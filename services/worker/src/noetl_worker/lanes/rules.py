"""What the rules of a task say after an attempt: which decides, and what it leads to."""

from noetl_contracts.errors import ErrorObject
from noetl_playbook.expressions import TemplateError
from noetl_playbook.repeats import REPEAT_BOUND, RepeatBound
from noetl_worker.domain import outcome as decisions
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.outcome import Choice
from noetl_worker.domain.sites import Site
from noetl_worker.lanes.block import CompiledAction, CompiledRule, CompiledTask
from noetl_worker.lanes.bounds import Bounds
from noetl_worker.lanes.scratch import Scratch, Tried
from noetl_worker.lanes.unit import template_failure

# Actions after which the pipeline waits; `fail` and `break` have nothing to wait for.
_WAITING = frozenset({"retry", "jump", "continue"})


class Rules:
    """Asks a task's rules; raises `ToolFailure`, or `PayloadNeeded` to be asked again."""

    def __init__(self, *, bounds: Bounds, scratch: Scratch, site: Site) -> None:
        self._bounds = bounds
        self._scratch = scratch
        self._site = site

    def choose(
        self, rules: tuple[CompiledRule, ...], task: CompiledTask, *, attempt: int
    ) -> Choice:
        """Return the rule that decides after an attempt."""
        scope = self._scratch.scope

        def holds(index: int) -> bool:
            condition = rules[index].condition
            return condition is not None and condition.holds(scope)

        def attempts(index: int) -> int:
            return self._bounds.attempts(rules[index].action.attempts, scope, task=task)

        try:
            return decisions.choose(rules, holds=holds, attempts=attempts, attempt=attempt)
        except TemplateError as error:
            raise self._unrendered(error, task, field="spec.policy.rules") from error

    def wait_s(
        self, action: CompiledAction, task: CompiledTask, tried: Tried, *, attempt: int
    ) -> float:
        """Return how long the pipeline waits before it does what an action says."""
        scope = self._scratch.scope
        if action.do not in _WAITING:
            return 0.0
        if action.do != "retry":
            return self._bounds.delay_s(action, scope, task=task) or 0.0
        return self._bounds.retry_wait_s(
            action,
            scope,
            task=task,
            tries=attempt,
            error=tried.error,
            noise=self._noise(task, attempt),
        )

    def _noise(self, task: CompiledTask, attempt: int) -> float:
        site = self._site
        place = (site.step, site.activation, site.unit, site.frame_id, site.row_index)
        return decisions.noise_of(site.execution_id, *place, task.name, attempt)

    def refusal(self, action: CompiledAction, task: CompiledTask) -> ErrorObject:
        """Return the error of a rule that fails a task which has succeeded."""
        message = "a rule failed the task"
        if action.message is not None:
            try:
                message = str(action.message.render(self._scratch.scope))
            except TemplateError as error:
                raise self._unrendered(error, task, field="message") from error
        return failure("policy", message)

    def note_bound(self, task: CompiledTask, action: CompiledAction | None) -> str | None:
        """Return the note of a repeat that only its bound ended, where the playbook allows that."""
        if action is not None and action.do == "jump":
            return None
        scope = self._scratch.scope
        ended = next((bound for bound in task.bounds if bound.is_over(scope)), None)
        if ended is None:
            return None
        if ended.on_bound == "stop":
            return REPEAT_BOUND
        raise ToolFailure(self._past_bound(ended, task))

    def _past_bound(self, bound: RepeatBound, task: CompiledTask) -> ErrorObject:
        scratch = self._scratch
        pages, most = scratch.scope["iter"].get("calls"), bound.calls_max(scratch.scope)
        rows = scratch.collections.row_count
        collected = "" if rows is None else f", {rows} rows collected"
        text = (
            f"step '{self._site.step}', task '{task.name}': the repeat reached its bound, "
            f"max_pages is {most}, while its condition still holds ({pages} pages "
            f"read{collected}): raise max_pages (max_attempts, max_iterations, or the number "
            "that the rule holds iter.calls against), or say on_bound: stop to keep the part"
        )
        about = {"setting": "max_pages", "bound": most, "pages": pages, "rows": rows}
        return failure("limit", text, code=REPEAT_BOUND, task=task.name, details=about)

    def _unrendered(self, error: TemplateError, task: CompiledTask, *, field: str) -> ToolFailure:
        return ToolFailure(
            template_failure(error, step=self._site.step, task=task.name, field=field)
        )
