"""What an execution says for all its steps, put where a step says nothing itself."""

from typing import Any

from msgspec import structs

from noetl_playbook.model import Output, Step

TIMEOUT = "timeout_s"
INLINE = "inline_max_bytes"


def applied(step: Step, defaults: dict[str, Any]) -> Step:
    """Return the step with the execution's `inline_max_bytes`, where it names none of its own."""
    inline_max_bytes = defaults.get(INLINE)
    if inline_max_bytes is None:
        return step
    tasks = tuple(
        structs.replace(task, output=_filled(task.output, inline_max_bytes))
        if task.output is not None
        else task
        for task in step.tool
    )
    output = step.output
    if output is not None or step.tool[-1].output is None:
        output = _filled(output or Output(), inline_max_bytes)
    return structs.replace(step, tool=tasks, output=output)


def _filled(output: Output, inline_max_bytes: int) -> Output:
    if output.inline_max_bytes is not None:
        return output
    return structs.replace(output, inline_max_bytes=inline_max_bytes)
