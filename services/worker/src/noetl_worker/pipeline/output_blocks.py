"""Which `output` block holds for what: a task's, its step's, or what the execution says."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Output, Step
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.views.results import PipelineResult
from noetl_worker.commands.command_context import build_template_error
from noetl_worker.domain.failures import ToolFailure, build_error

_UNSAID = Output()
# What a block says of where a result is and how it looks there.
_KEEPING = (
    *("inline_max_bytes", "preview_max_bytes", "store", "scope", "as_", "format"),
    "partition_by",
)

# Words by which a template asks for what only a stored result has.
_TELLING = re.compile(r"\b(?:_ref|_store|_bytes|_preview|ref)\b")
# Names that lead to results of a pipeline besides those of its tasks.
_LEADING = frozenset({"_prev", "results", "output", "result", "response", "outcome"})


class OutputBlocks(Struct, frozen=True, kw_only=True):
    """How results are kept: each task's own, and the step's with one of its tasks in front.

    `names` is the step's block where it names something of the step's result. What is collected,
    over a pipeline or over runs of the step, stands under the names of `collected`. With `is_told`
    a template of the pipeline may ask whether what a task gave is stored.
    """

    tasks: tuple[Output | None, ...]
    whole: dict[str, Output | None]
    names: Output | None
    collected: tuple[str, ...]
    is_told: bool

    def get_block(self, result: PipelineResult) -> Output | None:
        """Return how the step's result is kept."""
        front = result.last or next(reversed(result.tasks), next(reversed(self.whole)))
        return self.whole[front]


def build_output_blocks(step: Step, inline_max_bytes: int | None) -> OutputBlocks:
    """Lay a step's blocks over each other; the execution's bound holds where none names one.

    The result of a step's only task is the step's: what the task says of it goes before what the
    step says. Of several tasks each block of a task is for that task, and the step's goes before
    that of the task in front.
    """
    if len(step.tool) > 1:
        return _build_for_several(step, inline_max_bytes)
    (task,) = step.tool
    output = _fill_inline_max(_overlay_block(step.output, task.output), inline_max_bytes)
    own = output
    if own is not None:
        accumulate = None if task.output is None else task.output.accumulate
        own = structs.replace(own, accumulate=accumulate)
    collects = step.output is not None and step.output.accumulate is not None
    names = structs.replace(step.output, select=()) if collects and step.output else None
    return OutputBlocks(
        tasks=(own,),
        whole={task.name: output},
        names=names,
        collected=_list_collected_names(step),
        # Of what streams there is no result before the step has ended.
        is_told=task.stream is None and _is_told(step),
    )


def _build_for_several(step: Step, inline_max_bytes: int | None) -> OutputBlocks:
    output = step.output
    names_something = output is not None and (output.select or output.accumulate is not None)
    return OutputBlocks(
        tasks=tuple(
            None if task.output is None else _fill_inline_max(task.output, inline_max_bytes)
            for task in step.tool
        ),
        whole={
            task.name: _fill_inline_max(_overlay_block(task.output, output), inline_max_bytes)
            for task in step.tool
        },
        names=output if names_something else None,
        collected=_list_collected_names(step),
        is_told=_is_told(step),
    )


def _list_collected_names(step: Step) -> tuple[str, ...]:
    blocks = [step.output, *(task.output for task in step.tool)]
    names = [
        block.accumulate.manifest_as for block in blocks if block is not None and block.accumulate
    ]
    return tuple(dict.fromkeys(names))


def _is_told(step: Step) -> bool:
    """Tell whether a template of a pipeline may ask for the reference of a result of it."""
    if step.output is None and not any(task.output for task in step.tool):
        return False
    leading = _LEADING | {step.step} | _collect_made_names(step)
    for task in step.tool:
        if leading & compile_value(task.fields.get("result_ref")).names:
            return True
        for text in _iterate_templates(codec.to_builtins(task)):
            if _TELLING.search(text) and leading & compile_value(text).names:
                return True
    return False


def _collect_made_names(step: Step) -> frozenset[str]:
    """Gather the names under which a pipeline has its own results."""
    names: set[str] = set()
    for task in step.tool:
        names |= {task.name} | {key.partition(".")[0] for key in task.set}
        names |= {"iter" for rule in task.rules for key in rule.then.set if key.startswith("iter.")}
        names |= {block.as_ for block in (task.output, step.output) if block and block.as_}
    # What is written to state has no reference any more.
    return frozenset(names - {"ctx", "step"})


def _iterate_templates(value: Any) -> Iterator[str]:
    """Go through the templates in a value of any depth."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _iterate_templates(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_templates(item)
    elif coercion.is_template(value):
        yield value


def _overlay_block(base: Output | None, over: Output | None) -> Output | None:
    """Lay what one block says of keeping over what another says; both select."""
    if base is None or over is None:
        return base or over
    said: dict[str, Any] = {
        name: getattr(over, name)
        for name in _KEEPING
        if getattr(over, name) != getattr(_UNSAID, name)
    }
    return structs.replace(base, select=(*base.select, *over.select), **said)


def _fill_inline_max(output: Output | None, inline_max_bytes: int | None) -> Output | None:
    if inline_max_bytes is None:
        return output
    found = output or _UNSAID
    if found.inline_max_bytes is not None:
        return found
    return structs.replace(found, inline_max_bytes=inline_max_bytes)


def render_output(
    output: Output | None, scope: TemplateScope, *, step: str, task: str | None = None
) -> Output | None:
    """Render what a block says; raises `ToolFailure`, or `PayloadNeeded` to be called again."""
    if output is None or not isinstance(output.store.ttl, str):
        return output
    store = output.store
    field = "output.store.ttl"
    try:
        given = compile_value(store.ttl).render(scope)
    except TemplateError as error:
        error_object = build_template_error(error, step=step, task=task, field=field)
        raise ToolFailure(error_object) from error
    ttl_s = coercion.coerce_duration_s(given)
    if given is not None and (ttl_s is None or not ttl_s >= 0):
        place = f"step '{step}'" if task is None else f"step '{step}', task '{task}'"
        text = f"{place}, field '{field}': {given!r} is not a duration"
        raise ToolFailure(build_error("validation", text, step=step, task=task))
    return structs.replace(output, store=structs.replace(store, ttl=ttl_s))
