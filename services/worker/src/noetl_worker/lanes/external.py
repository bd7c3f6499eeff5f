"""Tasks that wait for a message from outside: what they submit, and what they wait for."""

from typing import Any

from noetl_contracts import ids, letters
from noetl_contracts.errors import ErrorObject
from noetl_contracts.parking import DELIVERED, MessageWait
from noetl_playbook.expressions import TemplateError
from noetl_playbook.scope import Scope
from noetl_playbook.tools import KINDS, NESTED_FIELDS
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes import parking
from noetl_worker.lanes.attempt import INPUT
from noetl_worker.lanes.block import CompiledTask
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.unit import Surrounding, template_failure
from noetl_worker.tools.call import Call, Outcome

OPTIONS = ("approve", "reject")
CORRELATION_KEY_CHARACTERS_MAX = 500

_KEY = "correlation_key"
_ERROR_FIELDS = ("message", "code", "retryable", "details")


def _default_key(
    surrounding: Surrounding, *, unit: str, task: str, visit: int, attempt: int
) -> str:
    """Name a wait that its author gave no key: unlike every other wait of the tenant."""
    parts = [surrounding.command.execution_id, surrounding.command.run_id, task, str(attempt)]
    parts += [unit] if unit != "step" else []
    parts += [f"visit-{visit}"] if visit > 1 else []
    return ":".join(parts)


def introduce(
    task: CompiledTask,
    *,
    names: Scope,
    surrounding: Surrounding,
    hands: Hands,
    unit: str,
    place: str,
    attempt: int,
    visit: int,
) -> None:
    """Let templates name where the answer goes; the token is a secret.

    Raises `ToolFailure`, or `PayloadNeeded` to be called again.
    """
    written = _written_key(task, names, step=surrounding.command.step)
    if written is None:
        where = f"{unit}-{place}" if place else unit
        written = _default_key(
            surrounding, unit=where, task=task.name, visit=visit, attempt=attempt
        )
    correlation_key = _checked_key(task.name, written, hands)
    key = parking.key_of(task.name, visit=visit, attempt=attempt, place=place)
    token = hands.callbacks.token(command_id=surrounding.command.command_id, key=key)
    hands.mask.learn(token)
    names["correlation"] = {"key": correlation_key}
    names["callback"] = {"url": hands.callbacks.url(token), "token": token}


def _written_key(task: CompiledTask, names: Scope, *, step: str) -> Any:
    """Render the key that the task names, or else its input; None when neither does."""
    template = next((one for name, one in task.fields if name == _KEY), None)
    field = "input"
    try:
        names[INPUT] = given = task.input.render(names)
        field = _KEY
        found = task.constant_fields.get(_KEY) if template is None else template.render(names)
    except TemplateError as error:
        located = template_failure(error, step=step, task=task.name, field=field)
        raise ToolFailure(located) from error
    return given.get(_KEY) if found is None else found


def message_wait(
    call: Call, *, key: str, command_id: ids.CommandId, names: Scope, cancels: bool
) -> MessageWait:
    """Say which message an `external` task waits for; raises `ToolFailure`."""
    given = {name: one for name, one in call.input.items() if name in _FILLED}
    given.update((name, one) for name, one in call.fields.items() if one is not None)
    mode = given.get("mode") or letters.CALLBACK
    if mode not in letters.MODES:
        raise _refused(call, "mode", mode, f"one of {', '.join(letters.MODES)}")
    on_timeout = given.get("on_timeout") or "fail"
    if on_timeout not in ("fail", "continue"):
        raise _refused(call, "on_timeout", on_timeout, "fail or continue")
    correlation_key = names["correlation"]["key"]
    is_approval = mode == letters.APPROVAL
    if mode == letters.SIGNAL:
        address = letters.signal_address(correlation_key)
    elif is_approval:
        address = letters.approval_address(ids.approval_id(command_id, key))
    else:
        address = letters.callback_address(names["callback"]["token"])
    return MessageWait(
        key=key,
        task=call.task,
        mode=mode,
        address=address,
        timeout_s=call.timeout.total,
        correlation_key=correlation_key,
        is_timeout_ok=on_timeout == "continue",
        cancels=cancels,
        schema={} if is_approval else _schema(call, given.get("schema")),
        title=_text(given.get("title")),
        description=_text(given.get("description")),
        assignees=_texts(call, "assignees", given.get("assignees")),
        options=(_texts(call, "options", given.get("options")) or list(OPTIONS))
        if is_approval
        else [],
    )


_FILLED = KINDS[parking.EXTERNAL].fields - set(NESTED_FIELDS)


def _checked_key(task: str, found: Any, hands: Hands) -> str:
    """Admit a correlation key; raises `ToolFailure`.

    It is an address that everybody may read: masked, it would lead nowhere.
    """
    text = str(found)
    if not isinstance(found, str | int | float):
        way = f"{found!r} is no text"
        raise ToolFailure(failure("validation", f"task '{task}', field 'correlation_key': {way}"))
    if hands.mask.holds(text):
        way = "it holds a secret; make the key of what everybody may know"
        raise ToolFailure(failure("validation", f"task '{task}', field 'correlation_key': {way}"))
    if not text or len(text) > CORRELATION_KEY_CHARACTERS_MAX:
        limit = f"1 to {CORRELATION_KEY_CHARACTERS_MAX} characters are wanted"
        raise ToolFailure(failure("validation", f"task '{task}', field 'correlation_key': {limit}"))
    return text


def outcome_of(wait: MessageWait, status: str, answer: Outcome, submitted: Any) -> Outcome:
    """Turn how a wait ended into what the task's rules see."""
    if answer.error is not None:
        return answer
    if status != DELIVERED:
        return Outcome(data=_beside({"status": status}, submitted))
    body = answer.data
    faults = letters.faults(wait.schema, body)
    if faults:
        return Outcome(data=body, error=failure("schema", f"the message: {'; '.join(faults)}"))
    if letters.is_error(body) and isinstance(body, dict):
        return Outcome(data=_beside(body, submitted), error=_reported(body["error"]))
    return Outcome(data=_beside(body, submitted))


def _beside(body: Any, submitted: Any) -> Any:
    if not isinstance(body, dict) or submitted is None:
        return body
    return {**body, "submitted": submitted}


def _reported(error: Any) -> ErrorObject:
    known = error if isinstance(error, dict) else {"message": str(error)}
    fields = {name: known[name] for name in _ERROR_FIELDS if known.get(name) is not None}
    message = str(fields.pop("message", "what was submitted has failed"))
    details = fields.pop("details", None)
    return failure(
        "external",
        message,
        retryable=fields.pop("retryable", False) is True,
        code=str(fields["code"]) if "code" in fields else None,
        details=details if isinstance(details, dict) else None,
    )


def _schema(call: Call, found: Any) -> dict[str, str]:
    if found is None:
        return {}
    if isinstance(found, list) and all(isinstance(name, str) for name in found):
        return dict.fromkeys(found, letters.ANY)
    if isinstance(found, dict) and all(kind in letters.TYPE_NAMES for kind in found.values()):
        return dict(found)
    wanted = f"a list of names, or names with one of {', '.join(letters.TYPE_NAMES)}"
    raise _refused(call, "schema", found, wanted)


def _texts(call: Call, field: str, found: Any) -> list[str]:
    if found is None:
        return []
    if isinstance(found, str):
        return [found]
    if isinstance(found, list) and all(isinstance(one, str | int) for one in found):
        return [str(one) for one in found]
    raise _refused(call, field, found, "a list of names")


def _text(found: Any) -> str | None:
    return None if found is None else str(found)


def _refused(call: Call, field: str, found: Any, wanted: str) -> ToolFailure:
    text = f"task '{call.task}', field '{field}': {found!r} is not {wanted}"
    return ToolFailure(failure("validation", text))
