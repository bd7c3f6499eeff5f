"""The test of a credential: asked for, waited for, and shown."""

import time
from typing import Any

import typer
from msgspec import Struct

from noetl_cli import client, error_text, render, tables
from noetl_cli.client import Client
from noetl_cli.failures import CliError, ExitCode
from noetl_contracts.status import TERMINAL_EXECUTION, ExecutionStatus

STEP = "test"
# Below what the client waits for an answer.
WAIT_S = 20
POLL_S = 0.5
_CANCEL_REASON = "the test was given up"


class Tested(Struct, frozen=True, kw_only=True):
    """How a test ended: what was found, or the error."""

    execution_id: str
    found: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def run_test(
    planner: Client, name: str, *, url: str | None, pool: str | None, timeout_s: float
) -> Tested:
    """Ask for a test and wait for its end; raises `CliError` when it does not come in time."""
    deadline = time.monotonic() + timeout_s
    address = f"/api/credentials/{client.escaped(name)}/test"
    headers = {"Prefer": f"wait={max(1, min(WAIT_S, int(timeout_s)))}"}
    begun = planner.post(address, {"url": url, "pool": pool}, headers=headers)
    execution_id = str(begun["execution_id"])
    status = planner.get(f"/api/executions/{execution_id}/status")
    while ExecutionStatus(status["status"]) not in TERMINAL_EXECUTION:
        if time.monotonic() > deadline:
            planner.post(f"/api/executions/{execution_id}/cancel", {"reason": _CANCEL_REASON})
            raise CliError(
                f"No worker has ended the test of {name!r} within {timeout_s:g} s.",
                way_out="See whether the pool has workers: noetl pools",
                exit_code=ExitCode.TIMEOUT,
            )
        time.sleep(POLL_S)
        status = planner.get(f"/api/executions/{execution_id}/status")
    if not status["completed"]:
        return Tested(execution_id=execution_id, error=status["error"] or {})
    result = planner.get(f"/api/result/{execution_id}/{STEP}")
    return Tested(execution_id=execution_id, found=result["data"])


def show(tested: Tested, *, as_json: bool) -> None:
    """Print what was found; raises `typer.Exit` with 1 for an error."""
    if as_json:
        render.json_line(tested)
    elif tested.found is not None:
        rows = [(field, str(value)) for field, value in tested.found.items()]
        tables.show(("FIELD", "VALUE"), rows, nothing="Nothing was found.")
    else:
        for line in error_text.error_lines(tested.error or {}):
            render.note(line)
        render.note(f"  history: noetl events {tested.execution_id}")
    if tested.found is None:
        raise typer.Exit(ExitCode.FAILED)
