"""The folder that holds everything about one stack, and who may use it at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from noetl_cli.errors import StackError


class StackHome(Struct, frozen=True, kw_only=True):
    """One stack's folder."""

    root: Path

    @property
    def state_file(self) -> Path:
        """What runs, for people and programs; mode 0600 because it holds addresses."""
        return self.root / "state.json"

    @property
    def secrets_file(self) -> Path:
        """Passwords and keys, made once."""
        return self.root / "secrets.json"

    @property
    def token_file(self) -> Path:
        """The token of the stack's owner, which commands send to its API."""
        return self.root / "token"

    @property
    def options_file(self) -> Path:
        """What the last `noetl up` asked for."""
        return self.root / "options.json"

    @property
    def data_locations_file(self) -> Path:
        """Where the ledger and the payloads of this folder are."""
        return self.root / "data_places.json"

    @property
    def lock_file(self) -> Path:
        """Held for as long as a supervisor lives."""
        return self.root / "supervisor.lock"

    @property
    def logs_folder(self) -> Path:
        """One file per process."""
        return self.root / "logs"

    @property
    def payloads_folder(self) -> Path:
        """The payload store when there is no S3."""
        return self.root / "payloads"

    def log_file(self, name: str) -> Path:
        """Name the log of one process."""
        return self.logs_folder / f"{name}.log"

    def hold_file(self, name: str) -> Path:
        """Name the file that, while it exists, makes the supervisor leave that process dead."""
        return self.root / "hold" / name


def make_home(root: Path) -> StackHome:
    """Create the folder when it is missing; never touch the modes of one that exists."""
    try:
        if not root.is_dir():
            # Others may pass through, as PostgreSQL's own user must, but not look around.
            root.mkdir(mode=0o711, parents=True)
        home = StackHome(root=root)
        for folder in (home.logs_folder, home.payloads_folder, root / "hold", root / "files"):
            folder.mkdir(mode=0o700, exist_ok=True)
        probe = root / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StackError(
            f"The folder {root} cannot be used: {error.strerror or error}.",
            way_out="Choose a writable folder with --dir or NOETL_HOME.",
        ) from error
    return home


def write_privately(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable by its owner only; raises a `StackError`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise StackError(
            f"{path} cannot be written: {error.strerror or error}.",
            way_out="Check that its disk has room and that the folder is writable.",
        ) from error


@contextmanager
def hold_supervisor_lock(home: StackHome) -> Iterator[None]:
    """Be the only supervisor of this folder."""
    with home.lock_file.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(
                f"A supervisor already runs in {home.root}.",
                way_out="See it with `noetl doctor`, stop it with `noetl down`.",
            ) from error
        yield


def is_supervised(home: StackHome) -> bool:
    """Tell whether a supervisor lives; the lock goes with the process, however it ends."""
    try:
        with home.lock_file.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
