"""Resolves the effective `output` block of each task of a step, and of the step's result."""

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

_DEFAULT_OUTPUT = Output()
# Fields of a block that decide where and in which form a result is stored.
_STORAGE_FIELDS = (
    *("inline_max_bytes", "preview_max_bytes", "store", "scope", "as_", "format"),
    "partition_by",
)

# Fields that only a stored result has, as templates read them.
_STORED_FIELD_PATTERN = re.compile(r"\b(?:_ref|_store|_bytes|_preview|ref)\b")
# Names of a pipeline's results besides the names of its tasks.
_RESULT_NAMES = frozenset({"_prev", "results", "output", "result", "response", "outcome"})


class OutputBlocks(Struct, frozen=True, kw_only=True):
    """The effective `output` blocks of a step with its tasks.

    `tasks` has one block a task, in the order of the pipeline. `whole` has the block of the step's
    result by the task that ends the step. `names` is the step's own block where it has `select` or
    `accumulate`. `collected` has the names of collected values, over a pipeline or over runs of
    the step. `reads_stored_fields` says that a template of the pipeline may read `_ref`, `_store`
    or another field of a stored result.
    """

    tasks: tuple[Output | None, ...]
    whole: dict[str, Output | None]
    names: Output | None
    collected: tuple[str, ...]
    reads_stored_fields: bool

    def get_block(self, result: PipelineResult) -> Output | None:
        """Return the block that decides how the step's result is stored."""
        last_task = result.last or next(reversed(result.tasks), next(reversed(self.whole)))
        return self.whole[last_task]


def build_output_blocks(step: Step, inline_max_bytes: int | None) -> OutputBlocks:
    """Merge the blocks of a step and its tasks; `inline_max_bytes` is the execution's default.

    The result of an only task is the step's result: fields of the task's block override those of
    the step's block. With several tasks, a task's block is for that task's result, and fields of
    the step's block override those of the task that ends the step.
    """
    if len(step.tool) > 1:
        return _build_for_several_tasks(step, inline_max_bytes)
    (task,) = step.tool
    output = _fill_inline_max(_overlay_block(step.output, task.output), inline_max_bytes)
    task_block = output
    if task_block is not None:
        accumulate = None if task.output is None else task.output.accumulate
        task_block = structs.replace(task_block, accumulate=accumulate)
    collects = step.output is not None and step.output.accumulate is not None
    names = structs.replace(step.output, select=()) if collects and step.output else None
    return OutputBlocks(
        tasks=(task_block,),
        whole={task.name: output},
        names=names,
        collected=_list_collected_names(step),
        # A streaming task has no result before its step has ended.
        reads_stored_fields=task.stream is None and _reads_stored_fields(step),
    )


def _build_for_several_tasks(step: Step, inline_max_bytes: int | None) -> OutputBlocks:
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
        reads_stored_fields=_reads_stored_fields(step),
    )


def _list_collected_names(step: Step) -> tuple[str, ...]:
    blocks = [step.output, *(task.output for task in step.tool)]
    names = [
        block.accumulate.manifest_as for block in blocks if block is not None and block.accumulate
    ]
    return tuple(dict.fromkeys(names))


def _reads_stored_fields(step: Step) -> bool:
    """Return whether a template of the pipeline may read a field that only a stored result has."""
    if step.output is None and not any(task.output for task in step.tool):
        return False
    result_names = _RESULT_NAMES | {step.step} | _collect_own_names(step)
    for task in step.tool:
        if result_names & compile_value(task.fields.get("result_ref")).names:
            return True
        for text in _iterate_templates(codec.to_builtins(task)):
            if _STORED_FIELD_PATTERN.search(text) and result_names & compile_value(text).names:
                return True
    return False


def _collect_own_names(step: Step) -> frozenset[str]:
    """Return the names under which the templates of a pipeline find its results."""
    names: set[str] = set()
    for task in step.tool:
        names |= {task.name} | {key.partition(".")[0] for key in task.set}
        names |= {"iter" for rule in task.rules for key in rule.then.set if key.startswith("iter.")}
        names |= {block.as_ for block in (task.output, step.output) if block and block.as_}
    # A value in `ctx` or `step` is a copy: it has no reference.
    return frozenset(names - {"ctx", "step"})


def _iterate_templates(value: Any) -> Iterator[str]:
    """Yield the templates in a value of any depth."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _iterate_templates(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_templates(item)
    elif coercion.is_template(value):
        yield value


def _overlay_block(base: Output | None, over: Output | None) -> Output | None:
    """Return `base` with the storage fields that `over` sets, and the `select` of both."""
    if base is None or over is None:
        return base or over
    overrides: dict[str, Any] = {
        name: getattr(over, name)
        for name in _STORAGE_FIELDS
        if getattr(over, name) != getattr(_DEFAULT_OUTPUT, name)
    }
    return structs.replace(base, select=(*base.select, *over.select), **overrides)


def _fill_inline_max(output: Output | None, inline_max_bytes: int | None) -> Output | None:
    if inline_max_bytes is None:
        return output
    block = output or _DEFAULT_OUTPUT
    if block.inline_max_bytes is not None:
        return block
    return structs.replace(block, inline_max_bytes=inline_max_bytes)


def render_output(
    output: Output | None, scope: TemplateScope, *, step: str, task: str | None = None
) -> Output | None:
    """Render the templates of a block; raises `ToolFailure`, or `PayloadNeeded` to load first."""
    if output is None or not isinstance(output.store.ttl, str):
        return output
    store = output.store
    field = "output.store.ttl"
    try:
        ttl = compile_value(store.ttl).render(scope)
    except TemplateError as error:
        error_object = build_template_error(error, step=step, task=task, field=field)
        raise ToolFailure(error_object) from error
    ttl_s = coercion.coerce_duration_s(ttl)
    if ttl is not None and (ttl_s is None or not ttl_s >= 0):
        place = f"step '{step}'" if task is None else f"step '{step}', task '{task}'"
        text = f"{place}, field '{field}': {ttl!r} is not a duration"
        raise ToolFailure(build_error("validation", text, step=step, task=task))
    return structs.replace(output, store=structs.replace(store, ttl=ttl_s))
