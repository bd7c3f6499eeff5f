"""How much one operation of C may visit: nothing interrupts it once it has begun.

Lists that hold one list twice, and so on, are small in memory and endless to walk.
So the parts of a value are counted before it is compared, sorted, hashed or written, as often as
such an operation would visit them.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any

from noetl_playbook.templates.rendering import LimitExceededError

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
        raise _too_heavy()


def check_pair(left: Any, right: Any) -> None:
    """Admit two values that are compared: that ends with the smaller one."""
    if type(left) in LEAVES or type(right) in LEAVES:
        return
    if _is_heavy(left) and _is_heavy(right):
        raise _too_heavy()


def check_search(container: Any, item: Any) -> None:
    """Admit an item that is hashed, or compared with all that a container holds."""
    if type(item) not in LEAVES:
        check_weight(item)
        check_weight(container)


def compared(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Let a comparison visit no more than it may."""

    def compare(left: Any, right: Any) -> Any:
        if type(left) not in LEAVES and type(right) not in LEAVES:
            check_pair(left, right)
        return apply(left, right)

    return compare


def materialized(value: Any) -> Any:
    """Return what can be counted before it is used: the items of an iterator as a list."""
    return list(value) if isinstance(value, Iterator) else value


def _is_heavy(value: Any) -> bool:
    """Tell whether a walk over a value would visit more than it may."""
    return _Scale().weigh(value) > NODES_MAX


class _Scale:
    """Weighs each holder once, and counts it as often as it is held."""

    def __init__(self) -> None:
        self._weight_by_id: dict[int, int] = {}
        # An identity is a holder's only while something keeps it.
        self._kept: list[Any] = []

    def weigh(self, value: Any) -> int:
        """Return how many holders a walk visits."""
        items = _items_of(value)
        weight = 1 + len(items) // _LEAVES_PER_NODE
        known = self._weight_by_id
        for item in items:
            kind = type(item)
            if kind is str:
                weight += len(item) // _CHARACTERS_PER_NODE
            elif kind not in LEAVES:
                if id(item) not in known:
                    known[id(item)] = self.weigh(item)
                    self._kept.append(item)
                weight += known[id(item)]
        return weight


def _items_of(held: Any) -> Any:
    if type(held) is list or type(held) is tuple:
        return held
    if isinstance(held, Mapping):
        return [*held.keys(), *held.values()]
    return list(held) if isinstance(held, _LISTS) else ()


def _too_heavy() -> LimitExceededError:
    return LimitExceededError(
        f"an operation would visit more than {NODES_MAX} values that hold each other: "
        "name the part that is needed, or let a task do it"
    )
