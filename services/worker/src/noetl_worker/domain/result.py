"""Results of a step: names that it selects, values that it collects, and their sizes."""

import re
from collections.abc import Collection as Names
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.payloads import COLLECTED_BYTES_MAX
from noetl_playbook.model.playbook import Accumulate, Output, Selection
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.lookup import MISSING, look_up_member
from noetl_playbook.views.result_view import find_body, view_pipeline
from noetl_playbook.views.results import PipelineResult, TaskResult

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


class CollectionFull(Exception):  # noqa: N818 - it says what was found
    """A collection would take more bytes than it may."""

    def __init__(self, accumulate: Accumulate, size_bytes: int) -> None:
        super().__init__(
            f"'{accumulate.manifest_as}' would take {size_bytes} bytes, max_bytes is "
            f"{accumulate.max_bytes}: "
            "collect less of each attempt (its path), raise max_bytes up to "
            f"{COLLECTED_BYTES_MAX}, or write each page to a table as it comes"
        )


@lru_cache(maxsize=1024)
def split_path(path: str) -> tuple[str | int, ...]:
    """Split a dotted path with `[i]` into its keys."""
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in _STEP.findall(path))


def find_at_path(value: Any, path: str) -> Any:
    """Return what a dotted path with `[i]` leads to, or `ABSENT`."""
    for key in split_path(path):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and str(key).isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return ABSENT
    return value


def find_value(raw: Any, body: Any, path: str) -> Any:
    """Return what a path leads to in the body of a result, else in the result, or `ABSENT`.

    In the result the body is `data`, as templates have it.
    """
    if body is None:
        return find_at_path(raw, path)
    value = find_at_path(body, path)
    return find_at_path({**raw, "data": body}, path) if value is ABSENT else value


def select_fields(raw: Any, body: Any, selections: Iterable[Selection]) -> dict[str, Any]:
    """Return the selected fields of a raw result, or of the body that it carries."""
    fields: dict[str, Any] = {}
    for selection in selections:
        value = find_at_path(raw, selection.path)
        if value is ABSENT:
            value = find_at_path(body, selection.path)
        if value is not ABSENT:
            fields[selection.as_] = value
    return fields


def list_readable_fields(
    pipeline_result: PipelineResult, collected: Names[str] = ()
) -> dict[str, Any]:
    """Return what is readable without loading: selections, then top-level scalars.

    What is `collected` under a name is there only while it is small. Raises `SelectionTooLarge`.
    """
    selections: dict[str, Any] = {}
    for task in pipeline_result.tasks.values():
        selections.update(task.names)
    readable_fields = selections
    if collected:
        readable_fields = {
            name: value for name, value in selections.items() if name not in collected
        }
    selected_size = _check_selected_size(readable_fields)
    if collected:
        readable_fields.update(
            _pick_small_collections(
                selections, collected, room=SELECTED_TOGETHER_BYTES_MAX - selected_size
            )
        )
    front = pipeline_result.tasks.get(pipeline_result.last or "")
    scalars = _pick_small_scalars(front.raw, besides=selections) if front is not None else {}
    return {**scalars, **readable_fields}


def _pick_small_collections(
    selections: dict[str, Any], collected: Names[str], *, room: int
) -> dict[str, Any]:
    """Return the collected values that are small enough for an event, until `room` is used up."""
    small_values: dict[str, Any] = {}
    for name in collected:
        size = len(codec.encode_json(selections[name])) if name in selections else room + 1
        if size <= min(room, SELECTED_BYTES_MAX):
            small_values[name] = selections[name]
            room -= size
    return small_values


def _pick_small_scalars(raw: Any, *, besides: Names[str]) -> dict[str, Any]:
    """Return the small top-level values of a result, as many as there is room for."""
    spent_bytes = 0
    small_values: dict[str, Any] = {}
    for key, value in raw.items() if isinstance(raw, Mapping) else ():
        size = (
            len(key) + len(codec.encode_json(value)) if _is_scalar(value) else FIELD_BYTES_MAX + 1
        )
        if (
            key not in besides
            and size <= FIELD_BYTES_MAX
            and spent_bytes + size <= FIELDS_BYTES_MAX
        ):
            small_values[key] = value
            spent_bytes += size
    return small_values


def _check_selected_size(selections: dict[str, Any]) -> int:
    """Return how many bytes the selected fields take together; raises `SelectionTooLarge`."""
    sizes = {name: len(codec.encode_json(value)) for name, value in selections.items()}
    for name, size in sizes.items():
        if size > SELECTED_BYTES_MAX:
            raise SelectionTooLarge(
                f"selected field '{name}' has {size} bytes, the limit is {SELECTED_BYTES_MAX}: "
                "select something smaller and read the rest through the reference"
            )
    total_bytes = sum(sizes.values())
    if total_bytes > SELECTED_TOGETHER_BYTES_MAX:
        raise SelectionTooLarge(
            f"the selected fields together exceed {SELECTED_TOGETHER_BYTES_MAX} bytes"
        )
    return total_bytes


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


class CollectedValue:
    """A value collected over repeated runs of one task; a list grows where it is."""

    def __init__(self, value: Any = None, *, size_bytes: int | None = None) -> None:
        # A list given is of an earlier run, or of a store: only its copy may grow.
        self.value = [*value] if isinstance(value, list) else value
        self.is_truncated = self.is_replaced = False
        if size_bytes is None:
            size_bytes = 0 if value is None else len(codec.encode_json(value))
        self.size_bytes = size_bytes

    def copy(self) -> "CollectedValue":
        """Return a collection of the same, whose list grows apart from this one."""
        collection = CollectedValue(self.value, size_bytes=self.size_bytes)
        collection.is_truncated = self.is_truncated
        return collection

    def add_contribution(self, output: Output, value: Any) -> None:
        """Add what one attempt contributed; raises `NotAccumulable` or `CollectionFull`."""
        accumulate = output.accumulate
        if accumulate is None or value is ABSENT:
            return
        self._count_added_bytes(accumulate, value)
        match accumulate.strategy:
            case "append":
                self._extend_list(value if isinstance(value, list) else [value])
            case "concat":
                if isinstance(value, list) and isinstance(self.value, list | None):
                    self._extend_list(value)
                else:
                    self.value = _concatenate_values(self.value, value)
            case "merge":
                if not isinstance(value, dict):
                    raise NotAccumulable("merge", "mappings", value)
                self.value = merge_mappings(self.value or {}, value)
            case "replace":
                self.value, self.is_replaced = value, True
        if accumulate.max_items is not None and isinstance(self.value, list):
            self.is_truncated = self.is_truncated or len(self.value) > accumulate.max_items
            self.value = self.value[: accumulate.max_items]

    def _extend_list(self, values: list[Any]) -> None:
        if not isinstance(self.value, list):
            self.value = [*(self.value or [])]
        self.value.extend(values)

    def _count_added_bytes(self, accumulate: Accumulate, value: Any) -> None:
        """Count what is added; raises `CollectionFull`."""
        added_bytes = len(codec.encode_json(value))
        size_bytes = (
            added_bytes if accumulate.strategy == "replace" else self.size_bytes + added_bytes
        )
        if (
            size_bytes > accumulate.max_bytes
            and accumulate.strategy == "merge"
            and isinstance(value, dict)
        ):
            # A key that was there before is replaced, not added.
            size_bytes = len(codec.encode_json(merge_mappings(self.value or {}, value)))
        if size_bytes > accumulate.max_bytes:
            raise CollectionFull(accumulate, size_bytes)
        self.size_bytes = size_bytes


def _concatenate_values(before: Any, value: Any) -> Any:
    """Lay lists or strings end to end."""
    if before is None and isinstance(value, list | str):
        return value
    if isinstance(before, list) and isinstance(value, list):
        return [*before, *value]
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    raise NotAccumulable("concat", "lists, or strings, not both", value)


def merge_mappings(base: Any, over: Any) -> Any:
    """Lay one mapping over another, mapping by mapping; other values are replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{key: merge_mappings(base.get(key), item) for key, item in over.items()}}


class StepOutputNames:
    """Names fields of a step's result, and what this run of the step and those before gave."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._collection = CollectedValue()

    @property
    def manifest_name(self) -> str | None:
        """Return the name of what is collected, None when nothing is."""
        accumulate = self._output.accumulate
        return accumulate.manifest_as if accumulate is not None and accumulate.enabled else None

    @property
    def collected_value(self) -> Any:
        """Return what the step's runs have given so far."""
        return [] if self._collection.value is None else self._collection.value

    @property
    def is_truncated(self) -> bool:
        """Tell whether more was given than is kept."""
        return self._collection.is_truncated

    def resume_from(self, earlier: Any) -> None:
        """Begin with what earlier runs have given."""
        self._collection = CollectedValue(earlier)

    def collect_result(self, result: PipelineResult, *, is_ok: bool) -> None:
        """Add what this run gave; raises `NotAccumulable`."""
        accumulate = self._output.accumulate
        name = _find_front_task(result, is_ok=is_ok)
        if accumulate is None or not accumulate.enabled or name is None:
            return
        has_succeeded = is_ok and result.tasks[name].error is None
        if accumulate.on_success if has_succeeded else accumulate.on_error:
            # Templates of this run may have given the list itself to a result.
            self._collection = self._collection.copy()
            self._collection.add_contribution(
                self._output, _find_contribution(result, name, accumulate.merge_path or "")
            )

    def add_names_to(self, result: PipelineResult, *, is_ok: bool) -> PipelineResult:
        """Return a result with the names among those of the task in front."""
        name = _find_front_task(result, is_ok=is_ok)
        if name is None:
            return result
        front = result.tasks[name]
        names = {**self._select_names(result), **front.names}
        if self.manifest_name is not None:
            names[self.manifest_name] = self.collected_value
        named_task = structs.replace(front, names=names)
        return structs.replace(result, tasks={**result.tasks, name: named_task})

    def _select_names(self, result: PipelineResult) -> dict[str, Any]:
        view = view_pipeline(result)
        view_paths = {
            selection.as_: read_view_path(view, selection.path) for selection in self._output.select
        }
        return {name: value for name, value in view_paths.items() if value is not ABSENT}


def read_view_path(view: Any, path: str) -> Any:
    """Return the plain value that a dotted path leads to by the rules of a view, or `ABSENT`."""
    for part in split_path(path):
        if isinstance(view, str):
            return ABSENT
        is_index = isinstance(view, list) and str(part).isdecimal()
        view = look_up_member(view, int(part) if is_index else part)
        if view is MISSING:
            return ABSENT
    return output_forms.to_plain(view)


def _find_front_task(result: PipelineResult, *, is_ok: bool) -> str | None:
    """Name the task in front: the last that succeeded, or that a failed run has ended with."""
    latest = next(reversed(result.tasks), None)
    return (result.last or latest) if is_ok else latest


def _find_contribution(result: PipelineResult, front: str, path: str) -> Any:
    """Return what a path leads to: in the task in front, in one that it names, or in the latest."""
    contribution = find_at_path(_get_task_body(result.tasks[front]), path)
    if contribution is not ABSENT:
        return contribution
    head, *_ = split_path(path)
    if head == "results" or head in result.tasks:
        return read_view_path(view_pipeline(result), path)
    earlier = [task for name, task in result.tasks.items() if name != front]
    paths = (find_at_path(_get_task_body(task), path) for task in reversed(earlier))
    return next((value for value in paths if value is not ABSENT), ABSENT)


def _get_task_body(task: TaskResult) -> Any:
    """Return the body that a task's result carries, or the result itself."""
    body = find_body(task.kind, task.raw)
    return task.raw if body is None else body
