"""Limits and walls around a child process: put up before anything of a playbook runs in it.

As a program it puts them up and becomes the command that follows its first argument; with
`--describe` it prints which walls stand. It and what it imports need the standard library alone,
so that it starts without the worker's packages.
"""

import contextlib
import ctypes
import json  # noqa: TID251 - it starts without the worker's packages
import os
import resource
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from noetl_worker.sandbox import landlock, process_space, system_call_filter
from noetl_worker.sandbox.file_view import FileView, ViewRefused
from noetl_worker.sandbox.landlock import FileRights

_DIE_WITH_PARENT = 1
_NO_NEW_PRIVILEGES = 38
_NEW_MOUNTS = 0x00020000
_NEW_IPC = 0x08000000
_NEW_USERS = 0x10000000
_NEW_PROCESSES = 0x20000000
_NEW_NETWORK = 0x40000000
_CAPABILITIES_VERSION = 0x20080522
_CANNOT_RUN = 126

# What programs and the resolver of names look up on any machine, and nothing of its users.
SYSTEM_PATHS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/nsswitch.conf", "/etc/resolv.conf"),
    *("/etc/protocols", "/etc/services", "/etc/mime.types", "/etc/passwd", "/etc/group"),
    # Beside certificates stand keys of the machine.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf"),
    "/etc/pki/ca-trust/extracted",
    *("/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/locale.conf", "/etc/fonts"),
    *("/etc/os-release", "/dev/random", "/dev/urandom", "/sys/devices/system/cpu"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a file system of the process's own
# Where the processes of others are in the same folder, these tell of the machine alone.
_MACHINE_FACTS = (
    *("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version"),
    "self",
)

_OF_FILES = ("reading", "writing", "attributes")
_NO_NAMESPACES = "user namespaces are refused ({}): allow them, or run each worker in a container"


class MissingWalls:
    """The walls that this system did not grant, and why."""

    def __init__(self, walls: Iterable[str]) -> None:
        self._reason_by_wall: dict[str, str] = dict.fromkeys(walls, "")
        self._granted_walls: set[str] = set()

    def grant_walls(self, walls: Iterable[str]) -> None:
        """Note that walls stand; reasons noted for them do not count."""
        self._granted_walls |= set(walls)

    def note_reason(self, walls: Iterable[str], reason: str) -> None:
        """Note why one of several ways to walls is closed."""
        for wall in walls:
            if wall in self._reason_by_wall:
                before = self._reason_by_wall[wall]
                self._reason_by_wall[wall] = f"{before}; {reason}" if before else reason

    def list_reasons(self) -> dict[str, str]:
        """Return the reason for each wall that does not stand."""
        return {
            wall: reason or f"{sys.platform} has none of the kind"
            for wall, reason in sorted(self._reason_by_wall.items())
            if wall not in self._granted_walls
        }


def confine_process(bounds: dict[str, Any]) -> dict[str, str]:
    """Confine this process and return the walls that this system did not grant, with reasons.

    `reading` and `writing`: of files, only those of `read` and `write` and of the system are there.
    `attributes`: size, rights and times of others can be neither read nor set.
    `sockets`: those of other programs on this machine are out of reach. `network`: nothing is
    reachable, unless the bounds grant it. `processes`: nothing of the worker's memory and
    environment is readable. `signals`: the worker cannot be ended.
    """
    _set_limits(bounds)
    has_network = bool(bounds.get("network"))
    walls = {"processes", "signals", "sockets"}
    walls |= set() if has_network else {"network"}
    walls |= {"reading", "writing", "attributes"} if "write" in bounds else set()
    missing_walls = MissingWalls(walls)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        _build_walls(libc, bounds, missing_walls, has_network=has_network)
    return missing_walls.list_reasons()


def _set_limits(bounds: dict[str, Any]) -> None:
    limit_by_resource = {
        resource.RLIMIT_AS: bounds.get("memory_bytes"),
        resource.RLIMIT_NOFILE: bounds.get("files_max"),
        resource.RLIMIT_NPROC: bounds.get("processes_max"),
        resource.RLIMIT_FSIZE: bounds.get("file_bytes"),
        resource.RLIMIT_CORE: 0,
    }
    for resource_number, limit in limit_by_resource.items():
        if limit is None:
            continue
        _, hard_limit = resource.getrlimit(resource_number)
        number = int(limit) if hard_limit == resource.RLIM_INFINITY else min(int(limit), hard_limit)
        resource.setrlimit(resource_number, (number, number))


def _build_walls(
    libc: ctypes.CDLL, bounds: dict[str, Any], missing: MissingWalls, *, has_network: bool
) -> None:
    readable_paths = (*SYSTEM_PATHS, *bounds.get("read", ()))
    writable_paths = tuple(bounds.get("write", ()))
    spaces = _enter_namespaces(libc, missing, has_network=has_network)
    view = (
        _enter_view(libc, readable_paths, writable_paths, missing, is_apart="signals" in spaces)
        if spaces
        else None
    )
    missing.grant_walls(spaces)
    _drop_capabilities(libc)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    files = None
    if writable_paths:
        files = _build_rights(readable_paths, writable_paths, view)
    domain = landlock.enter_domain(libc, files, has_network=has_network)
    if not domain:
        missing.note_reason(("reading", "writing", "processes", "signals"), landlock.MISSING)
    elif "signals" not in domain:
        missing.note_reason(("signals",), "Landlock keeps signals in since Linux 6.12")
    missing.grant_walls(domain)
    # In a network of its own a task may have sockets: they lead nowhere.
    if system_call_filter.install_filter(libc, has_network=has_network or "network" in spaces):
        missing.grant_walls({"sockets", "network"})
        return
    missing.note_reason(("sockets", "network"), system_call_filter.MISSING)
    missing.grant_walls({"network"} if "tcp" in domain else ())


def _enter_view(
    libc: ctypes.CDLL,
    readable_paths: tuple[str, ...],
    writable_paths: tuple[str, ...],
    missing: MissingWalls,
    *,
    is_apart: bool,
) -> FileView | None:
    """Move into a root of its own, where there is something to write and that is granted."""
    if not writable_paths:
        return None
    view = FileView(libc, str(Path(writable_paths[0]).parent))
    try:
        view.enter_root(read=readable_paths, write=(*writable_paths, *DEVICES), is_apart=is_apart)
    except ViewRefused as problem:
        missing.note_reason(_OF_FILES, str(problem))
        return None
    missing.grant_walls(_OF_FILES if view.is_protected else {"reading"})
    if not view.is_protected:
        missing.note_reason(("writing", "attributes"), "folders can be read-only since Linux 5.12")
    return view


def _build_rights(
    readable_paths: tuple[str, ...], writable_paths: tuple[str, ...], view: FileView | None
) -> FileRights:
    """Say what Landlock is to allow: also what a view would show, where there is none."""
    is_closed = view is not None and view.is_closed
    facts = ("/proc",) if is_closed else tuple(f"/proc/{name}" for name in _MACHINE_FACTS)
    own_paths = (_SHARED_MEMORY,) if view is not None else ()
    return FileRights(
        read=(*readable_paths, *facts),
        write=(*writable_paths, *own_paths, *DEVICES),
        listed=() if view is None else ("/",),
    )


def _enter_namespaces(libc: ctypes.CDLL, missing: MissingWalls, *, has_network: bool) -> set[str]:
    """Leave the worker's users, mounts, processes and network behind, where that is allowed."""
    user, group = os.getuid(), os.getgid()
    namespace_flags = _NEW_USERS | _NEW_MOUNTS | _NEW_IPC | (0 if has_network else _NEW_NETWORK)
    if libc.unshare(namespace_flags) != 0:
        reason = _NO_NAMESPACES.format(os.strerror(ctypes.get_errno()))
        missing.note_reason((*_OF_FILES, "network", "processes", "signals"), reason)
        return set()
    # Without the maps every file would seem to belong to nobody.
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    granted_walls = {"processes", *(() if has_network else ("network",))}
    if libc.unshare(_NEW_PROCESSES) == 0:
        process_space.enter_process_space(libc)
        granted_walls.add("signals")
    return granted_walls


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    no_capabilities = (ctypes.c_uint32 * 6)()
    libc.capset(ctypes.byref(header), ctypes.byref(no_capabilities))


def list_interpreter_paths() -> list[str]:
    """List what this interpreter reads: its programs, its library and its packages."""
    interpreter_paths = [
        sys.prefix,
        sys.exec_prefix,
        sys.base_prefix,
        sys.base_exec_prefix,
        *sys.path,
    ]
    interpreter_paths.append(str(Path(sys.executable).parent))
    return sorted(
        {str(path) for path in map(Path, interpreter_paths) if path.is_absolute() and path.name}
    )


def become_command(bounds: dict[str, Any] | None, command: list[str]) -> None:
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
    bounds = json.loads(sys.argv[1])
    if sys.argv[2:] == ["--describe"]:
        sys.stdout.write(json.dumps(confine_process(bounds)))
        return
    become_command(bounds, sys.argv[2:])


if __name__ == "__main__":
    main()
