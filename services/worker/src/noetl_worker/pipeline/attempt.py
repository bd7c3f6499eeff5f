"""One attempt of a task, rendered: from templates and names to a tool's call."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import structs

from noetl_contracts.log_chunks import KINDS_WITH_LOG
from noetl_playbook.model.playbook import Output
from noetl_playbook.templates import json_render, output_forms
from noetl_playbook.templates.expressions import TemplateError
from noetl_playbook.templates.scope import last_name_key
from noetl_playbook.views import ctx_references
from noetl_playbook.views.results import TaskResult
from noetl_worker.commands.command_context import CommandContext, build_template_error
from noetl_worker.commands.command_progress import KINDS_ON_SPARK
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result import SelectionTooLarge
from noetl_worker.pipeline.compiled_tasks import CompiledTask, parse_timeout
from noetl_worker.pipeline.output_blocks import render_output
from noetl_worker.pipeline.result_handles import (
    FIELDS_BY_REFERENCE,
    build_typed_content,
    render_by_reference,
)
from noetl_worker.pipeline.state import AttemptResult, PipelineState, PipelineUnit
from noetl_worker.tools.calls.call import Call, Outcome

INPUT = last_name_key("input")


def render_call(
    task: CompiledTask,
    *,
    unit: PipelineUnit,
    scratch: PipelineState,
    context: CommandContext,
    attempt: int,
    visit: int,
) -> Call:
    """Render a call; raises `ToolFailure`, or `PayloadNeeded` to be called again."""
    names = scratch.scope
    names["_task"] = task.name
    names["_attempt"] = attempt
    # What a noop is given is what it shows.
    open_value = (
        json_render.check_json_value if task.kind == "noop" else context.keychain.open_sealed
    )
    field = "input"
    try:
        inputs = task.input.render(names)
        names[INPUT] = inputs
        fields = task.constant_fields.copy()
        raw_fields = FIELDS_BY_REFERENCE.get(task.kind, ())
        for field, compiled in task.fields:
            fields[field] = (
                render_by_reference(compiled.source, names, are_tables=field == "inputs")
                if field in raw_fields
                else open_value(compiled.render(names))
            )
        if task.kind == "artifact":
            sources = dict(task.fields)
            if "data" in sources:
                fields["data"] = build_typed_content(fields, sources["data"].source, names)
        field = "auth"
        auth = open_value(task.auth.render(names))
        field = "timeout"
        timeout = task.constant_timeout
        if timeout is None:
            timeout = parse_timeout(task.timeout.render(names), task.default_timeout_s)
    except TemplateError as error:
        step = unit.site.step
        error_object = build_template_error(error, step=step, task=task.name, field=field)
        raise ToolFailure(error_object) from error
    if task.expects:
        _check_input(task.expects, inputs)
    is_python = task.kind == "python"
    return Call(
        site=unit.site,
        task=task.name,
        kind=task.kind,
        attempt=attempt,
        visit=visit,
        fields=fields,
        input=inputs if task.kind == "noop" or not inputs else open_value(inputs),
        auth=auth,
        timeout=timeout,
        iterator=_unwrap_values(unit.iterators) if is_python else {},
        named=_collect_code_names(task, scratch, context) if is_python else {},
        transaction=unit.transaction,
        sink=unit.emitter,
        may_share=task.is_result_unread,
        may_spread=task.may_spread and unit.may_park,
        output=task.output,
    )


def attach_observers(call: Call, services: CommandServices) -> Call:
    """Give a call what its tool tells its progress and its lines to."""
    if call.kind in KINDS_ON_SPARK:
        call = structs.replace(call, tell_progress=services.tell_progress)
    # What is read for a script is told there.
    if call.kind not in KINDS_WITH_LOG and "script" not in call.fields:
        return call
    task_log = services.journal.open_log(call.site, task=call.task, task_attempt=call.attempt)
    return structs.replace(call, log=task_log)


def _check_input(input_names: tuple[str, ...], inputs: dict[str, Any]) -> None:
    absent_names = [name for name in input_names if inputs.get(name) is None]
    if absent_names:
        raise ToolFailure(
            build_error("assertion", f"input {', '.join(absent_names)} is missing or null")
        )


def verify_outcome(task: CompiledTask, outcome: Outcome) -> Outcome:
    """Hold an outcome against what the task asserts of it."""
    if not task.returns or outcome.error is not None:
        return outcome
    data = outcome.data if isinstance(outcome.data, dict) else {}
    missing = [name for name in task.returns if name not in data]
    if not missing:
        return outcome
    text = f"the result lacks {', '.join(missing)}"
    return structs.replace(outcome, error=build_error("assertion", text))


def _collect_code_names(
    task: CompiledTask, scratch: PipelineState, context: CommandContext
) -> dict[str, Any]:
    """Gather what Python code mentions of the execution's state."""
    value_by_name: dict[str, Any] = {}
    ctx: Any = {}
    if task.code_mentions & {"ctx", "context"}:
        ctx = (
            output_forms.to_plain(scratch.ctx)
            if isinstance(scratch.ctx, ctx_references.CtxView)
            else scratch.ctx
        )
    if "ctx" in task.code_mentions:
        value_by_name["ctx"] = ctx
    if "workload" in task.code_mentions:
        value_by_name["workload"] = context.workload
    if "context" in task.code_mentions:
        value_by_name["context"] = {
            **context.workload,
            **ctx,
            **_unwrap_values(context.steps),
            "ctx": ctx,
            "workload": context.workload,
            "execution_id": context.command.execution_id,
        }
    return value_by_name


def _unwrap_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: output_forms.to_plain(value) for name, value in values.items()}


class RenderLoader(Protocol):
    """Renders, getting each payload that turns out to be needed."""

    def __call__(self, render: Callable[[], Output | None], /) -> Awaitable[Output | None]:
        """Return what was rendered."""


async def store_task_output(
    task: CompiledTask,
    result: AttemptResult,
    *,
    scratch: PipelineState,
    services: CommandServices,
    loading: RenderLoader,
) -> AttemptResult:
    """Store what a task gave, unless the playbook sees it inline; raises `ToolFailure`."""
    output = await loading(
        lambda: render_output(task.output, scratch.scope, step=scratch.site.step, task=task.name)
    )
    assert output is not None, "no task is kept without a block that says so"
    try:
        envelope = await services.keeper.store_task_result(
            task.name, _drop_collection(result.result, output), output=output
        )
    except SelectionTooLarge as problem:
        error = build_error("payload_too_large", str(problem), task=task.name)
        raise ToolFailure(error) from problem
    return result if envelope is None else scratch.refer_to_stored(task, result, envelope)


def _drop_collection(result: TaskResult, output: Output) -> TaskResult:
    """Leave out what was collected so far: it is the pipeline's, and grows with each attempt."""
    names: dict[str, Any] = dict(result.names)
    if output.accumulate is not None:
        names.pop(output.accumulate.manifest_as, None)
    return structs.replace(result, names=names)
