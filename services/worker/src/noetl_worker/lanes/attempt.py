"""One attempt of a task, rendered: from templates and names to a tool's call."""

from typing import Any

from msgspec import structs

from noetl_contracts.log_chunks import KINDS_WITH_LOG
from noetl_playbook import forms, kept, lasting
from noetl_playbook.expressions import TemplateError
from noetl_playbook.scope import last_name
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes.block import CompiledTask, timeout_of
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.progress_hints import KINDS_ON_SPARK
from noetl_worker.lanes.referring import FIELDS_BY_REFERENCE, by_references, typed_content
from noetl_worker.lanes.scratch import Scratch, Unit
from noetl_worker.lanes.unit import Surrounding, template_failure
from noetl_worker.tools.call import Call, Outcome

INPUT = last_name("input")


def prepare(
    task: CompiledTask,
    *,
    unit: Unit,
    scratch: Scratch,
    surrounding: Surrounding,
    attempt: int,
    visit: int,
) -> Call:
    """Render a call; raises `ToolFailure`, or `PayloadNeeded` to be called again."""
    names = scratch.scope
    names["_task"] = task.name
    names["_attempt"] = attempt
    # What a noop is given is what it shows.
    opened = lasting.checked if task.kind == "noop" else surrounding.keychain.opened
    field = "input"
    try:
        given = task.input.render(names)
        names[INPUT] = given
        fields = task.constant_fields.copy()
        kept = FIELDS_BY_REFERENCE.get(task.kind, ())
        for field, compiled in task.fields:
            fields[field] = (
                by_references(compiled.source, names, are_tables=field == "inputs")
                if field in kept
                else opened(compiled.render(names))
            )
        if task.kind == "artifact":
            sources = dict(task.fields)
            if "data" in sources:
                fields["data"] = typed_content(fields, sources["data"].source, names)
        field = "auth"
        auth = opened(task.auth.render(names))
        field = "timeout"
        timeout = task.constant_timeout
        if timeout is None:
            timeout = timeout_of(task.timeout.render(names), task.default_timeout_s)
    except TemplateError as error:
        step = unit.site.step
        found = template_failure(error, step=step, task=task.name, field=field)
        raise ToolFailure(found) from error
    if task.expects:
        _check_input(task.expects, given)
    is_python = task.kind == "python"
    return Call(
        site=unit.site,
        task=task.name,
        kind=task.kind,
        attempt=attempt,
        visit=visit,
        fields=fields,
        input=given if task.kind == "noop" or not given else opened(given),
        auth=auth,
        timeout=timeout,
        iterator=_plain(unit.iterators) if is_python else {},
        named=_named(task, scratch, surrounding) if is_python else {},
        transaction=unit.transaction,
        sink=unit.emitter,
        may_share=task.is_result_unread,
        may_spread=task.may_spread and unit.may_park,
        output=task.output,
    )


def observed(call: Call, hands: Hands) -> Call:
    """Give a call what its tool tells its progress and its lines to."""
    if call.kind in KINDS_ON_SPARK:
        call = structs.replace(call, tell_progress=hands.tell_progress)
    # What is read for a script is told there.
    if call.kind not in KINDS_WITH_LOG and "script" not in call.fields:
        return call
    task_log = hands.journal.open_log(call.site, task=call.task, task_attempt=call.attempt)
    return structs.replace(call, log=task_log)


def _check_input(expected: tuple[str, ...], given: dict[str, Any]) -> None:
    absent = [name for name in expected if given.get(name) is None]
    if absent:
        raise ToolFailure(failure("assertion", f"input {', '.join(absent)} is missing or null"))


def checked(task: CompiledTask, outcome: Outcome) -> Outcome:
    """Hold an outcome against what the task asserts of it."""
    if not task.returns or outcome.error is not None:
        return outcome
    data = outcome.data if isinstance(outcome.data, dict) else {}
    missing = [name for name in task.returns if name not in data]
    if not missing:
        return outcome
    text = f"the result lacks {', '.join(missing)}"
    return structs.replace(outcome, error=failure("assertion", text))


def _named(task: CompiledTask, scratch: Scratch, surrounding: Surrounding) -> dict[str, Any]:
    """Gather what Python code mentions of the execution's state."""
    named: dict[str, Any] = {}
    ctx: Any = {}
    if task.code_mentions & {"ctx", "context"}:
        ctx = forms.plain(scratch.ctx) if isinstance(scratch.ctx, kept.Values) else scratch.ctx
    if "ctx" in task.code_mentions:
        named["ctx"] = ctx
    if "workload" in task.code_mentions:
        named["workload"] = surrounding.workload
    if "context" in task.code_mentions:
        named["context"] = {
            **surrounding.workload,
            **ctx,
            **_plain(surrounding.steps),
            "ctx": ctx,
            "workload": surrounding.workload,
            "execution_id": surrounding.command.execution_id,
        }
    return named


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: forms.plain(value) for name, value in values.items()}
