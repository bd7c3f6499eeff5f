"""Records renders of a decision, so that a repeated decision reuses those done in a child.

A computation that is made twice from the same values renders the same templates in the same order,
so that a render is known by its place. One that holds this process too long ends the computation
with `SlowRenderError`; a child makes it, and the computation is made again with what it gave.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from noetl_playbook.templates.render_limits import LimitExceededError, RenderGuard

# What the renders of one computation may hold a process that has other things to do.
HELD_S = 0.01

Run = Callable[[Mapping[str, Any]], Any]


class SlowRenderError(Exception):
    """A render would hold this process too long: it is to be made in another one."""

    def __init__(self, _message: str = "") -> None:
        super().__init__("a template is to be rendered in a child process")


class RenderOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one render gave: a value, or an error."""

    value: Any = None
    error: Exception | None = None

    def get_value(self) -> Any:
        """Return the value; raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


class RenderObserver(Protocol):
    """Follows each render in a child process, so that one that takes too long can be named."""

    def observe_render(
        self, place: int, expression: str, seconds: float, render: Callable[[], Any]
    ) -> Any:
        """Report the begin and the outcome of a render; return or raise what `render` does.

        `place` numbers the renders of a computation.
        """


class RenderRecord:
    """Counts the renders of a computation, and gives what is known of them.

    `spent_s` reads the processor time of the thread.
    """

    def __init__(self, spent_s: Callable[[], float]) -> None:
        self._spent_s = spent_s
        self.rendered: dict[int, RenderOutcome] = {}
        self._observer: RenderObserver | None = None
        self._place = 0
        self._left_s = HELD_S

    def start_recording(self, observer: RenderObserver | None = None) -> None:
        """Begin the computation anew; with an observer it is made in a child."""
        self._observer = observer
        self._place = 0
        self._left_s = HELD_S

    def forget_all(self) -> None:
        """Know nothing: the computation is another one."""
        self.rendered.clear()

    def render(
        self,
        run: Run,
        scope: Mapping[str, Any],
        *,
        guard: RenderGuard | None,
        seconds: float,
        expression: str,
        build_error: Callable[[LimitExceededError], Exception],
    ) -> Any:
        """Render, or return a child's render; raises `SlowRenderError` and by `build_error`."""
        place, self._place = self._place, self._place + 1
        recorded = self.rendered.get(place)
        if recorded is not None:
            return recorded.get_value()
        if self._observer is None:
            return self._render_in_process(run, scope, guard, build_error)

        def render_fully() -> Any:
            try:
                return run_guarded(run, scope, guard, seconds, LimitExceededError)
            except LimitExceededError as error:
                raise build_error(error) from error

        return self._observer.observe_render(place, expression, seconds, render_fully)

    def _render_in_process(
        self,
        run: Run,
        scope: Mapping[str, Any],
        guard: RenderGuard | None,
        build_error: Callable[[LimitExceededError], Exception],
    ) -> Any:
        if self._left_s <= 0:
            raise SlowRenderError
        began_at = self._spent_s()
        try:
            return run_guarded(run, scope, guard, self._left_s, SlowRenderError)
        except LimitExceededError as error:
            raise build_error(error) from error
        finally:
            self._left_s -= self._spent_s() - began_at


def run_guarded(
    run: Run,
    scope: Mapping[str, Any],
    guard: RenderGuard | None,
    seconds: float,
    error: Callable[[str], Exception],
) -> Any:
    """Run under a guard, if there is one that is free."""
    if guard is None or not guard.start_watch(seconds, error):
        return run(scope)
    try:
        return run(scope)
    finally:
        guard.stop_watch()
