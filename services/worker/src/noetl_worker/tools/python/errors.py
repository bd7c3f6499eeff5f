"""Errors of user Python: what was raised, where, and which field or setting would help."""

import signal

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import build_error, classify_exception
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.sandbox.user_call import CallAnswer
from noetl_worker.tools.python.requirements import FOLDERS_SETTING

MEMORY_SETTING = "NOETL_WORKER_PYTHON_MEMORY_BYTES"
_MODULE_HINT = (
    "requirements: [{name}] on this task installs a package of that name; the package that has the "
    "module may be named otherwise, as pillow has PIL"
)
_FOLDERS_HINT = (
    "a task has files of its own alone: relative names, and what tempfile makes; "
    f"{FOLDERS_SETTING} names folders of this machine that tasks may read"
)
_NETWORK_HINT = "this task has no network: spec.network: true asks for it"


def build_answer_error(
    answer: CallAnswer, mask: SecretMask, *, memory_bytes: int
) -> ErrorObject | None:
    """Return the error that an answer of the child is, masked; None for a result."""
    if answer.missing is not None:
        hint = _MODULE_HINT.format(name=answer.missing.partition(".")[0])
        text = f"module '{answer.missing}' is not installed on this worker: {hint}"
        return build_error("missing_dependency", text, source="python")
    if answer.result_bytes:
        text = f"the result has {answer.result_bytes} bytes: store it with an artifact task"
        return build_error("payload_too_large", text, source="python")
    if answer.exception is None:
        return None
    return classify_exception(
        answer.exception,
        answer.bases,
        mask.mask_text(answer.message),
        traceback=mask.mask_text(answer.traceback),
        line=answer.line,
        line_text=mask.mask_text(answer.line_text),
        hint=_find_hint(answer, memory_bytes=memory_bytes),
    )


def _find_hint(answer: CallAnswer, *, memory_bytes: int) -> str:
    """Name the field or setting that would have prevented an exception, if one would."""
    if answer.lacks_network:
        return _NETWORK_HINT
    if answer.absent_module:
        return _MODULE_HINT.format(name=answer.absent_module.partition(".")[0])
    if answer.is_outside:
        return _FOLDERS_HINT
    if "MemoryError" in answer.bases:
        return _build_memory_hint(memory_bytes)
    return ""


def _build_memory_hint(memory_bytes: int) -> str:
    return f"A task has {memory_bytes} bytes of address space: {MEMORY_SETTING} sets it"


def build_ended_error(code: int, *, timeout_s: float, memory_bytes: int) -> ErrorObject:
    """Say that the process of a call ended without an answer, and of what it may have."""
    if code == -signal.SIGXCPU:
        end_text = (
            f"used more processor time than its timeout allows, {timeout_s:g} s: raise 'timeout'"
        )
    elif code == -signal.SIGKILL:
        end_text = (
            "was killed (signal 9), mostly because the machine ran out of memory: give the "
            "worker more, or read less at a time"
        )
    elif code < 0:
        end_text = f"crashed with signal {-code}. {_build_memory_hint(memory_bytes)}"
    else:
        end_text = f"ended with code {code} before its code had returned: return instead"
    name = "ProcessEnded"
    text = f"the Python process {end_text}"
    return build_error("transform", text, code=name, exception_type=name, source="python")


def build_timeout_error(timeout_s: float) -> ErrorObject:
    """Say that the code ran too long."""
    text = f"the code did not end within {timeout_s:g} s: 'timeout' of the task gives it more"
    return build_error("timeout", text, source="python")
