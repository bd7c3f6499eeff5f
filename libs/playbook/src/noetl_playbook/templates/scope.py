"""Which value a bare name has: the fixed names first, then the rest in their order."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from noetl_playbook.templates.lookup import MISSING, Lookup, SafeCall, look_up_member
from noetl_playbook.templates.render_limits import WORKER, RenderLimits
from noetl_playbook.templates.render_record import RenderRecord

_NOTHING: Mapping[str, Any] = {}
# Fixed names that mean the same for all rows of a frame.
STEADY_NAMES = frozenset({"workload", "execution_id", "frame"})

_HANDED = frozenset({"increment", "input", "parent_execution_id", "payload"})
_OF_OUTPUT = {"result": "data", "response": "data", "error": "error"}


class TimeSource(msgspec.Struct, frozen=True, kw_only=True):
    """Time and identity, handed in; the planner hands in what it recorded."""

    now: Callable[[], datetime]
    new_uuid: Callable[[], str]

    def build_names(self) -> dict[str, Any]:
        """Give the global functions that depend on them."""
        return {
            "now": SafeCall(self.now),
            "today": SafeCall(lambda: self.now().date()),
            "uuid4": SafeCall(self.new_uuid),
        }


class ScopeParts(msgspec.Struct, frozen=True, kw_only=True):
    """Where bare names come from after the fixed ones, in this order; all may change in place.

    `limits` bound every render of the place; with `renders` these may be made in another process.
    Where it `is_lenient`, what is not there is false.
    """

    variables: Mapping[str, Any] = _NOTHING
    tasks: Mapping[str, Any] = _NOTHING
    iterators: Mapping[str, Any] = _NOTHING
    steps: Mapping[str, Any] = _NOTHING
    ctx: Mapping[str, Any] = _NOTHING
    workload: Mapping[str, Any] = _NOTHING
    limits: RenderLimits = WORKER
    renders: RenderRecord | None = None
    is_lenient: bool = False


class TemplateScope(dict[str, Any]):
    """The names of one place: fixed names are its own items, other names are looked for.

    Nothing is copied but the fixed names; a part that changes is seen at once. `steady` holds what
    templates of `STEADY_NAMES` gave, for all places in which these mean the same.
    """

    __slots__ = ("_in_order", "is_lenient", "parts", "steady")

    def __init__(
        self, fixed: Mapping[str, Any], parts: ScopeParts, *, steady: dict[Any, Any] | None = None
    ) -> None:
        super().__init__(fixed)
        self.parts = parts
        self.is_lenient = parts.is_lenient
        self.steady = steady
        self._in_order = (
            parts.variables,
            parts.tasks,
            parts.iterators,
            parts.steps,
            parts.ctx,
            parts.workload,
        )

    def __missing__(self, name: str) -> Any:
        for part in self._in_order:
            if name in part:
                return part[name]
        last_name = self._find_last_name(name)
        if last_name is MISSING:
            raise KeyError(name)
        return last_name

    def _find_last_name(self, name: str) -> Any:
        """Look for the names that anything else may hide."""
        if name in _HANDED:
            return self._find_handed(name)
        if name in _OF_OUTPUT:
            return self._find_in_output(_OF_OUTPUT[name])
        if name == "outcome":
            return dict.get(self, "output", MISSING)
        if name == "args":
            return ArgumentsView(self._find_handed("input"), self.parts.ctx)
        return self.parts.ctx if name == "vars" else MISSING

    def _find_handed(self, name: str) -> Any:
        return dict.get(self, last_name_key(name), MISSING)

    def _find_in_output(self, name: str) -> Any:
        output = dict.get(self, "output")
        return MISSING if output is None else look_up_member(output, name)

    def extend_scope(
        self, fixed: Mapping[str, Any], *, parts: ScopeParts | None = None
    ) -> "TemplateScope":
        """Make a scope with more fixed names, and other parts if given."""
        steady = self.steady if STEADY_NAMES.isdisjoint(fixed) else None
        scope = TemplateScope(self, parts or self.parts, steady=steady)
        scope.update(fixed)
        return scope

    def known_names(self) -> Iterator[str]:
        """List every name for spelling hints."""
        yield from self.keys()
        for part in self._in_order:
            yield from part


def last_name_key(name: str) -> str:
    """Key under which a scope is handed a name that anything else may hide."""
    return f"\x00{name}"


class ArgumentsView(Lookup):
    """The older `args`: the current input, then `ctx`."""

    __slots__ = ("_ctx", "_input")

    def __init__(self, fixed: Any, ctx: Mapping[str, Any]) -> None:
        self._input: Mapping[str, Any] = fixed if isinstance(fixed, Mapping) else _NOTHING
        self._ctx = ctx

    def find_member(self, key: Any) -> Any:
        """Find an input, else a `ctx` key."""
        member = self._input.get(key, MISSING)
        return self._ctx.get(key, MISSING) if member is MISSING else member

    def to_plain(self) -> Any:
        """Give both as one mapping."""
        return {**self._ctx, **self._input}

    def known_names(self) -> Iterable[str]:
        """List the names of both."""
        return [*self._input, *self._ctx]


def build_item_names(
    *,
    iterator: str,
    item: Any,
    index: int,
    total: int | None,
    loop_id: str,
    key: str | None = None,
    ended: tuple[int, int] | None = None,
    scratch: Mapping[str, Any] = _NOTHING,
) -> dict[str, Any]:
    """Give the fixed names of one item; `iter` is a fresh mapping that the pipeline may change.

    `ended` counts the units that were done and that had failed when this one was handed out.
    """
    is_last = total is not None and index == total - 1
    position = {
        "index": index,
        "index0": index,
        "first": index == 0,
        "last": is_last,
        "length": total,
        "done": None if ended is None else ended[0],
        "failed": None if ended is None else ended[1],
    }
    named: dict[str, Any] = {
        iterator: item,
        "index": index,
        "_index": index,
        "_first": index == 0,
        "_last": is_last,
        "_total": total,
        "_key": key or f"{loop_id}:{index}",
        "_loop_id": loop_id,
        **scratch,
    }
    return {"iter": named, "loop_index": index, "loop": position}
