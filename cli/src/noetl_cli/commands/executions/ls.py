"""`noetl ls`: executions, newest first."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from noetl_chassis import identity
from noetl_chassis.clock import SystemClock
from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server, parse_moment
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_contracts.credentials import CREDENTIAL_TEST_PATH
from noetl_contracts.status import ExecutionStatus

_PAGE_MAX = 1000
# How many executions are looked at, with those that are left out.
_READ_MAX = 20_000


def ls(
    *,
    status: Annotated[
        ExecutionStatus | None,
        typer.Option("--status", case_sensitive=False, help="Only these."),
    ] = None,
    path: Annotated[str | None, typer.Option("--path", help="Only of this playbook.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only those begun since: 1h, 7d, 2026-01-31.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Only those begun before, in the same forms.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the tests of credentials.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List executions."""
    now = SystemClock().now()
    oldest = None if since is None else parse_moment("--since", since, now)
    newest = None if until is None else parse_moment("--until", until, now)
    with client.open_client(server) as planner:
        pages = _ExecutionPages(
            planner,
            status=None if status is None else str(status),
            path=path,
            oldest=oldest,
            newest=newest,
            has_tests=everything or path is not None,
        )
        executions = pages.list_executions(limit)
    if as_json:
        for execution in executions:
            terminal_output.print_json(execution)
    else:
        head = ("EXECUTION", "STATUS", "STARTED", "SECONDS", "PATH", "STEP")
        terminal_output.print_rows(
            head,
            [_format_execution_row(execution) for execution in executions],
            nothing="No executions.",
        )
    if since is not None and len(executions) == limit:
        terminal_output.print_note(f"These are the newest {limit:,}; --limit shows more.")
    pages.note_left_out()


class _ExecutionPages:
    """Reads executions page by page, and counts the tests of credentials that it leaves out."""

    def __init__(
        self,
        planner: PlannerClient,
        *,
        status: str | None,
        path: str | None,
        oldest: datetime | None,
        newest: datetime | None,
        has_tests: bool,
    ) -> None:
        self._planner = planner
        self._query = {
            "status": status,
            "path": path,
            "since": None if oldest is None else oldest.isoformat(),
        }
        # Identities grow with time.
        self._before = None if newest is None else identity.build_first_identity(newest)
        self._has_tests = has_tests
        self._tests = 0
        self._is_cut = False

    def list_executions(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest executions, at most so many."""
        executions: list[dict[str, Any]] = []
        for execution in self._read_executions(limit):
            if execution["path"] == CREDENTIAL_TEST_PATH and not self._has_tests:
                self._tests += 1
                continue
            executions.append(execution)
            if len(executions) == limit:
                break
        return executions

    def _read_executions(self, size: int) -> Iterator[dict[str, Any]]:
        before = self._before
        count = 0
        while count < _READ_MAX:
            page = self._planner.get(
                "/api/executions", **self._query, before=before, limit=min(size, _PAGE_MAX)
            )
            yield from page["executions"]
            count += len(page["executions"])
            before = page["next_before"]
            if before is None:
                return
            # What follows is read because tests of credentials were left out.
            size = _PAGE_MAX
        self._is_cut = True

    def note_left_out(self) -> None:
        """Say what is not in the list."""
        if self._tests:
            text = "test of a credential is" if self._tests == 1 else "tests of credentials are"
            terminal_output.print_note(f"{self._tests:,} {text} left out: --all lists them.")
        if self._is_cut:
            terminal_output.print_note(
                f"Only the newest {_READ_MAX:,} executions were looked at, most of them tests of "
                "credentials: name a --path."
            )


def _format_execution_row(execution: dict[str, Any]) -> tuple[str, ...]:
    duration = execution["duration"]
    return (
        execution["execution_id"],
        execution["status"],
        (execution["started_at"] or "")[:19].replace("T", " "),
        "" if duration is None else f"{duration:.1f}",
        execution["path"]
        + (
            f" ({terminal_output.format_version(execution['version'])})"
            if (execution["version"] or 0) < 0
            else ""
        ),
        execution["current_step"] or "",
    )
