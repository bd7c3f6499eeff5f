"""The surfaces of the read models and what identifies their rows within an execution."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

KEY_BY_SURFACE = {
    "execution": "execution_id",
    "stage": "stage_id",
    "frame": "frame_id",
    "command": "command_id",
    "loop": "run_id",
    "business_object": "object_id",
}
LIVE_EXECUTION = ("PENDING", "RUNNING", "PAUSED")
LIVE_COMMAND = ("ISSUED", "RUNNING")


def latest_rows(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], *, of: AbstractSet[str]
) -> dict[str, list[Mapping[str, Any]]]:
    """Keep the last of the rows with one key, of the executions named; raises `KeyError`."""
    unknown = rows.keys() - KEY_BY_SURFACE.keys()
    if unknown:
        raise KeyError(f"no surface {sorted(unknown)}: there are {', '.join(KEY_BY_SURFACE)}")
    return {
        surface: list(
            {
                (row["execution_id"], row[key]): row
                for row in rows.get(surface, ())
                if row["execution_id"] in of
            }.values()
        )
        for surface, key in KEY_BY_SURFACE.items()
    }
