"""The language's bounds on a pipeline, lowered where the playbook lowers them."""

from collections.abc import Mapping

from noetl_contracts.errors import ErrorObject
from noetl_playbook import coercion
from noetl_playbook.expressions import Compiled
from noetl_playbook.scope import Scope
from noetl_worker.domain import outcome as decisions
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes.block import CompiledAction, CompiledTask


class Bounds:
    """Renders the numbers of rules and holds them against their limits."""

    def __init__(self, limits: Mapping[str, int], *, step: str) -> None:
        self._limits = limits
        self._step = step

    def limit(self, name: str, most: int) -> int:
        """Return a bound, which a playbook may lower and never raise."""
        return min(most, self._limits.get(name, most))

    def attempts(self, compiled: Compiled, scope: Scope, *, task: CompiledTask) -> int:
        """Render a number of attempts; raises `ToolFailure`."""
        found = coercion.integer(compiled.render(scope))
        if found is None:
            text = f"task '{task.name}', field 'attempts' is not a whole number"
            raise ToolFailure(failure("validation", text))
        most = self.limit("attempts", decisions.ATTEMPTS_MAX)
        if found > most:
            text = f"task '{task.name}', field 'attempts': {found} exceeds the limit of {most}"
            raise ToolFailure(failure("limit", text, code="attempts"))
        return found

    def retry_wait_s(
        self, action: CompiledAction, scope: Scope, *, tries: int, error: ErrorObject | None
    ) -> float:
        """Return how long to wait before the next try; raises `ToolFailure`."""
        max_delay_s = self._checked_s(
            coercion.duration_s(action.max_delay.render(scope)), "max_delay"
        )
        return decisions.wait_s(
            action.backoff,
            delay_s=self.delay_s(action, scope),
            tries=tries,
            max_delay_s=decisions.DELAY_MAX_S if max_delay_s is None else max_delay_s,
            retry_after_s=None if error is None else error.retry_after,
        )

    def delay_s(self, action: CompiledAction, scope: Scope) -> float | None:
        """Return an action's delay, None when it has none; raises `ToolFailure`."""
        if action.delay is None:
            return None
        return self._checked_s(coercion.duration_s(action.delay.render(scope)), "delay")

    def _checked_s(self, seconds: float | None, name: str) -> float | None:
        most = self.limit(name, int(decisions.DELAY_MAX_S))
        if seconds is not None and seconds > most:
            text = f"step '{self._step}': {name} of {seconds:g} s exceeds {most} s"
            raise ToolFailure(failure("limit", text, code=name))
        return seconds
