"""Whether a result travels in its event or by reference, and what stays readable beside it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_playbook.model import Output, Selection
from noetl_playbook.results import PipelineResult
from noetl_playbook.views import body_of

FIELD_BYTES_MAX = 256
FIELDS_BYTES_MAX = 8 * 1024
SELECTED_BYTES_MAX = 8 * 1024
SELECTED_TOGETHER_BYTES_MAX = 32 * 1024
ABSENT = object()

_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")


class SelectionTooLarge(Exception):  # noqa: N818 - it says what is wrong with the selection
    """A selected field is too large to stay beside its reference."""


class NotAccumulable(Exception):  # noqa: N818 - it says what is wrong with the value
    """A value cannot be collected by the strategy of its task."""

    def __init__(self, strategy: str, takes: str, value: Any) -> None:
        super().__init__(
            f"accumulate with strategy '{strategy}' takes {takes}, but an attempt gave "
            f"{type(value).__name__}: choose append, or another merge_path"
        )


def at_path(value: Any, path: str) -> Any:
    """Return what a dotted path with `[i]` leads to, or `ABSENT`."""
    for part in _STEP.findall(path):
        key: Any = int(part[1:-1]) if part.startswith("[") else part
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and str(key).isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return ABSENT
    return value


def selected(raw: Any, body: Any, selections: Iterable[Selection]) -> dict[str, Any]:
    """Return the selected fields of a raw result, or of the body that it carries."""
    found: dict[str, Any] = {}
    for one in selections:
        value = at_path(raw, one.path)
        if value is ABSENT:
            value = at_path(body, one.path)
        if value is not ABSENT:
            found[one.as_] = value
    return found


def with_selection(result: PipelineResult, output: Output | None) -> PipelineResult:
    """Add what a step's `output` selects to the names of its last successful task."""
    front = result.tasks.get(result.last or "")
    if output is None or front is None or not output.select:
        return result
    body = body_of(front.kind, front.raw)
    names = {**selected(front.raw, body, output.select), **front.names}
    return structs.replace(
        result, tasks={**result.tasks, str(result.last): structs.replace(front, names=names)}
    )


def fields_beside(kept: PipelineResult) -> dict[str, Any]:
    """Return what is readable without loading: selections, then top-level scalars.

    Raises `SelectionTooLarge`.
    """
    chosen: dict[str, Any] = {}
    for task in kept.tasks.values():
        chosen.update(task.names)
    _check_selected(chosen)
    front = kept.tasks.get(kept.last or "")
    raw = front.raw if front is not None else None
    spent = 0
    scalars: dict[str, Any] = {}
    for key, value in raw.items() if isinstance(raw, Mapping) else ():
        size = len(key) + len(codec.encode(value)) if _is_scalar(value) else FIELD_BYTES_MAX + 1
        if key not in chosen and size <= FIELD_BYTES_MAX and spent + size <= FIELDS_BYTES_MAX:
            scalars[key] = value
            spent += size
    return {**scalars, **chosen}


def _check_selected(chosen: dict[str, Any]) -> None:
    sizes = {name: len(codec.encode(value)) for name, value in chosen.items()}
    for name, size in sizes.items():
        if size > SELECTED_BYTES_MAX:
            raise SelectionTooLarge(
                f"selected field '{name}' has {size} bytes, the limit is {SELECTED_BYTES_MAX}: "
                "select something smaller and read the rest through the reference"
            )
    if sum(sizes.values()) > SELECTED_TOGETHER_BYTES_MAX:
        raise SelectionTooLarge(
            f"the selected fields together exceed {SELECTED_TOGETHER_BYTES_MAX} bytes"
        )


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


class Collection:
    """A value collected over repeated runs of one task."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.is_truncated = False

    def add(self, output: Output, value: Any) -> None:
        """Add what one attempt contributed; raises `NotAccumulable`."""
        how = output.accumulate
        if how is None or value is ABSENT:
            return
        match how.strategy:
            case "append":
                self.value = [*(self.value or []), *(value if isinstance(value, list) else [value])]
            case "concat":
                self.value = _joined(self.value, value)
            case "merge":
                if not isinstance(value, dict):
                    raise NotAccumulable("merge", "mappings", value)
                self.value = merged(self.value or {}, value)
            case "replace":
                self.value = value
        if how.max_items is not None and isinstance(self.value, list):
            self.is_truncated = self.is_truncated or len(self.value) > how.max_items
            self.value = self.value[: how.max_items]


def _joined(before: Any, value: Any) -> Any:
    """Lay lists or strings end to end."""
    if before is None and isinstance(value, list | str):
        return value
    if isinstance(before, list) and isinstance(value, list):
        return [*before, *value]
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    raise NotAccumulable("concat", "lists, or strings, not both", value)


def merged(base: Any, over: Any) -> Any:
    """Lay one mapping over another, mapping by mapping; other values are replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{key: merged(base.get(key), item) for key, item in over.items()}}
