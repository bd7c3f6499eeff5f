"""The result of a step, read by windows from a planner or from a run in this process."""

import shlex
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient

# What one answer holds at most.
WINDOW_ROWS = 10_000
# What a result's rows are called.
_ROW_KEYS = ("rows", "results")


class ResultSource(Protocol):
    """Where results are read; answers are those of `/api/result`."""

    def list_results(self) -> dict[str, Any]:
        """List the steps that have a result, and the last of them."""

    def get_result(self, step: str, *, offset: int, limit: int) -> dict[str, Any]:
        """Read a window of a step's result."""

    def build_save_command(self, step: str, file: Path) -> str:
        """Write the command that saves a step's result."""


class StepResult(Struct, frozen=True, kw_only=True):
    """A result, or its first rows: `total` counts all of them, None where it has no rows.

    `tier` is where it lies, as the API tells; `schema` is that of a stored table.
    """

    step: str
    data: Any
    error: Any
    total: int | None
    tier: str | None = None
    media_type: str | None = None
    schema: dict[str, Any] | None = None


class PlannerResults:
    """The results of one execution of a planner."""

    def __init__(self, planner: PlannerClient, execution_id: str) -> None:
        self._planner = planner
        self._execution_id = execution_id
        self._address = f"/api/result/{client.escape_segment(execution_id)}"
        # Of a step that is called `list`, too.
        self._steps = f"/api/executions/{client.escape_segment(execution_id)}/result"

    def list_results(self) -> dict[str, Any]:
        """List the steps that have a result, and the last of them."""
        answer: dict[str, Any] = self._planner.get(f"{self._address}/list")
        return answer

    def get_result(self, step: str, *, offset: int, limit: int) -> dict[str, Any]:
        """Read a window of a step's result."""
        address = f"{self._steps}/{client.escape_segment(step)}"
        answer: dict[str, Any] = self._planner.get(address, offset=offset, limit=limit)
        return answer

    def build_save_command(self, step: str, file: Path) -> str:
        """Write the command that saves a step's result."""
        names = shlex.join([self._execution_id, step, "--save", str(file)])
        return f"noetl result {names}"


def choose_step(source: ResultSource, execution_id: str, step: str | None) -> str:
    """Return the step that was named, else the last one with a result; raises `CliError`."""
    if step is not None:
        return step
    last = source.list_results()["last_step"]
    if last is None:
        raise CliError(
            f"No step of execution {execution_id} has a result.",
            way_out=f"noetl status {execution_id}",
            exit_code=ExitCode.USAGE,
        )
    return str(last)


def read_first_rows(source: ResultSource, step: str, *, rows_max: int) -> StepResult:
    """Read a result with its first rows."""
    return _build_result(source.get_result(step, offset=0, limit=rows_max))


def read_whole_result(source: ResultSource, step: str) -> StepResult:
    """Read a result with all of its rows; raises `CliError` when it changes meanwhile."""
    window = source.get_result(step, offset=0, limit=WINDOW_ROWS)
    data, rows, run_id = window["data"], find_result_rows(window["data"]), window["run_id"]
    if rows is None or not window["has_next"]:
        return _build_result(window)
    # Fields that hold the same rows go on doing so.
    same = [] if isinstance(data, list) else [name for name in data if data[name] == rows]
    while window["has_next"]:
        offset = window["offset"] + WINDOW_ROWS
        window = source.get_result(step, offset=offset, limit=WINDOW_ROWS)
        if window["run_id"] != run_id:
            raise CliError(
                f"Step {step!r} ran again while its result was read.", way_out="Ask again."
            )
        rows += find_result_rows(window["data"]) or []
    whole = rows if isinstance(data, list) else {**data, **dict.fromkeys(same, rows)}
    return _build_result({**window, "data": whole})


def find_result_rows(data: Any) -> list[Any] | None:
    """Return the rows that a result has: itself, or what its windows are of."""
    if isinstance(data, dict):
        data = next((data[key] for key in _ROW_KEYS if isinstance(data.get(key), list)), None)
    return list(data) if isinstance(data, list) else None


def _build_result(window: dict[str, Any]) -> StepResult:
    return StepResult(
        step=window["step"],
        data=window["data"],
        error=window["error"],
        total=window["total"],
        # An older planner does not tell them.
        tier=window.get("tier"),
        media_type=window.get("media_type"),
        schema=window.get("schema"),
    )
