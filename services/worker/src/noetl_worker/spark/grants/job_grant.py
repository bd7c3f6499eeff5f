"""What the executors of one job may open, as it travels to them, and how they find it renewed.

A grant is in no plan, option or environment that Spark lists: functions and data sources carry it
in their pickled form.
"""

import urllib.request
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from noetl_chassis.seals import byte_seal

KEY_BYTES = 32
_TIMEOUT_S = 30.0
# So many renewed grants are remembered by one process.
_REMEMBERED_MAX = 64

_renewed: dict[bytes, "JobGrant"] = {}


class GrantUnusable(Exception):  # noqa: N818 - it says what is so
    """The keys of a grant have ended, and no others could be read."""


class StoreKeys(Struct, frozen=True, kw_only=True):
    """What opens the payload store of one organization."""

    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    # Keys that seal payloads, as `read_payload_keys` reads them.
    seal_key: str = ""
    seal_file: str = ""

    def __repr__(self) -> str:
        """Show no key."""
        return "StoreKeys(...)"


class GrantRenewal(Struct, frozen=True, kw_only=True):
    """Where the worker leaves the next grant, a path or a signed address, and what opens it."""

    place: str
    key: bytes

    def __repr__(self) -> str:
        """Show no key."""
        return "GrantRenewal(...)"


class JobGrant(Struct, frozen=True, kw_only=True):
    """Keys of the payload store, and of each credential that the job's datasets name.

    `ends_at` and `renew_at` are Unix times in seconds, 0 where no key ends.
    """

    store: StoreKeys = StoreKeys()
    accounts: dict[str, dict[str, Any]] = {}
    renew_at: float = 0.0
    ends_at: float = 0.0
    renewal: GrantRenewal | None = None

    def __repr__(self) -> str:
        """Show the names of the credentials alone."""
        return f"JobGrant(accounts={sorted(self.accounts)})"


def find_current_grant(grant: JobGrant, now: float) -> JobGrant:
    """Return a grant, or the one that has replaced it; raises `GrantUnusable`.

    `now` is a Unix time in seconds.
    """
    renewal = grant.renewal
    if renewal is None:
        return grant
    current = _renewed.get(renewal.key, grant)
    if now < current.renew_at:
        return current
    try:
        current = open_grant(_read_place(renewal.place), renewal.key)
    except (OSError, ValueError) as problem:
        if now < current.ends_at:
            return current
        text = "the keys of this job's executors have ended, and its worker left no others"
        raise GrantUnusable(f"{text}: {type(problem).__name__}") from problem
    if len(_renewed) >= _REMEMBERED_MAX:
        _renewed.clear()
    _renewed[renewal.key] = current
    return current


def seal_grant(grant: JobGrant, key: bytes) -> bytes:
    """Write a grant so that only who has the key reads it."""
    return byte_seal.seal_bytes(msgspec.msgpack.encode(grant), key)


def open_grant(data: bytes, key: bytes) -> JobGrant:
    """Read a sealed grant; raises `ValueError`."""
    return msgspec.msgpack.decode(byte_seal.open_bytes(data, key), type=JobGrant)


def _read_place(place: str) -> bytes:
    if place.startswith("/"):
        return Path(place).read_bytes()
    # The worker has signed the address of its own store.
    with urllib.request.urlopen(place, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
        data: bytes = answer.read()
    return data
