"""`noetl logs`: what the tasks of an execution wrote, or the processes of the stack."""

import os
import time
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory, Server
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.local import history
from noetl_cli.planner import execution_logs
from noetl_cli.planner.execution_logs import ALL_LINES, LinesWanted
from noetl_cli.stack.home_folder.home import StackHome

FOLLOW_INTERVAL_S = 0.2
PROCESS_LINES = 50
TAIL_BYTES_MAX = 4 * 1024 * 1024


def logs(  # noqa: PLR0913 - one parameter for each option of the command line
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID [STEP] | PROCESS...]",
            help="An execution, and one of its steps; or processes, such as `worker-1`.",
        ),
    ] = None,
    directory: Directory = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            min=0,
            help="How many of the last; all of an execution and 50 of a process by default.",
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", metavar="TEXT", help="Lines with this text, in any case."),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option("--stream", help="Lines of stdout, stderr, logging or notice."),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=0, help="Lines of this attempt.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on to the execution's end, or until interrupted."),
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print what tasks wrote; without an execution, the logs of the stack.

    noetl logs ID, noetl logs ID STEP -f, noetl logs ID --search TEXT, noetl logs planner
    """
    wanted = LinesWanted(text=search, stream=stream, attempt=attempt)
    if names and names[0].isdigit():
        logs_request = execution_logs.parse_logs_request(
            names, wanted=wanted, lines=lines, follow=follow, as_json=as_json
        )
        history.check_is_remote(logs_request.execution_id, server=server)
        execution_logs.show_logs(logs_request, server)
        return
    if as_json or server is not None or wanted != ALL_LINES:
        raise CliError(
            "--search, --stream, --attempt, --json, --server are for the logs of an execution.",
            way_out="noetl logs ID [STEP]",
            exit_code=ExitCode.USAGE,
        )
    _show_processes(
        names or [], directory, lines=PROCESS_LINES if lines is None else lines, follow=follow
    )


def _show_processes(names: list[str], directory: Path | None, *, lines: int, follow: bool) -> None:
    """Print the last lines, oldest first within each process."""
    place = StackHome(root=settings.choose_home(directory, environ=settings.copy_environment()))
    paths = _list_log_paths(place, names)
    width = max(len(path.stem) for path in paths)
    open_files: list[tuple[str, BufferedReader]] = []
    for path in paths:
        prefix = "" if len(paths) == 1 else f"{path.stem:<{width}} | "
        file = path.open("rb")
        open_files.append((prefix, file))
        for text in _read_last_lines(file, lines):
            terminal_output.print_line(prefix + text)
    while follow:
        for prefix, file in open_files:
            _print_new_lines(prefix, file)
        time.sleep(FOLLOW_INTERVAL_S)
    for _, file in open_files:
        file.close()


def _list_log_paths(place: StackHome, names: list[str]) -> list[Path]:
    log_paths = sorted(place.logs_folder.glob("*.log")) if place.logs_folder.is_dir() else []
    if not log_paths:
        raise StackError(
            f"There are no logs in {place.root}.",
            way_out=f"Start the stack with: noetl up. {settings.OTHER_HOME_OR_DIR}.",
        )
    # `worker` means every worker.
    chosen = [
        p for p in log_paths if not names or any(_has_process_name(p.stem, name) for name in names)
    ]
    if not chosen:
        raise StackError(
            f"There is no log of {', '.join(names)}.",
            way_out=f"There are: {', '.join(p.stem for p in log_paths)}",
            exit_code=ExitCode.USAGE,
        )
    return chosen


def _has_process_name(stem: str, name: str) -> bool:
    return stem == name or stem.startswith(f"{name}-")


def _read_last_lines(file: BufferedReader, lines: int) -> list[str]:
    size = file.seek(0, 2)
    file.seek(max(0, size - TAIL_BYTES_MAX))
    content = file.read().decode(errors="replace").splitlines()
    return content[-lines:] if lines else []


def _print_new_lines(prefix: str, file: BufferedReader) -> None:
    if os.fstat(file.fileno()).st_size < file.tell():
        # The log was rotated: it begins anew.
        file.seek(0)
    for raw in file:
        terminal_output.print_line(prefix + raw.decode(errors="replace").rstrip("\n"))
