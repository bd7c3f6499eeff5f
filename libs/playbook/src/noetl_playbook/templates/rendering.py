"""How much one render may take: time, text, items, payload bytes (language, section 15)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

MIB = 1024 * 1024
TEXT_CHARACTERS_MAX = 64 * MIB
# Of all for blocks of one render together, so that loops in loops end where there is no clock.
ITERATIONS_MAX = 10_000_000

Run = Callable[[Mapping[str, Any]], Any]


class LimitExceededError(Exception):
    """A render took more than it may; `kind` is the error's kind."""

    def __init__(self, message: str, *, kind: str = "limit") -> None:
        super().__init__(message)
        self.kind = kind


class RenderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one render may take in one place."""

    seconds: float = 30.0
    payload_bytes: int = 256 * MIB


WORKER = RenderLimits()
PLANNER = RenderLimits(seconds=5.0, payload_bytes=16 * MIB)


class Guard(Protocol):
    """Interrupts what takes too long; a process has one where it can interrupt itself."""

    def arm(self, seconds: float, error: Callable[[str], Exception]) -> bool:
        """Begin to watch, and raise `error` when it is too much; False when it cannot."""

    def disarm(self) -> None:
        """End watching."""


_guards: list[Guard] = []


@contextmanager
def guarded_by(guard: Guard) -> Iterator[None]:
    """Let a guard watch over every render that can be expensive while the block runs."""
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)


def watched(
    run: Run, shown: Callable[[LimitExceededError], Exception], *, expression: str, is_cheap: bool
) -> Run:
    """Run under the process's guard; raises what `shown` makes of a limit that was exceeded.

    Where the scope counts its renders, they may be made in another process.
    """

    def watched_run(scope: Mapping[str, Any]) -> Any:
        guard = _guards[-1] if _guards else None
        parts = getattr(scope, "parts", None)
        renders = getattr(parts, "renders", None)
        if renders is not None:
            seconds = _limits_of(scope).seconds
            return renders.render(
                run, scope, guard=guard, seconds=seconds, expression=expression, shown=shown
            )
        if (
            guard is None
            or is_cheap
            or not guard.arm(_limits_of(scope).seconds, LimitExceededError)
        ):
            return run(scope)
        try:
            try:
                return run(scope)
            finally:
                guard.disarm()
        except LimitExceededError as error:
            # The guard may strike after the last of the template's own code.
            raise shown(error) from error

    return watched_run


def _limits_of(scope: Mapping[str, Any]) -> RenderLimits:
    found: RenderLimits = getattr(getattr(scope, "parts", None), "limits", WORKER)
    return found


class Budget:
    """The iterations that are left to one render."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ITERATIONS_MAX

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items for as long as there are iterations left."""
        for item in items:
            self._left -= 1
            if self._left < 0:
                raise LimitExceededError(f"the loops run more than {ITERATIONS_MAX} times")
            yield item


def joined(parts: Iterable[str]) -> str:
    """Put the parts of a text together, up to the longest text that there may be."""
    texts: list[str] = []
    length = 0
    for part in parts:
        length += len(part)
        check_length(length)
        texts.append(part)
    return "".join(texts)


def bounded(text: str) -> str:
    """Admit a text that is not too long."""
    check_length(len(text))
    return text


def check_length(length: int) -> None:
    """Refuse a text that is, or would be, too long; raises `LimitExceededError`."""
    if length > TEXT_CHARACTERS_MAX:
        raise LimitExceededError(
            f"the rendered text is longer than {TEXT_CHARACTERS_MAX} characters"
        )


def payload_too_large(payload_bytes: int, limits: RenderLimits) -> str:
    """Say that a template would load too much, and what to do instead."""
    return (
        f"the template loads {payload_bytes} bytes of values kept by reference; one render may "
        f"load {limits.payload_bytes}: keep what it needs of a result beside the reference with "
        "output.select, and what it needs of a ctx value under a name of its own"
    )
