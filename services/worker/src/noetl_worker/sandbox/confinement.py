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
_NEW_USERS = 0x10000000
_NEW_NETWORK = 0x40000000
_CAPABILITIES_VERSION = 0x20080522
_UNUSABLE = 126


def put_up(bounds: dict[str, Any]) -> bool:
    """Confine this process; return whether the kernel granted the walls besides the limits.

    The walls are namespaces: of users, so that the worker's memory, environment and files in
    `/proc` are closed, and of network unless `network` grants it. Systems other than Linux, and
    containers that forbid namespaces, have the limits alone.
    """
    _limit(bounds)
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    is_walled = _wall(libc, has_network=bool(bounds.get("network")))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return is_walled


def _limit(bounds: dict[str, Any]) -> None:
    wanted = {
        resource.RLIMIT_AS: bounds.get("memory_bytes"),
        resource.RLIMIT_NOFILE: bounds.get("files_max"),
        resource.RLIMIT_NPROC: bounds.get("processes_max"),
        resource.RLIMIT_FSIZE: bounds.get("file_bytes"),
        resource.RLIMIT_CPU: bounds.get("cpu_s"),
        resource.RLIMIT_CORE: 0,
    }
    for what, limit in wanted.items():
        if limit is None:
            continue
        _, most = resource.getrlimit(what)
        number = int(limit) if most == resource.RLIM_INFINITY else min(int(limit), most)
        resource.setrlimit(what, (number, number))


def _wall(libc: ctypes.CDLL, *, has_network: bool) -> bool:
    user, group = os.getuid(), os.getgid()
    wanted = _NEW_USERS if has_network else _NEW_USERS | _NEW_NETWORK
    if libc.unshare(wanted) != 0:
        return False
    # Files keep their owner; without the maps every file would belong to nobody.
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    libc.capset(ctypes.byref(header), ctypes.byref(nothing))
    return True


def main() -> None:
    """Confine this process as the first argument says and become the rest of them."""
    put_up(json.loads(sys.argv[1]))
    command = sys.argv[2:]
    try:
        os.execv(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except OSError as problem:
        sys.stderr.write(f"{command[0]}: {problem.strerror}\n")
        sys.exit(_UNUSABLE)


if __name__ == "__main__":
    main()
