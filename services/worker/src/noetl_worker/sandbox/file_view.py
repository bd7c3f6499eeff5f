"""A root of its own for a process: an empty one in which only the paths that it needs appear.

It needs a user namespace and a mount namespace. What is not in it can be neither read nor listed,
nor reached as a socket, nor given other rights. All but the paths to write is read-only.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_BIND = 0x1000
_RECURSIVE = 0x4000
_PRIVATE = 1 << 18
_NO_SETUID, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_DETACH = 2
_SET_ATTRIBUTES = 442
_OF_ALL_BELOW = 0x8000
_AT_FOLDER = -100
_READ_ONLY, _NO_SETUID_ATTRIBUTE = 1, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LINKS_MAX = 40
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a file system of the process's own
_SHARED_MEMORY_OPTIONS = b"size=64m,mode=1777"
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}


class ViewRefused(OSError):  # noqa: N818 - it says what happened
    """The system does not let this process change what it sees."""


class FileView:
    """A new root, made upon `stage`: a folder that holds those to write, and is none of them."""

    def __init__(self, libc: ctypes.CDLL, stage: str) -> None:
        self._libc = libc
        self._stage = stage
        self._links: dict[str, str] = {}
        # Whether `/proc` shows the processes of this one's own space alone.
        self.is_closed = False
        # Whether all but the paths to write is read-only: before Linux 5.12 that is not possible.
        self.is_protected = True

    def enter_root(self, *, read: Iterable[str], write: Iterable[str], is_apart: bool) -> None:
        """Make the root and move into it; raises `ViewRefused`, and then nothing has changed.

        `is_apart` says that this process has a space of processes of its own.
        """
        folder = Path.cwd()
        writable_paths = [self._follow_path(path) for path in write if Path(path).exists()]
        paths = sorted({self._follow_path(path) for path in read if Path(path).exists()})
        with _open_places([*_leave_out_nested(paths), *writable_paths]) as descriptor_by_place:
            self._mount_place(b"none", "/", flags=_RECURSIVE | _PRIVATE)
            self._mount_place(b"noetl", self._stage, kind=b"tmpfs", options=b"size=1m,mode=755")
            try:
                self._fill_root(descriptor_by_place)
                self._mount_processes(is_apart=is_apart)
                self._protect_root([*writable_paths, _SHARED_MEMORY])
                self._change_root()
            except OSError:
                self._libc.umount2(self._stage.encode(), _DETACH)
                raise
        with contextlib.suppress(FileNotFoundError):
            os.chdir(folder)

    def _fill_root(self, descriptor_by_place: dict[str, int]) -> None:
        for place, descriptor in descriptor_by_place.items():
            self._bind_place(f"/proc/self/fd/{descriptor}", place, like=descriptor)
        for link, target in {**self._links, **_DEVICE_LINKS}.items():
            path = Path(self._stage + link)
            path.parent.mkdir(parents=True, exist_ok=True)
            # One that lies inside a folder of the view is there already.
            with contextlib.suppress(FileExistsError):
                path.symlink_to(target)
        shared = self._stage + _SHARED_MEMORY
        Path(shared).mkdir(parents=True, exist_ok=True)
        self._mount_place(
            b"noetl",
            shared,
            kind=b"tmpfs",
            flags=_NO_SETUID | _NO_DEVICES,
            options=_SHARED_MEMORY_OPTIONS,
        )

    def _mount_processes(self, *, is_apart: bool) -> None:
        """Mount `/proc` anew, or as it was where a container forbids that."""
        place = self._stage + "/proc"
        Path(place).mkdir(exist_ok=True)
        if is_apart:
            with contextlib.suppress(ViewRefused):
                flags = _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS
                self._mount_place(b"proc", place, kind=b"proc", flags=flags)
                self.is_closed = True
                return
        self._mount_place(b"/proc", place, flags=_BIND | _RECURSIVE)

    def _bind_place(self, source: str, place: str, *, like: int) -> None:
        target = Path(self._stage + place)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISDIR(os.fstat(like).st_mode):
                target.mkdir()
            else:
                target.touch()
        self._mount_place(source.encode(), str(target), flags=_BIND | _RECURSIVE)

    def _protect_root(self, writable_paths: Iterable[str]) -> None:
        try:
            self._set_attributes(self._stage, added=_READ_ONLY | _NO_SETUID_ATTRIBUTE)
        except ViewRefused as problem:
            if problem.errno != errno.ENOSYS:
                raise
            self.is_protected = False
            return
        for place in writable_paths:
            self._set_attributes(self._stage + place, removed=_READ_ONLY)

    def _set_attributes(self, path: str, *, added: int = 0, removed: int = 0) -> None:
        mount_attributes = (ctypes.c_uint64 * 4)(added, removed, 0, 0)
        if self._libc.syscall(
            _SET_ATTRIBUTES, _AT_FOLDER, path.encode(), _OF_ALL_BELOW, mount_attributes, 32
        ):
            raise _build_refusal(f"the rights of {path} cannot be changed")

    def _change_root(self) -> None:
        os.chdir(self._stage)
        number = _PIVOT_ROOT.get(os.uname().machine, -1)
        # The old root comes to lie upon the new one, and is taken away.
        if self._libc.syscall(number, b".", b"."):
            raise _build_refusal("the root cannot be changed")
        if self._libc.umount2(b".", _DETACH):
            raise _build_refusal("the old root cannot be left")
        os.chdir("/")

    def _mount_place(
        self,
        source: bytes,
        target: str,
        *,
        kind: bytes | None = None,
        flags: int = 0,
        options: bytes | None = None,
    ) -> None:
        if self._libc.mount(source, target.encode(), kind, flags, options):
            raise _build_refusal(f"{target} cannot be mounted")

    def _follow_path(self, path: str) -> str:
        """Return where a path leads, and note the links on its way."""
        followed_path, parts = Path("/"), list(Path(path).parts[1:])
        for _ in range(_LINKS_MAX * len(parts)):
            if not parts:
                return str(followed_path)
            part = parts.pop(0)
            current = followed_path.parent if part == ".." else followed_path / part
            if not current.is_symlink():
                followed_path = current
                continue
            target = current.readlink()
            self._links[str(current)] = str(target)
            followed_path = Path("/") if target.is_absolute() else followed_path
            parts = [step for step in target.parts if step != "/"] + parts
        return str(Path(path).resolve())


def _build_refusal(message: str) -> ViewRefused:
    number = ctypes.get_errno()
    return ViewRefused(number, f"{message}: {os.strerror(number)}")


def _leave_out_nested(places: list[str]) -> list[str]:
    """Leave out what a folder of the list shows already; the list is sorted."""
    outer: list[str] = []
    for place in places:
        if not any(place.startswith(f"{folder}/") for folder in outer):
            outer.append(place)
    return outer


@contextlib.contextmanager
def _open_places(places: Iterable[str]) -> Iterator[dict[str, int]]:
    """Hold places open by name, so that they are found after they were covered."""
    with contextlib.ExitStack() as stack:
        descriptor_by_place: dict[str, int] = {}
        for place in places:
            descriptor_by_place[place] = os.open(place, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, descriptor_by_place[place])
        yield descriptor_by_place
