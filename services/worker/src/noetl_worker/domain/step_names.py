"""What a step's own `output` names of its result: fields of it, and what its runs have given."""

from typing import Any

from msgspec import structs

from noetl_playbook import forms
from noetl_playbook.lookup import MISSING, member
from noetl_playbook.model import Output
from noetl_playbook.results import PipelineResult, TaskResult
from noetl_playbook.views import body_of, pipeline_view
from noetl_worker.domain.result import ABSENT, Collection, at_path, path_parts


class StepNames:
    """Names fields of a step's result, and what this run of the step and those before gave."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._collection = Collection()

    @property
    def manifest(self) -> str | None:
        """Return the name of what is collected, None when nothing is."""
        how = self._output.accumulate
        return how.manifest_as if how is not None and how.enabled else None

    @property
    def collected(self) -> Any:
        """Return what the step's runs have given so far."""
        return [] if self._collection.value is None else self._collection.value

    @property
    def is_truncated(self) -> bool:
        """Tell whether more was given than is kept."""
        return self._collection.is_truncated

    def go_on(self, earlier: Any) -> None:
        """Begin with what earlier runs have given."""
        self._collection = Collection(earlier)

    def collect(self, result: PipelineResult, *, is_ok: bool) -> None:
        """Add what this run gave; raises `NotAccumulable`."""
        how = self._output.accumulate
        name = _front(result, is_ok=is_ok)
        if how is None or not how.enabled or name is None:
            return
        has_succeeded = is_ok and result.tasks[name].error is None
        if how.on_success if has_succeeded else how.on_error:
            # Templates of this run may have given the list itself to a result.
            self._collection = self._collection.copy()
            self._collection.add(self._output, _given(result, name, how.merge_path or ""))

    def added_to(self, result: PipelineResult, *, is_ok: bool) -> PipelineResult:
        """Return a result with the names among those of the task in front."""
        name = _front(result, is_ok=is_ok)
        if name is None:
            return result
        front = result.tasks[name]
        names = {**self._selected(result), **front.names}
        if self.manifest is not None:
            names[self.manifest] = self.collected
        named = structs.replace(front, names=names)
        return structs.replace(result, tasks={**result.tasks, name: named})

    def _selected(self, result: PipelineResult) -> dict[str, Any]:
        view = pipeline_view(result)
        found = {one.as_: read(view, one.path) for one in self._output.select}
        return {name: value for name, value in found.items() if value is not ABSENT}


def read(view: Any, path: str) -> Any:
    """Return the plain value that a dotted path leads to by the rules of a view, or `ABSENT`."""
    for part in path_parts(path):
        if isinstance(view, str):
            return ABSENT
        is_index = isinstance(view, list) and str(part).isdecimal()
        view = member(view, int(part) if is_index else part)
        if view is MISSING:
            return ABSENT
    return forms.plain(view)


def _front(result: PipelineResult, *, is_ok: bool) -> str | None:
    """Name the task in front: the last that succeeded, or that a failed run has ended with."""
    latest = next(reversed(result.tasks), None)
    return (result.last or latest) if is_ok else latest


def _given(result: PipelineResult, front: str, path: str) -> Any:
    """Return what a path leads to: in the task in front, in one that it names, or in the latest."""
    found = at_path(_source(result.tasks[front]), path)
    if found is not ABSENT:
        return found
    head, *_ = path_parts(path)
    if head == "results" or head in result.tasks:
        return read(pipeline_view(result), path)
    earlier = [task for name, task in result.tasks.items() if name != front]
    given = (at_path(_source(task), path) for task in reversed(earlier))
    return next((value for value in given if value is not ABSENT), ABSENT)


def _source(task: TaskResult) -> Any:
    """Return the body that a task's result carries, or the result itself."""
    body = body_of(task.kind, task.raw)
    return task.raw if body is None else body
