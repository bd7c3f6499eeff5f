"""What a task gave, stored by itself while its pipeline goes on."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import structs

from noetl_playbook.model import Output
from noetl_playbook.results import TaskResult
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.result import SelectionTooLarge
from noetl_worker.lanes.block import CompiledTask
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.output_blocks import rendered
from noetl_worker.lanes.scratch import Scratch, Tried


class Loading(Protocol):
    """Renders, getting each payload that turns out to be needed."""

    def __call__(self, render: Callable[[], Output | None], /) -> Awaitable[Output | None]:
        """Return what was rendered."""


async def kept(
    task: CompiledTask, tried: Tried, *, scratch: Scratch, hands: Hands, loading: Loading
) -> Tried:
    """Store what a task gave, unless the playbook sees it inline; raises `ToolFailure`."""
    output = await loading(
        lambda: rendered(task.output, scratch.scope, step=scratch.site.step, task=task.name)
    )
    assert output is not None, "no task is kept without a block that says so"
    try:
        envelope = await hands.keeper.keep_task(
            task.name, _without_collection(tried.result, output), output=output
        )
    except SelectionTooLarge as problem:
        error = failure("payload_too_large", str(problem), task=task.name)
        raise ToolFailure(error) from problem
    return tried if envelope is None else scratch.refer(task, tried, envelope)


def _without_collection(result: TaskResult, output: Output) -> TaskResult:
    """Leave out what was collected so far: it is the pipeline's, and grows with each attempt."""
    names: dict[str, Any] = dict(result.names)
    if output.accumulate is not None:
        names.pop(output.accumulate.manifest_as, None)
    return structs.replace(result, names=names)
