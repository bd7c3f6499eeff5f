"""`noetl logs`: what the processes of the stack wrote."""

import os
import time
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import render, settings
from noetl_cli.commands.options import Directory
from noetl_cli.failures import ExitCode, StackError
from noetl_cli.stack.home import Home

FOLLOW_INTERVAL_S = 0.2
TAIL_BYTES_MAX = 4 * 1024 * 1024


def logs(
    *,
    names: Annotated[
        list[str] | None, typer.Argument(help="Processes, such as `worker-1`; all by default.")
    ] = None,
    directory: Directory = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until interrupted.")
    ] = False,
) -> None:
    """Print the last lines of the logs, oldest first within each process."""
    place = Home(root=settings.home(directory, environ=settings.environment()))
    paths = _paths(place, names or [])
    width = max(len(path.stem) for path in paths)
    open_files: list[tuple[str, BufferedReader]] = []
    for path in paths:
        prefix = "" if len(paths) == 1 else f"{path.stem:<{width}} | "
        file = path.open("rb")
        open_files.append((prefix, file))
        for text in _last_lines(file, lines):
            render.line(prefix + text)
    while follow:
        for prefix, file in open_files:
            _print_new(prefix, file)
        time.sleep(FOLLOW_INTERVAL_S)
    for _, file in open_files:
        file.close()


def _paths(place: Home, names: list[str]) -> list[Path]:
    known = sorted(place.logs.glob("*.log")) if place.logs.is_dir() else []
    if not known:
        raise StackError(
            f"There are no logs in {place.root}.", way_out="Start the stack with: noetl up"
        )
    # `worker` means every worker.
    chosen = [p for p in known if not names or any(_is_called(p.stem, name) for name in names)]
    if not chosen:
        raise StackError(
            f"There is no log of {', '.join(names)}.",
            way_out=f"There are: {', '.join(p.stem for p in known)}",
            exit_code=ExitCode.USAGE,
        )
    return chosen


def _is_called(stem: str, name: str) -> bool:
    return stem == name or stem.startswith(f"{name}-")


def _last_lines(file: BufferedReader, lines: int) -> list[str]:
    size = file.seek(0, 2)
    file.seek(max(0, size - TAIL_BYTES_MAX))
    content = file.read().decode(errors="replace").splitlines()
    return content[-lines:] if lines else []


def _print_new(prefix: str, file: BufferedReader) -> None:
    if os.fstat(file.fileno()).st_size < file.tell():
        # The log was rotated: it begins anew.
        file.seek(0)
    for raw in file:
        render.line(prefix + raw.decode(errors="replace").rstrip("\n"))
