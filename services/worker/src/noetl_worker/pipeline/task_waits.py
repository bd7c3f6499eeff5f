"""Waits of tasks: for a time, for a message, and the outcome that a message gives."""

import asyncio
from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_contracts import ids
from noetl_contracts.commands.waits import DELIVERED, WAIT_S_MAX, MessageWait, TimeWait, Wait
from noetl_contracts.errors import ErrorObject
from noetl_contracts.requests import inbox
from noetl_playbook.lint.step_checks import HELD_S_MAX
from noetl_playbook.model.tools import KINDS, NESTED_FIELDS
from noetl_playbook.templates.expressions import TemplateError
from noetl_playbook.templates.scope import TemplateScope
from noetl_worker.commands.command_context import CommandContext, build_template_error
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.pipeline import parked_work
from noetl_worker.pipeline.attempt import INPUT
from noetl_worker.pipeline.chunk_emitter import ChunkEmitter
from noetl_worker.pipeline.compiled_tasks import CompiledTask
from noetl_worker.pipeline.parked_work import (
    PipelineParked,
    PipelinePosition,
    WaitingRow,
    build_wait_key,
)
from noetl_worker.tools.calls.call import Call, Outcome

Reason = Literal["retry", "jump", "continue", "rate_limit"]
OPTIONS = ("approve", "reject")
CORRELATION_KEY_CHARACTERS_MAX = 500
_KEY = "correlation_key"
_ERROR_FIELDS = ("message", "code", "retryable", "details")
_FILLED = KINDS[parked_work.EXTERNAL].fields - set(NESTED_FIELDS)


class TimeWaits(Struct, frozen=True, kw_only=True):
    """How one unit waits: above `held_s` it lets its worker go, if it may."""

    clock: Clock
    held_s: float
    is_parkable: bool
    emitter: ChunkEmitter | None
    step: str
    place: str

    @property
    def may_park(self) -> bool:
        """Tell whether another worker could go on: not with rows of a stream that lie here."""
        return self.is_parkable and (self.emitter is None or not self.emitter.is_over)

    @property
    def held_limit_s(self) -> float:
        """Return how long this unit may wait with its worker held."""
        return self.held_s if self.may_park else HELD_S_MAX

    async def pause_for(
        self, seconds: float, task: CompiledTask, walk: PipelinePosition, reason: Reason
    ) -> None:
        """Let time pass; raises `PipelineParked`, or `ToolFailure` for too long a wait."""
        if seconds > self.held_limit_s:
            self.leave_worker(seconds, task, walk, reason)
        # Also without a wait: a pipeline of jumps alone would never hear that it is to stop.
        await asyncio.sleep(max(0.0, seconds))

    def leave_worker(
        self, seconds: float, task: CompiledTask, walk: PipelinePosition, reason: Reason
    ) -> None:
        """Let the worker go until the time has passed; raises `PipelineParked` or `ToolFailure`."""
        if not self.may_park:
            raise ToolFailure(self._build_wait_error(seconds, task))
        passing_s = min(seconds, WAIT_S_MAX)
        key = build_wait_key(
            task.name, visit=max(walk.visits), attempt=walk.attempt, place=self.place
        )
        raise PipelineParked(
            TimeWait(
                key=f"{key}/{reason}/{walk.jumps}",
                task=task.name,
                reason=reason,
                until=self.clock.now() + timedelta(seconds=passing_s),
                timeout_s=passing_s,
            )
        )

    def _build_wait_error(self, seconds: float, task: CompiledTask) -> ErrorObject:
        text = (
            f"step '{self.step}', task '{task.name}': a wait of {seconds:g} s would hold its "
            f"worker, and no more than {HELD_S_MAX:g} s may in a frame with 'transaction: true', "
            "in a loop with 'exec: local' and on Spark: leave that out, or wait in another step"
        )
        return build_error("limit", text, code="held_wait", task=task.name)


def is_time_over(wait: Wait, now: datetime) -> bool:
    """Tell whether nothing but time was waited for, and it has passed."""
    return isinstance(wait, TimeWait) and wait.until <= now


def sort_waiting_rows(rows: list[WaitingRow], now: datetime) -> list[WaitingRow]:
    """Put rows of a frame in the order of their waits: what was asked for first, then by time.

    A wait for time goes on while the frame waits for another row, so it is as long as what is left.
    """
    timed_rows = [(row, row.wait) for row in rows if isinstance(row.wait, TimeWait)]
    waiting_rows = [row for row in rows if not isinstance(row.wait, TimeWait)]
    timed_rows.sort(key=lambda timed_row: timed_row[1].until)
    shortened_rows = [
        structs.replace(row, wait=structs.replace(wait, timeout_s=_compute_left_s(wait, now)))
        for row, wait in timed_rows
    ]
    return [*sorted(waiting_rows, key=lambda row: row.index or 0), *shortened_rows]


def _compute_left_s(wait: TimeWait, now: datetime) -> float:
    return max(0.0, (wait.until - now).total_seconds())


def _build_default_key(
    context: CommandContext, *, unit: str, task: str, visit: int, attempt: int
) -> str:
    """Name a wait that its author gave no key: unlike every other wait of the tenant."""
    parts = [context.command.execution_id, context.command.run_id, task, str(attempt)]
    parts += [unit] if unit != "step" else []
    parts += [f"visit-{visit}"] if visit > 1 else []
    return ":".join(parts)


def name_answer_address(
    task: CompiledTask,
    *,
    names: TemplateScope,
    context: CommandContext,
    services: CommandServices,
    unit: str,
    place: str,
    attempt: int,
    visit: int,
) -> None:
    """Let templates name where the answer goes; the token is a secret.

    Raises `ToolFailure`, or `PayloadNeeded` to be called again.
    """
    rendered_key = _render_key(task, names, step=context.command.step)
    if rendered_key is None:
        unit_place = f"{unit}-{place}" if place else unit
        rendered_key = _build_default_key(
            context, unit=unit_place, task=task.name, visit=visit, attempt=attempt
        )
    correlation_key = _check_key(task.name, rendered_key, services)
    key = parked_work.build_wait_key(task.name, visit=visit, attempt=attempt, place=place)
    token = services.callbacks.build_token(command_id=context.command.command_id, key=key)
    services.mask.learn_secrets(token)
    names["correlation"] = {"key": correlation_key}
    names["callback"] = {"url": services.callbacks.build_url(token), "token": token}


def _render_key(task: CompiledTask, names: TemplateScope, *, step: str) -> Any:
    """Render the key that the task names, or else its input; None when neither does."""
    template = next(
        (compiled_template for name, compiled_template in task.fields if name == _KEY), None
    )
    field = "input"
    try:
        names[INPUT] = inputs = task.input.render(names)
        field = _KEY
        constant_field = (
            task.constant_fields.get(_KEY) if template is None else template.render(names)
        )
    except TemplateError as error:
        located = build_template_error(error, step=step, task=task.name, field=field)
        raise ToolFailure(located) from error
    return inputs.get(_KEY) if constant_field is None else constant_field


def build_message_wait(
    call: Call, *, key: str, command_id: ids.CommandId, names: TemplateScope, cancels: bool
) -> MessageWait:
    """Say which message an `external` task waits for; raises `ToolFailure`."""
    inputs = {name: item for name, item in call.input.items() if name in _FILLED}
    inputs.update((name, item) for name, item in call.fields.items() if item is not None)
    mode = inputs.get("mode") or inbox.CALLBACK
    if mode not in inbox.MODES:
        raise _build_field_failure(call, "mode", mode, f"one of {', '.join(inbox.MODES)}")
    on_timeout = inputs.get("on_timeout") or "fail"
    if on_timeout not in ("fail", "continue"):
        raise _build_field_failure(call, "on_timeout", on_timeout, "fail or continue")
    correlation_key = names["correlation"]["key"]
    is_approval = mode == inbox.APPROVAL
    if mode == inbox.SIGNAL:
        address = inbox.build_signal_address(correlation_key)
    elif is_approval:
        address = inbox.build_approval_address(ids.derive_approval_id(command_id, key))
    else:
        address = inbox.build_callback_address(names["callback"]["token"])
    return MessageWait(
        key=key,
        task=call.task,
        mode=mode,
        address=address,
        timeout_s=call.timeout.total,
        correlation_key=correlation_key,
        is_timeout_ok=on_timeout == "continue",
        cancels=cancels,
        schema={} if is_approval else _parse_schema(call, inputs.get("schema")),
        title=_parse_text(inputs.get("title")),
        description=_parse_text(inputs.get("description")),
        assignees=_parse_texts(call, "assignees", inputs.get("assignees")),
        options=(_parse_texts(call, "options", inputs.get("options")) or list(OPTIONS))
        if is_approval
        else [],
        # What is not plainly false asks for it: a rendered value may be any text.
        four_eyes=is_approval and inputs.get("four_eyes") not in (None, False, "false", "False"),
    )


def _check_key(task: str, key: Any, services: CommandServices) -> str:
    """Admit a correlation key; raises `ToolFailure`.

    It is an address that everybody may read: masked, it would lead nowhere.
    """
    text = str(key)
    if not isinstance(key, str | int | float):
        way = f"{key!r} is no text"
        raise ToolFailure(
            build_error("validation", f"task '{task}', field 'correlation_key': {way}")
        )
    if services.mask.contains_secret(text):
        way = "it holds a secret; make the key of what everybody may know"
        raise ToolFailure(
            build_error("validation", f"task '{task}', field 'correlation_key': {way}")
        )
    if not text or len(text) > CORRELATION_KEY_CHARACTERS_MAX:
        limit = f"1 to {CORRELATION_KEY_CHARACTERS_MAX} characters are wanted"
        raise ToolFailure(
            build_error("validation", f"task '{task}', field 'correlation_key': {limit}")
        )
    return text


def build_outcome(wait: MessageWait, status: str, answer: Outcome, submitted: Any) -> Outcome:
    """Turn how a wait ended into what the task's rules see."""
    if answer.error is not None:
        return answer
    if status != DELIVERED:
        return Outcome(data=_merge_submitted({"status": status}, submitted))
    body = answer.data
    faults = inbox.list_schema_faults(wait.schema, body)
    if faults:
        return Outcome(data=body, error=build_error("schema", f"the message: {'; '.join(faults)}"))
    if inbox.is_error_report(body) and isinstance(body, dict):
        return Outcome(
            data=_merge_submitted(body, submitted), error=_parse_reported_error(body["error"])
        )
    return Outcome(data=_merge_submitted(body, submitted))


def _merge_submitted(body: Any, submitted: Any) -> Any:
    if not isinstance(body, dict) or submitted is None:
        return body
    return {**body, "submitted": submitted}


def _parse_reported_error(error: Any) -> ErrorObject:
    error_fields = error if isinstance(error, dict) else {"message": str(error)}
    fields = {
        name: error_fields[name] for name in _ERROR_FIELDS if error_fields.get(name) is not None
    }
    message = str(fields.pop("message", "what was submitted has failed"))
    details = fields.pop("details", None)
    return build_error(
        "external",
        message,
        retryable=fields.pop("retryable", False) is True,
        code=str(fields["code"]) if "code" in fields else None,
        details=details if isinstance(details, dict) else None,
    )


def _parse_schema(call: Call, field_value: Any) -> dict[str, str]:
    if field_value is None:
        return {}
    if isinstance(field_value, list) and all(isinstance(name, str) for name in field_value):
        return dict.fromkeys(field_value, inbox.ANY)
    if isinstance(field_value, dict) and all(
        kind in inbox.TYPE_NAMES for kind in field_value.values()
    ):
        return dict(field_value)
    expected_form = f"a list of names, or names with one of {', '.join(inbox.TYPE_NAMES)}"
    raise _build_field_failure(call, "schema", field_value, expected_form)


def _parse_texts(call: Call, field: str, field_value: Any) -> list[str]:
    if field_value is None:
        return []
    if isinstance(field_value, str):
        return [field_value]
    if isinstance(field_value, list) and all(isinstance(item, str | int) for item in field_value):
        return [str(item) for item in field_value]
    raise _build_field_failure(call, field, field_value, "a list of names")


def _parse_text(field_value: Any) -> str | None:
    return None if field_value is None else str(field_value)


def _build_field_failure(
    call: Call, field: str, field_value: Any, expected_form: str
) -> ToolFailure:
    text = f"task '{call.task}', field '{field}': {field_value!r} is not {expected_form}"
    return ToolFailure(build_error("validation", text))
