"""The histories of runs in this process: one file each, in the user's state folder.

A line holds an event as `noetl events` shows it (`view`) or as a ledger keeps it (`stored`), with
sealed values concealed; the line `cut_after` says that the file had reached its size.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from noetl_cli import settings
from noetl_cli.errors import CliError, ExitCode
from noetl_contracts import codec

FOLDER = "local-runs"
SUFFIX = ".jsonl"
RUNS_MAX = 100
RUN_BYTES_MAX = 64 * 1024 * 1024
FOLDER_BYTES_MAX = 256 * 1024 * 1024


class HistoryWriter:
    """Appends a run's events as they happen; a run that dies leaves what it had."""

    def __init__(self, folder: Path, execution_id: str) -> None:
        """Make the file; raises `OSError`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        prune_histories(folder)
        self._path = folder / f"{execution_id}{SUFFIX}"
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(handle, "wb")
        self._bytes = 0
        self._is_cut = False

    def append(self, views: Iterable[Any], stored: Iterable[Any], *, version: int) -> None:
        """Write events up to a version; raises `OSError`."""
        lines = [{"view": view} for view in views] + [{"stored": item} for item in stored]
        data = b"".join(codec.encode_json(line) + b"\n" for line in lines)
        if self._is_cut:
            return
        if self._bytes + len(data) > RUN_BYTES_MAX:
            self._is_cut = True
            data = codec.encode_json({"cut_after": version - len(lines) // 2}) + b"\n"
        self._file.write(data)
        self._file.flush()
        self._bytes += len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def get_history_folder(environ: dict[str, str]) -> Path:
    """Name the folder of all histories."""
    return settings.choose_home(None, environ=environ) / FOLDER


def prune_histories(folder: Path) -> None:
    """Remove the oldest histories until there is room for one more."""
    files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime, reverse=True)
    used = RUN_BYTES_MAX
    for number, file in enumerate(files, start=1):
        used += file.stat().st_size
        if number >= RUNS_MAX or used > FOLDER_BYTES_MAX:
            with suppress(FileNotFoundError):
                file.unlink()


def find_history(execution_id: str, *, server: str | None) -> Path | None:
    """Find the history of a run in this process; a server that is named means that one's."""
    if server is not None or not execution_id.isascii() or not execution_id.isdigit():
        return None
    file = get_history_folder(settings.copy_environment()) / f"{execution_id}{SUFFIX}"
    return file if file.is_file() else None


def read_views(file: Path, *, after: int = 0) -> Iterator[dict[str, Any]]:
    """Read events as `noetl events` shows them; raises `CliError` where the file ends too early."""
    for line in _read_lines(file):
        view = line.get("view")
        if view is not None and view["version"] > after:
            yield view


def read_stored(file: Path) -> Iterator[dict[str, Any]]:
    """Read events as a ledger keeps them; raises `CliError` where the file ends too early."""
    for line in _read_lines(file):
        if "stored" in line:
            yield line["stored"]


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open("rb") as opened:
            for data in opened:
                line = codec.decode_as(data, dict[str, Any])
                if "cut_after" in line:
                    raise CliError(
                        f"{file} holds the events up to version {line['cut_after']}: "
                        f"a history of a local run takes {RUN_BYTES_MAX:,} bytes at most.",
                        way_out="Run longer playbooks in a stack: noetl up, noetl run FILE",
                    )
                yield line
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror or error}.") from error
    except msgspec.MsgspecError as error:
        # The last line of a run that was killed may be half of one.
        raise CliError(
            f"{file} ends within an event: the run was killed while it was written.",
            way_out="What stands above is all that is known of it.",
        ) from error


def check_is_remote(execution_id: str, *, server: str | None) -> None:
    """Refuse to ask a planner about a run in this process; raises `CliError`."""
    if find_history(execution_id, server=server) is None:
        return
    raise CliError(
        f"Execution {execution_id} ran with -r local: no planner knows it.",
        way_out=f"noetl events {execution_id}, or noetl replay state {execution_id}",
        exit_code=ExitCode.USAGE,
    )
