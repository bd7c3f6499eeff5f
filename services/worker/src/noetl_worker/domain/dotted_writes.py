"""Writes to dotted names: the mappings on the way are copied, not shared."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from noetl_playbook.templates import output_forms


class TargetShape(Protocol):
    """What a write needs to know of its target."""

    @property
    def room(self) -> str:
        """The mapping that is written to."""

    @property
    def key(self) -> str:
        """The target as its author wrote it."""

    @property
    def path(self) -> tuple[str, ...]:
        """The name in the room, and the keys below it."""


T = TypeVar("T", bound=TargetShape)


class NotAMapping(Exception):  # noqa: N818 - it says what was found
    """A dotted target leads through a value that has no keys."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is not a mapping, it has no keys: set {name!r} as a whole")
        self.target = ""


def compute_whole_values(
    targets: Sequence[T], values: Sequence[Any], *, before: Callable[[T], Any]
) -> list[Any]:
    """Return what each target's top-level name holds after it, one after another.

    Raises `NotAMapping`, which says whose `target` it is.
    """
    value_by_place: dict[tuple[str, str], Any] = {}
    whole_values = []
    for target, value in zip(targets, values, strict=True):
        place, whole = (target.room, target.path[0]), value
        if target.path[1:]:
            base = value_by_place[place] if place in value_by_place else before(target)
            try:
                whole = _write_below(base, target.path, value)
            except NotAMapping as problem:
                problem.target = target.key
                raise
        value_by_place[place] = whole
        whole_values.append(whole)
    return whole_values


def _write_below(base: Any, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Write below a value; the mappings on the way are copied, not shared."""
    name, key, *_ = path
    mapping = base if type(base) is dict else output_forms.to_plain(base)
    if not isinstance(mapping, dict):
        raise NotAMapping(name)
    branch = mapping.copy()
    inner = branch.get(key, {})
    branch[key] = _write_below(inner, path[1:], value) if path[2:] else value
    return branch
