"""The settings of a ledger's server that its promises rest on, and what each has to be."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

VERSION = "server_version"


class DurabilityFinding(Struct, frozen=True, kw_only=True):
    """A setting as the server has it; `way_out` says what is at risk, and what to set."""

    name: str
    value: str
    is_kept: bool
    way_out: str = ""


class DurabilitySettings(Protocol):
    """Reads the settings; a ledger without a server of its own has none."""

    async def read_settings(self) -> Mapping[str, str]:
        """Return the values by the names of the settings, and the server's version."""


def judge_settings(value_by_name: Mapping[str, str]) -> list[DurabilityFinding]:
    """Say of each setting whether events that were acknowledged outlast a failure of power."""
    return [
        _judge_setting(name, value)
        for name, value in sorted(value_by_name.items())
        if name != VERSION
    ]


def _judge_setting(name: str, value: str) -> DurabilityFinding:
    is_kept = value == "on" or (name, value) == ("synchronous_commit", "remote_apply")
    return DurabilityFinding(
        name=name,
        value=value,
        is_kept=is_kept,
        way_out="" if is_kept else f"{_describe_risk(name)} Set it to `on`.",
    )


def _describe_risk(name: str) -> str:
    match name:
        case "data_checksums":
            return "A damaged page would be read as good (pg_checksums --enable)."
        case "synchronous_commit":
            return "A power failure would lose events that were already acknowledged."
        case _:
            return "A power failure would damage the ledger."
