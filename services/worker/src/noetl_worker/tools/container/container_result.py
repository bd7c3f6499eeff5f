"""What a container task gives back: its result, the end of its log, and why it failed."""

from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.log_chunks import STDOUT
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.tools.calls.call import Outcome
from noetl_worker.tools.container.names import RESULT_NAME, SOURCE, WORK_FOLDER
from noetl_worker.tools.container.runtime import (
    ContainerEnd,
    ContainerSpec,
    StartedContainer,
    build_evicted_failure,
    build_memory_failure,
)

_LOG_BYTES_MAX = 64 * 1024
_LINE_BYTES_MAX = 1024 * 1024
_LINE_CHARACTERS_SHOWN = 200
_SIGNAL_BASE = 128


class OutputTail:
    """The end of what a container wrote: of both streams for people, of one for its result."""

    def __init__(self, mask: SecretMask) -> None:
        self._mask = mask
        self._log = bytearray()
        self._stdout = bytearray()
        self._is_cut = False
        # Whether the output is here to its end: else its last line is not the last.
        self.is_whole = False

    def add_output(self, stream: str, data: bytes) -> None:
        """Take more output."""
        self._log += data
        if len(self._log) > 2 * _LOG_BYTES_MAX:
            del self._log[:-_LOG_BYTES_MAX]
            self._is_cut = True
        if stream == STDOUT:
            self._stdout += data
            if len(self._stdout) > 2 * _LINE_BYTES_MAX:
                del self._stdout[:-_LINE_BYTES_MAX]

    def build_text(self) -> str:
        """Return the last lines, each whole: a line may hold a secret to mask."""
        log = bytes(self._log)
        if self._is_cut or len(log) > _LOG_BYTES_MAX:
            log = log[-_LOG_BYTES_MAX:].partition(b"\n")[2]
        return log.decode(errors="replace")

    def find_last_line(self) -> str:
        """Return the last line that says anything; empty where there is none."""
        lines = self._mask.mask_text(self.build_text()).strip().splitlines()
        return lines[-1][-_LINE_CHARACTERS_SHOWN:] if lines else ""

    def find_result(self) -> Any:
        """Return the last line of standard output if it is JSON, else None."""
        if not self.is_whole:
            return None
        line = bytes(self._stdout).strip().rpartition(b"\n")[2]
        try:
            return codec.decode_json(line) if line else None
        except msgspec.DecodeError:
            return None


def build_outcome(
    end: ContainerEnd,
    container: StartedContainer,
    tail: OutputTail,
    *,
    spec: ContainerSpec,
    result: bytes | None,
) -> Outcome:
    """Build what a task gives back of a container that has ended."""
    error = _find_error(end, tail, spec)
    data = {
        "status": "failed" if error is not None else "succeeded",
        "exit_code": end.exit_code,
        "image": spec.image,
        "job_name": container.name,
        "pod_name": container.pod or None,
        "logs": tail.build_text(),
        "result": None,
        "started_at": end.started_at or None,
        "finished_at": end.finished_at or None,
    }
    if error is not None:
        return Outcome(error=error.error, data=data)
    try:
        data["result"] = tail.find_result() if result is None else _decode_result(result)
    except ToolFailure as problem:
        return Outcome(error=problem.error, data=data)
    return Outcome(data=data)


def build_timeout_error(seconds: float, reason: str = "") -> ToolFailure:
    """Say that a container was ended because its time was over."""
    text = f"the container did not end within {seconds:g} s and was stopped{reason}"
    return ToolFailure(build_error("timeout", text, source=SOURCE))


def _find_error(end: ContainerEnd, tail: OutputTail, spec: ContainerSpec) -> ToolFailure | None:
    if end.evicted:
        return build_evicted_failure(f"the container was taken away before its end: {end.evicted}")
    if end.is_past_deadline:
        return build_timeout_error(spec.timeout_s)
    if end.exit_code == 0:
        return None
    code = str(end.exit_code)
    if end.is_out_of_memory:
        return build_memory_failure(spec.resources.memory_bytes)
    number = end.exit_code - _SIGNAL_BASE
    end_text = f"was ended by signal {number}" if number > 0 else f"ended with code {code}"
    last_line = tail.find_last_line()
    text = f"the container {end_text}{f': {last_line}' if last_line else ''}"
    details = {"exit_code": end.exit_code}
    return ToolFailure(build_error("container", text, code=code, source=SOURCE, details=details))


def _decode_result(data: bytes) -> Any:
    try:
        return codec.decode_json(data)
    except msgspec.DecodeError as problem:
        text = f"{WORK_FOLDER}/{RESULT_NAME} is not JSON: {problem}"
        raise ToolFailure(build_error("parse", text, source=SOURCE)) from problem
