"""The language's bounds on a pipeline, lowered where the playbook lowers them."""

import math
from collections.abc import Mapping
from typing import Any

from noetl_contracts.errors import ErrorObject
from noetl_contracts.parking import WAIT_S_MAX
from noetl_playbook import coercion
from noetl_playbook.expressions import Compiled, TemplateError
from noetl_playbook.model import Action
from noetl_playbook.scope import Scope
from noetl_worker.domain import outcome as decisions
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes.block import CompiledAction, CompiledTask
from noetl_worker.lanes.unit import template_failure

# What a rule has that says nothing itself: no number of an author's, so a bound lowers it.
_UNSAID = Action(do="retry")


class Bounds:
    """Renders the numbers of rules and holds them against their limits; raises `ToolFailure`."""

    def __init__(self, limits: Mapping[str, int], *, step: str) -> None:
        self._limits = limits
        self._step = step

    def limit(self, name: str, most: int) -> int:
        """Return a bound, which a playbook may lower and never raise."""
        return min(most, self._limits.get(name, most))

    def attempts(self, compiled: Compiled, scope: Scope, *, task: CompiledTask) -> int:
        """Render a number of attempts."""
        most = self.limit("attempts", decisions.ATTEMPTS_MAX)
        if compiled.source == _UNSAID.attempts:
            return min(int(_UNSAID.attempts), most)
        given = self._rendered(compiled, scope, task, "attempts")
        found = coercion.integer(given)
        if found is None:
            raise self._refused(task, "attempts", f"{given!r} is not a whole number")
        if found > most:
            raise self._exceeded(task, "attempts", f"{found} exceeds the limit of {most}")
        return found

    def retry_wait_s(
        self,
        action: CompiledAction,
        scope: Scope,
        *,
        task: CompiledTask,
        tries: int,
        error: ErrorObject | None,
        noise: float,
    ) -> float:
        """Return how long to wait before the next try."""
        delay_s = self.delay_s(action, scope, task=task)
        return decisions.wait_s(
            action.backoff,
            delay_s=delay_s,
            tries=tries,
            max_delay_s=self._max_delay_s(action.max_delay, scope, task, delay_s=delay_s or 0.0),
            retry_after_s=None if error is None else error.retry_after,
            jitter=action.jitter,
            noise=noise,
        )

    def delay_s(self, action: CompiledAction, scope: Scope, *, task: CompiledTask) -> float | None:
        """Return an action's delay, None when it has none."""
        if action.delay is None:
            return None
        return self._duration_s(action.delay, scope, task, "delay")

    def _max_delay_s(
        self, compiled: Compiled, scope: Scope, task: CompiledTask, *, delay_s: float
    ) -> float:
        """Return the longest wait; where nobody says it, a delay that is longer stays as long."""
        found_s = None
        if compiled.source != _UNSAID.max_delay:
            found_s = self._duration_s(compiled, scope, task, "max_delay")
        if found_s is None:
            unsaid_s = max(float(_UNSAID.max_delay), delay_s)
            return min(unsaid_s, self.limit("max_delay", WAIT_S_MAX))
        return found_s

    def _duration_s(
        self, compiled: Compiled, scope: Scope, task: CompiledTask, field: str
    ) -> float | None:
        """Render a duration; null is as good as none."""
        given = self._rendered(compiled, scope, task, field)
        if given is None:
            return None
        found_s = coercion.duration_s(given)
        if found_s is None or math.isnan(found_s):
            raise self._refused(task, field, f"{given!r} is not a duration")
        most = self.limit(field, WAIT_S_MAX)
        if found_s > most:
            raise self._exceeded(task, field, f"{found_s:g} s exceeds the limit of {most} s")
        return found_s

    def _rendered(self, compiled: Compiled, scope: Scope, task: CompiledTask, field: str) -> Any:
        try:
            return compiled.render(scope)
        except TemplateError as error:
            found = template_failure(error, step=self._step, task=task.name, field=field)
            raise ToolFailure(found) from error

    def _refused(self, task: CompiledTask, field: str, why: str) -> ToolFailure:
        text = f"step '{self._step}', task '{task.name}', field '{field}': {why}"
        return ToolFailure(failure("validation", text, task=task.name))

    def _exceeded(self, task: CompiledTask, field: str, why: str) -> ToolFailure:
        text = f"step '{self._step}', task '{task.name}', field '{field}': {why}"
        return ToolFailure(failure("limit", text, code=field, task=task.name))
