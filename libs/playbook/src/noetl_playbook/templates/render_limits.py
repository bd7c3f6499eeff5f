"""How much one render may take: time, text, items, payload bytes (language, section 15)."""

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, Protocol

import jinja2
import msgspec
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

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


class RenderGuard(Protocol):
    """Interrupts what takes too long; a process has one where it can interrupt itself."""

    def start_watch(self, seconds: float, error: Callable[[str], Exception]) -> bool:
        """Begin to watch, and raise `error` when it is too much; False when it cannot."""

    def stop_watch(self) -> None:
        """End watching."""


_guards: list[RenderGuard] = []


@contextmanager
def install_guard(guard: RenderGuard) -> Iterator[None]:
    """Let a guard watch over every render that can be expensive while the block runs."""
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)


def watch_render(
    run: Run,
    build_error: Callable[[LimitExceededError], Exception],
    *,
    expression: str,
    is_cheap: bool,
) -> Run:
    """Run under the process's guard; raises what `build_error` makes of a limit that was exceeded.

    Where the scope counts its renders, they may be made in another process.
    """

    def run_watched(scope: Mapping[str, Any]) -> Any:
        guard = _guards[-1] if _guards else None
        parts = getattr(scope, "parts", None)
        renders = getattr(parts, "renders", None)
        if renders is not None:
            seconds = _find_limits(scope).seconds
            return renders.render(
                run,
                scope,
                guard=guard,
                seconds=seconds,
                expression=expression,
                build_error=build_error,
            )
        if (
            guard is None
            or is_cheap
            or not guard.start_watch(_find_limits(scope).seconds, LimitExceededError)
        ):
            return run(scope)
        try:
            try:
                return run(scope)
            finally:
                guard.stop_watch()
        except LimitExceededError as error:
            # The guard may strike after the last of the template's own code.
            raise build_error(error) from error

    return run_watched


def _find_limits(scope: Mapping[str, Any]) -> RenderLimits:
    render_limits: RenderLimits = getattr(getattr(scope, "parts", None), "limits", WORKER)
    return render_limits


class LoopBudget:
    """The iterations that are left to one render."""

    __slots__ = ("_iterations_left",)

    def __init__(self) -> None:
        self._iterations_left = ITERATIONS_MAX

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items for as long as there are iterations left."""
        for item in items:
            self._iterations_left -= 1
            if self._iterations_left < 0:
                raise LimitExceededError(f"the loops run more than {ITERATIONS_MAX} times")
            yield item


def join_parts(parts: Iterable[str]) -> str:
    """Put the parts of a text together, up to the longest text that there may be."""
    texts: list[str] = []
    length = 0
    for part in parts:
        length += len(part)
        check_length(length)
        texts.append(part)
    return "".join(texts)


def bound_text(text: str) -> str:
    """Admit a text that is not too long."""
    check_length(len(text))
    return text


def check_length(length: int) -> None:
    """Refuse a text that is, or would be, too long; raises `LimitExceededError`."""
    if length > TEXT_CHARACTERS_MAX:
        raise LimitExceededError(
            f"the rendered text is longer than {TEXT_CHARACTERS_MAX} characters"
        )


def check_item_count(count: int) -> None:
    """Refuse a list that no loop could walk to its end; raises `LimitExceededError`."""
    if count > ITERATIONS_MAX:
        raise LimitExceededError(f"the list would hold more than {ITERATIONS_MAX} items")


def payload_too_large(payload_bytes: int, limits: RenderLimits) -> str:
    """Say that a template would load too much, and what to do instead."""
    return (
        f"the template loads {payload_bytes} bytes of values kept by reference; one render may "
        f"load {limits.payload_bytes}: keep what it needs of a result beside the reference with "
        "output.select, and what it needs of a ctx value under a name of its own"
    )


# As many as all loops of a render may run.
NODES_MAX = 10_000_000
# Numbers and texts beside each other are far quicker to visit than what holds others.
_LEAVES_PER_NODE = 16
_CHARACTERS_PER_NODE = 1024
LEAVES = frozenset({str, int, float, bool, type(None)})
_LISTS = (list, tuple, AbstractSet, ValuesView, ItemsView)


def check_weight(value: Any) -> None:
    """Admit a value that one operation visits as a whole; raises `LimitExceededError`."""
    if type(value) not in LEAVES and _is_heavy(value):
        raise _build_too_heavy_error()


def check_pair(left: Any, right: Any) -> None:
    """Admit two values that are compared: that ends with the smaller one."""
    if type(left) in LEAVES or type(right) in LEAVES:
        return
    if _is_heavy(left) and _is_heavy(right):
        raise _build_too_heavy_error()


def check_search(container: Any, item: Any) -> None:
    """Admit an item that is hashed, or compared with all that a container holds."""
    if type(item) not in LEAVES:
        check_weight(item)
        check_weight(container)


def limit_comparison(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Let a comparison visit no more than it may."""

    def compare_limited(left: Any, right: Any) -> Any:
        if type(left) not in LEAVES and type(right) not in LEAVES:
            check_pair(left, right)
        return apply(left, right)

    return compare_limited


class LazyItems:
    """Items that a filter makes when they are asked for; they are no value before."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def __next__(self) -> Any:
        return next(self._items)

    def __repr__(self) -> str:
        """Refuse: the text of an iterator would tell where it lies in memory."""
        raise TypeError("these items are not made yet, and no value: '| list' makes a list of them")


class Variables(Namespace):
    """What `namespace()` gives: names to assign to, and no value itself."""

    def __repr__(self) -> str:
        raise TypeError("a namespace is not a value: name what it holds, as ns.total")


def refuse_loop(value: Any) -> None:
    """Refuse the state of a loop, which is no value; raises `TypeError`."""
    if isinstance(value, LoopContext):
        raise TypeError("'loop' is not a value: name a field of it, as loop.index")


def materialize_iterator(value: Any) -> Any:
    """Return what can be counted before it is used: the items of an iterator as a list."""
    refuse_loop(value)
    return list(value) if isinstance(value, Iterator) else value


def _is_heavy(value: Any) -> bool:
    """Tell whether a walk over a value would visit more than it may."""
    return _WeightCounter().count_holders(value) > NODES_MAX


class _WeightCounter:
    """Weighs each holder once, and counts it as often as it is held."""

    def __init__(self) -> None:
        self._weight_by_id: dict[int, int] = {}
        # An identity is a holder's only while something keeps it.
        self._held_items: list[Any] = []

    def count_holders(self, value: Any) -> int:
        """Return how many nodes a walk over a value visits; long texts count as several."""
        items = _list_items(value)
        weight = 1 + len(items) // _LEAVES_PER_NODE
        weight_by_id = self._weight_by_id
        for item in items:
            kind = type(item)
            if kind is str:
                weight += len(item) // _CHARACTERS_PER_NODE
            elif kind not in LEAVES:
                if id(item) not in weight_by_id:
                    weight_by_id[id(item)] = self.count_holders(item)
                    self._held_items.append(item)
                weight += weight_by_id[id(item)]
        return weight


def _list_items(holder: Any) -> Any:
    if type(holder) is list or type(holder) is tuple:
        return holder
    if isinstance(holder, Mapping):
        return [*holder.keys(), *holder.values()]
    return list(holder) if isinstance(holder, _LISTS) else ()


def _build_too_heavy_error() -> LimitExceededError:
    return LimitExceededError(
        f"an operation would visit more than {NODES_MAX} values that hold each other: "
        "name the part that is needed, or let a task do it"
    )


_MESSAGE_CHARACTERS_MAX = 1_000

FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    AssertionError,
    NameError,
    RuntimeError,
    OSError,
    MemoryError,
    BufferError,
    EOFError,
    ReferenceError,
    StopIteration,
    SyntaxError,
    SystemError,
    re.error,
    msgspec.MsgspecError,
    LimitExceededError,
)


def flatten_message(message: str) -> str:
    """Write what went wrong on one line that any event can hold."""
    text = " ".join(message[:_MESSAGE_CHARACTERS_MAX].split())
    return text.encode("utf-8", "backslashreplace").decode()
