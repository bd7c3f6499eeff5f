"""Evaluates the rules of tasks within the bounds of the language and the playbook."""

import math
from collections.abc import Mapping
from typing import Any

from noetl_contracts.commands.waits import WAIT_S_MAX
from noetl_contracts.errors import ErrorObject
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Action
from noetl_playbook.templates.expressions import CompiledTemplate, TemplateError
from noetl_playbook.templates.repeat_bound import REPEAT_BOUND, RepeatBound
from noetl_playbook.templates.scope import TemplateScope
from noetl_worker.commands.command_context import build_template_error
from noetl_worker.domain import retry_rules
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.retry_rules import RuleChoice
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.pipeline.compiled_tasks import CompiledAction, CompiledRule, CompiledTask
from noetl_worker.pipeline.state import AttemptResult, PipelineState

# What a rule has that says nothing itself: no number of an author's, so a bound lowers it.
_DEFAULT_RETRY = Action(do="retry")


class RuleLimits:
    """Renders the numbers of rules and holds them against their limits; raises `ToolFailure`."""

    def __init__(self, limits: Mapping[str, int], *, step: str) -> None:
        self._limits = limits
        self._step = step

    def get_limit(self, name: str, maximum: int) -> int:
        """Return a bound, which a playbook may lower and never raise."""
        return min(maximum, self._limits.get(name, maximum))

    def render_attempts(
        self, compiled: CompiledTemplate, scope: TemplateScope, *, task: CompiledTask
    ) -> int:
        """Render a number of attempts."""
        maximum = self.get_limit("attempts", retry_rules.ATTEMPTS_MAX)
        if compiled.source == _DEFAULT_RETRY.attempts:
            return min(int(_DEFAULT_RETRY.attempts), maximum)
        field = self._render_field(compiled, scope, task, "attempts")
        attempts = coercion.coerce_integer(field)
        if attempts is None:
            raise self._build_refusal(task, "attempts", f"{field!r} is not a whole number")
        if attempts > maximum:
            raise self._build_limit_failure(
                task, "attempts", f"{attempts} exceeds the limit of {maximum}"
            )
        return attempts

    def compute_retry_wait_s(
        self,
        action: CompiledAction,
        scope: TemplateScope,
        *,
        task: CompiledTask,
        tries: int,
        error: ErrorObject | None,
        noise: float,
    ) -> float:
        """Return how long to wait before the next try."""
        delay_s = self.render_delay_s(action, scope, task=task)
        return retry_rules.compute_wait_s(
            action.backoff,
            delay_s=delay_s,
            tries=tries,
            max_delay_s=self._render_max_delay_s(
                action.max_delay, scope, task, delay_s=delay_s or 0.0
            ),
            retry_after_s=None if error is None else error.retry_after,
            jitter=action.jitter,
            noise=noise,
        )

    def render_delay_s(
        self, action: CompiledAction, scope: TemplateScope, *, task: CompiledTask
    ) -> float | None:
        """Return an action's delay, None when it has none."""
        if action.delay is None:
            return None
        return self._render_duration_s(action.delay, scope, task, "delay")

    def _render_max_delay_s(
        self,
        compiled: CompiledTemplate,
        scope: TemplateScope,
        task: CompiledTask,
        *,
        delay_s: float,
    ) -> float:
        """Return the longest wait; where nobody says it, a delay that is longer stays as long."""
        found_s = None
        if compiled.source != _DEFAULT_RETRY.max_delay:
            found_s = self._render_duration_s(compiled, scope, task, "max_delay")
        if found_s is None:
            default_delay_s = max(float(_DEFAULT_RETRY.max_delay), delay_s)
            return min(default_delay_s, self.get_limit("max_delay", WAIT_S_MAX))
        return found_s

    def _render_duration_s(
        self, compiled: CompiledTemplate, scope: TemplateScope, task: CompiledTask, field: str
    ) -> float | None:
        """Render a duration; null is as good as none."""
        field_value = self._render_field(compiled, scope, task, field)
        if field_value is None:
            return None
        duration_s = coercion.coerce_duration_s(field_value)
        if duration_s is None or math.isnan(duration_s):
            raise self._build_refusal(task, field, f"{field_value!r} is not a duration")
        wait_s_max = self.get_limit(field, WAIT_S_MAX)
        if duration_s > wait_s_max:
            raise self._build_limit_failure(
                task, field, f"{duration_s:g} s exceeds the limit of {wait_s_max} s"
            )
        return duration_s

    def _render_field(
        self, compiled: CompiledTemplate, scope: TemplateScope, task: CompiledTask, field: str
    ) -> Any:
        try:
            return compiled.render(scope)
        except TemplateError as error:
            error_object = build_template_error(error, step=self._step, task=task.name, field=field)
            raise ToolFailure(error_object) from error

    def _build_refusal(self, task: CompiledTask, field: str, reason: str) -> ToolFailure:
        text = f"step '{self._step}', task '{task.name}', field '{field}': {reason}"
        return ToolFailure(build_error("validation", text, task=task.name))

    def _build_limit_failure(self, task: CompiledTask, field: str, reason: str) -> ToolFailure:
        text = f"step '{self._step}', task '{task.name}', field '{field}': {reason}"
        return ToolFailure(build_error("limit", text, code=field, task=task.name))


# Actions after which the pipeline waits; `fail` and `break` have nothing to wait for.
_WAITING_ACTIONS = frozenset({"retry", "jump", "continue"})


class TaskRules:
    """Evaluates a task's rules; raises `ToolFailure`, or `PayloadNeeded` to load and try again."""

    def __init__(self, *, bounds: RuleLimits, scratch: PipelineState, site: UnitScope) -> None:
        self._bounds = bounds
        self._scratch = scratch
        self._site = site

    def choose_rule(
        self, rules: tuple[CompiledRule, ...], task: CompiledTask, *, attempt: int
    ) -> RuleChoice:
        """Return the rule that decides after an attempt."""
        scope = self._scratch.scope

        def holds_condition(index: int) -> bool:
            condition = rules[index].condition
            return condition is not None and condition.is_true(scope)

        def render_attempts(index: int) -> int:
            return self._bounds.render_attempts(rules[index].action.attempts, scope, task=task)

        try:
            return retry_rules.choose_rule(
                rules, holds=holds_condition, attempts=render_attempts, attempt=attempt
            )
        except TemplateError as error:
            raise self._build_template_failure(error, task, field="spec.policy.rules") from error

    def compute_wait_s(
        self, action: CompiledAction, task: CompiledTask, result: AttemptResult, *, attempt: int
    ) -> float:
        """Return how long the pipeline waits before it does what an action says."""
        scope = self._scratch.scope
        if action.do not in _WAITING_ACTIONS:
            return 0.0
        if action.do != "retry":
            return self._bounds.render_delay_s(action, scope, task=task) or 0.0
        return self._bounds.compute_retry_wait_s(
            action,
            scope,
            task=task,
            tries=attempt,
            error=result.error,
            noise=self._compute_noise(task, attempt),
        )

    def _compute_noise(self, task: CompiledTask, attempt: int) -> float:
        site = self._site
        place = (site.step, site.activation, site.unit, site.frame_id, site.row_index)
        return retry_rules.compute_jitter_noise(site.execution_id, *place, task.name, attempt)

    def build_refusal(self, action: CompiledAction, task: CompiledTask) -> ErrorObject:
        """Return the error of a rule that fails a task which has succeeded."""
        message = "a rule failed the task"
        if action.message is not None:
            try:
                message = str(action.message.render(self._scratch.scope))
            except TemplateError as error:
                raise self._build_template_failure(error, task, field="message") from error
        return build_error("policy", message)

    def find_bound_note(self, task: CompiledTask, action: CompiledAction | None) -> str | None:
        """Return the note of a repeat that only its bound ended, where the playbook allows that."""
        if action is not None and action.do == "jump":
            return None
        scope = self._scratch.scope
        reached_bound = next(
            (bound for bound in task.bounds if bound.has_reached_bound(scope)), None
        )
        if reached_bound is None:
            return None
        if reached_bound.on_bound == "stop":
            return REPEAT_BOUND
        raise ToolFailure(self._build_bound_error(reached_bound, task))

    def _build_bound_error(self, bound: RepeatBound, task: CompiledTask) -> ErrorObject:
        scratch = self._scratch
        pages, pages_max = scratch.scope["iter"].get("calls"), bound.calls_max(scratch.scope)
        rows = scratch.task_collections.row_count
        rows_text = "" if rows is None else f", {rows} rows collected"
        text = (
            f"step '{self._site.step}', task '{task.name}': the repeat reached its bound, "
            f"max_pages is {pages_max}, while its condition still holds ({pages} pages "
            f"read{rows_text}): raise max_pages (max_attempts, max_iterations, or the number "
            "that the rule holds iter.calls against), or say on_bound: stop to keep the part"
        )
        about = {"setting": "max_pages", "bound": pages_max, "pages": pages, "rows": rows}
        return build_error("limit", text, code=REPEAT_BOUND, task=task.name, details=about)

    def _build_template_failure(
        self, error: TemplateError, task: CompiledTask, *, field: str
    ) -> ToolFailure:
        return ToolFailure(
            build_template_error(error, step=self._site.step, task=task.name, field=field)
        )
