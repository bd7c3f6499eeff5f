"""Limits and walls around a child process: put up before anything of a playbook runs in it.

As a program it puts them up and becomes the command that follows its first argument. It imports
the standard library alone, so that it starts without the worker's packages.
"""

import contextlib
import ctypes
import json  # noqa: TID251 - it starts without the worker's packages
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

_DIE_WITH_PARENT = 1
_NO_NEW_PRIVILEGES = 38
_NEW_MOUNTS = 0x00020000
_NEW_USERS = 0x10000000
_NEW_NETWORK = 0x40000000
_BIND = 0x1000
_RECURSIVE = 0x4000
_PRIVATE = 1 << 18
_CAPABILITIES_VERSION = 0x20080522

_LANDLOCK_CREATE = 444
_LANDLOCK_ADD = 445
_LANDLOCK_ENTER = 446
_LANDLOCK_ASK_VERSION = 1
_LANDLOCK_BENEATH = 1
_LANDLOCK_MOVE = 1 << 13
_LANDLOCK_TCP = 0b11
_LANDLOCK_SIGNALS_AND_SOCKETS = 0b11
# What each version of Landlock learned: moving files, TCP, signals.
_MOVES_SINCE, _TCP_SINCE, _SIGNALS_SINCE = 2, 4, 6

_CANNOT_RUN = 126


def confine_process(bounds: dict[str, Any]) -> list[str]:
    """Confine this process and return the walls that this system did not grant.

    `processes`: nothing of the worker's memory and environment is readable in `/proc`.
    `signals`: the worker cannot be ended. `network`: nothing is reachable, unless the bounds
    grant it. `files`: below each directory of `hidden` only those of `shown` exist.
    """
    _set_limits(bounds)
    has_network = bool(bounds.get("network"))
    hidden, shown = bounds.get("hidden") or [], bounds.get("shown") or []
    wanted = {"processes", "signals"}
    wanted |= set() if has_network else {"network"}
    wanted |= {"files"} if hidden else set()
    granted: set[str] = set()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        granted |= _enter_namespaces(libc, has_network=has_network, hidden=hidden, shown=shown)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        granted |= _enter_landlock(libc, has_network=has_network)
    return sorted(wanted - granted)


def _set_limits(bounds: dict[str, Any]) -> None:
    wanted = {
        resource.RLIMIT_AS: bounds.get("memory_bytes"),
        resource.RLIMIT_NOFILE: bounds.get("files_max"),
        resource.RLIMIT_NPROC: bounds.get("processes_max"),
        resource.RLIMIT_FSIZE: bounds.get("file_bytes"),
        resource.RLIMIT_CORE: 0,
    }
    for what, limit in wanted.items():
        if limit is None:
            continue
        _, most = resource.getrlimit(what)
        number = int(limit) if most == resource.RLIM_INFINITY else min(int(limit), most)
        resource.setrlimit(what, (number, number))


def _enter_namespaces(
    libc: ctypes.CDLL, *, has_network: bool, hidden: list[str], shown: list[str]
) -> set[str]:
    """Leave the worker's users, network and view of files behind, where that is allowed."""
    user, group = os.getuid(), os.getgid()
    wanted = _NEW_USERS | _NEW_MOUNTS | (0 if has_network else _NEW_NETWORK)
    if libc.unshare(wanted) != 0:
        return set()
    granted = {"processes", "network"}
    # Without the maps every file would seem to belong to nobody.
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    if hidden and all(_hide_folder(libc, folder, shown) for folder in hidden):
        granted.add("files")
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    libc.capset(ctypes.byref(header), ctypes.byref(nothing))
    return granted


def _hide_folder(libc: ctypes.CDLL, hidden: str, shown: list[str]) -> bool:
    """Cover a directory with an empty one in which only the shown ones of it appear again."""
    path = Path.cwd()
    inside = [folder for folder in shown if Path(folder).is_relative_to(hidden)]
    descriptors = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in inside]
    try:
        is_done = bool(
            libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) == 0
            and libc.mount(b"none", hidden.encode(), b"tmpfs", 0, b"size=64k") == 0
        )
        for folder, descriptor in zip(inside, descriptors, strict=True):
            if is_done:
                Path(folder).mkdir(parents=True, exist_ok=True)
                source = f"/proc/self/fd/{descriptor}".encode()
                is_done = bool(libc.mount(source, folder.encode(), None, _BIND, None) == 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    os.chdir(path)
    return is_done


def _enter_landlock(libc: ctypes.CDLL, *, has_network: bool) -> set[str]:
    """Shut out other processes, their signals and TCP, also where namespaces are forbidden."""
    version = libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_ASK_VERSION)
    if version < _MOVES_SINCE:
        return set()
    is_cut = version >= _TCP_SINCE and not has_network
    is_scoped = version >= _SIGNALS_SINCE
    rules = (ctypes.c_uint64 * 3)(
        _LANDLOCK_MOVE,
        _LANDLOCK_TCP if is_cut else 0,
        _LANDLOCK_SIGNALS_AND_SOCKETS if is_scoped else 0,
    )
    size = 8 * (3 if is_scoped else 2 if is_cut else 1)
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        return set()
    root = os.open("/", os.O_PATH)
    try:
        # A domain forbids moving files between directories unless a rule allows it.
        move = ctypes.create_string_buffer(
            _LANDLOCK_MOVE.to_bytes(8, sys.byteorder) + root.to_bytes(4, sys.byteorder), 12
        )
        libc.syscall(_LANDLOCK_ADD, ruleset, _LANDLOCK_BENEATH, move, 0)
        is_in = libc.syscall(_LANDLOCK_ENTER, ruleset, 0) == 0
    finally:
        os.close(root)
        os.close(ruleset)
    if not is_in:
        return set()
    return (
        {"processes"} | ({"network"} if is_cut else set()) | ({"signals"} if is_scoped else set())
    )


def become(bounds: dict[str, Any] | None, command: list[str]) -> None:
    """Become a command, confined unless there are no bounds."""
    if bounds is not None:
        confine_process(bounds)
        for name in bounds.get("absent", ()):
            os.unsetenv(name)
    try:
        os.execv(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except OSError as problem:
        sys.stderr.write(f"{command[0]}: {problem.strerror}\n")
        sys.exit(_CANNOT_RUN)


def main() -> None:
    """Confine this process as the first argument says and become the rest of them."""
    become(json.loads(sys.argv[1]), sys.argv[2:])


if __name__ == "__main__":
    main()
