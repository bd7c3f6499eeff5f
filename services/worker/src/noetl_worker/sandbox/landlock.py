"""Landlock: which files a process may read and write, and which others it may reach.

Each version of Landlock knows more rights. Rights that a version does not know are not forbidden.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from typing import NamedTuple

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 3
_TRUNCATE = 1 << 14
_USE_DEVICE = 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _USE_DEVICE
_TCP = 0b11
_SIGNALS_AND_SOCKETS = 0b11
# How many rights of files each version knows. Moving files between folders came with the second:
# in a domain of the first nobody could.
_FILE_RIGHTS_BY_VERSION = {2: 14, 3: 15, 4: 15}
_FILE_RIGHTS_MAX = 16
_MOVES_SINCE, _TCP_SINCE, _SIGNALS_SINCE = 2, 4, 6

MISSING = "this kernel has no Landlock of version 2 (Linux 5.19), or it is off (lsm= at its start)"


class FileRights(NamedTuple):
    """What may be done below which paths; a path that is not there is left out."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    # Folders whose entries alone may be listed, with those below.
    listed: tuple[str, ...] = ()


def get_version(libc: ctypes.CDLL) -> int:
    """Return the version of the kernel's Landlock, below 1 without any."""
    return int(libc.syscall(_CREATE, None, 0, _ASK_VERSION))


def enter_domain(libc: ctypes.CDLL, files: FileRights | None, *, has_network: bool) -> set[str]:
    """Give up all rights but these, for ever; return the walls that stand.

    Without `files` every file stays as it is.
    """
    version = get_version(libc)
    if version < _MOVES_SINCE:
        return set()
    known_rights = (1 << _FILE_RIGHTS_BY_VERSION.get(version, _FILE_RIGHTS_MAX)) - 1
    is_cut = version >= _TCP_SINCE and not has_network
    is_scoped = version >= _SIGNALS_SINCE
    # Any domain keeps its processes from tracing others: one that handles nothing is refused.
    handled_rights = known_rights if files is not None else 1 << (_FILE_RIGHTS_BY_VERSION[2] - 1)
    rules = (ctypes.c_uint64 * 3)(
        handled_rights, _TCP if is_cut else 0, _SIGNALS_AND_SOCKETS if is_scoped else 0
    )
    size = 8 * (3 if is_scoped else 2 if is_cut else 1)
    ruleset = libc.syscall(_CREATE, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        return set()
    try:
        _add_rules(libc, ruleset, files or FileRights(write=("/",)), handled_rights=handled_rights)
        is_in = libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)
    if not is_in:
        return set()
    granted_walls = {"processes"} | ({"reading", "writing"} if files is not None else set())
    return granted_walls | ({"tcp"} if is_cut else set()) | ({"signals"} if is_scoped else set())


def _add_rules(libc: ctypes.CDLL, ruleset: int, files: FileRights, *, handled_rights: int) -> None:
    rights_by_paths: tuple[tuple[Iterable[str], int], ...] = (
        (files.read, _READ),
        (files.write, handled_rights),
        (files.listed, _READ_FOLDER),
    )
    for paths, rights in rights_by_paths:
        for path in paths:
            _add_rule(libc, ruleset, path, rights & handled_rights)


def _add_rule(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # What is not there needs no right.
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        if rights:
            rule = rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
            libc.syscall(
                _ADD_RULE, ruleset, _PATH_BENEATH, ctypes.create_string_buffer(rule, 12), 0
            )
    finally:
        os.close(descriptor)
