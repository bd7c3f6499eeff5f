"""Rows of a live projection beside those of a replay."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_replay import rows
from noetl_replay.comparison import Surfaces


class RowDifference(Struct, frozen=True, kw_only=True):
    """A row that the two sides do not agree on; a missing side is None."""

    surface: str
    key: str
    live: dict[str, Any] | None
    replayed: dict[str, Any] | None


def compare_surfaces(live: Surfaces, replayed: Surfaces) -> list[RowDifference]:
    """List the rows in which a live projection and a replay differ; empty means parity."""
    live, replayed = rows.select_checksum_surfaces(live), rows.select_checksum_surfaces(replayed)
    return [
        RowDifference(
            surface=surface,
            key=key,
            live=live[surface].get(key),
            replayed=replayed[surface].get(key),
        )
        for surface in rows.SURFACES
        for key in sorted(live[surface].keys() | replayed[surface].keys())
        if codec.encode_canonical(live[surface].get(key))
        != codec.encode_canonical(replayed[surface].get(key))
    ]
