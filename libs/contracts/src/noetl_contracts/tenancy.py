"""Tenants that have a share of their own of every pool; all others take part in one together."""

import re
from collections.abc import Iterable

from noetl_contracts import codec
from noetl_contracts.errors import Permanent

# Behind a lane's name in the subjects of those who have a share, behind a consumer's name its own.
OWN = "-own"
WEIGHT_MAX = 1000
_SHARE = re.compile(r"([A-Za-z0-9_-]{1,64})(?:=([1-9][0-9]{0,3}))?")
_MARK = re.compile(r"-t[0-9a-f]{8}$")


class SharesMalformed(Permanent):
    """A list of tenants does not say who has how much; the message says which entry."""


def parse(entries: Iterable[str]) -> dict[str, int]:
    """Read `tenant` or `tenant=weight` each; raises `SharesMalformed`."""
    found: dict[str, int] = {}
    for entry in entries:
        match = _SHARE.fullmatch(entry)
        weight = int(match[2] or 1) if match else 0
        if match is None or not 0 < weight <= WEIGHT_MAX or match[1] in found:
            raise SharesMalformed(
                f"{entry[:80]!r} is no share: write tenant or tenant=weight, each tenant once, "
                f"weights from 1 to {WEIGHT_MAX}"
            )
        found[match[1]] = weight
    marks = {mark(tenant) for tenant in found}
    if len(marks) < len(found):
        raise SharesMalformed("two of the tenants cannot be told apart: rename one of them")
    return found


def mark(tenant_id: str) -> str:
    """Return what a tenant's own consumers have behind their names; names may be long."""
    return f"-t{codec.digest(tenant_id.encode())[:8]}"


def without_mark(consumer: str) -> str:
    """Return a consumer's name without the mark of its tenant."""
    return _MARK.sub("", consumer)
