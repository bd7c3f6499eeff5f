"""The operating system user that PostgreSQL runs as, and what that user can reach."""

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_cli.failures import StackError

UNPRIVILEGED = "nobody"
PROBE_TIMEOUT_S = 20


class Owner(Struct, frozen=True, kw_only=True):
    """A user id and its group."""

    uid: int
    gid: int


def unprivileged() -> Owner | None:
    """Name the user to run as when we are root; `None` when we are not."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(UNPRIVILEGED)
    except KeyError as error:
        raise StackError(
            f"PostgreSQL refuses to run as root and there is no user {UNPRIVILEGED!r}.",
            way_out="Run noetl as an ordinary user, or create that user.",
        ) from error
    return Owner(uid=entry.pw_uid, gid=entry.pw_gid)


def as_owner(owner: Owner | None) -> dict[str, Any]:
    """Give the `subprocess` arguments that start a child as this user."""
    if owner is None:
        return {}
    return {"user": owner.uid, "group": owner.gid, "extra_groups": []}


def can_enter(owner: Owner | None, directory: Path) -> bool:
    """Ask the operating system, as that user, whether a path below can be opened."""
    return _succeeds(owner, ["/bin/sh", "-c", 'test -x "$0"', str(directory)])


def can_run(owner: Owner | None, program: Path) -> bool:
    """Ask the operating system, as that user, whether a program starts."""
    return _succeeds(owner, [str(program), "--version"])


def give(path: Path, owner: Owner | None) -> None:
    """Hand one path over, never its parents."""
    if owner is not None:
        os.chown(path, owner.uid, owner.gid)


def _succeeds(owner: Owner | None, argv: list[str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - argv is built above from known programs
            argv,
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            **as_owner(owner),
        )
    except PermissionError:
        return False
    return done.returncode == 0
