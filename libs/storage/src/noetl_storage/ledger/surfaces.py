"""The surfaces of the read models and what identifies their rows within an execution."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from noetl_contracts import codec
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import (
    IssuedCommand,
    LeasedCommand,
    OpenWait,
    StoredLineageLink,
)
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.status import CommandStatus

KEY_BY_SURFACE = {
    "execution": "execution_id",
    "stage": "stage_id",
    "frame": "frame_id",
    "command": "command_id",
    "loop": "run_id",
    "business_object": "object_id",
}
# Columns of which a row has none until there is something to show.
OPTIONAL_COLUMNS = frozenset({"wait", "late"})
LIVE_EXECUTION = ("PENDING", "RUNNING", "PAUSED")
LIVE_COMMAND = ("ISSUED", "RUNNING")


def read_open_waits(rows: Iterable[Mapping[str, Any]]) -> list[OpenWait]:
    """Read the waits for messages of command rows, the longest waiting first."""
    open_waits = [
        OpenWait(
            execution_id=ExecutionId(str(row["execution_id"])),
            tenant_id=TenantId(row["tenant_id"]),
            organization_id=OrganizationId(row["organization_id"]),
            command_id=CommandId(str(row["command_id"])),
            step=row["step_name"],
            wait=codec.convert_value(row["wait"], MessageWait),
            since=row["heard_at"],
        )
        for row in rows
        if row["status"] == CommandStatus.PARKED and "address" in (row.get("wait") or {})
    ]
    return sorted(open_waits, key=lambda open_wait: str(open_wait.since))


def read_issued_command(row: Mapping[str, Any]) -> IssuedCommand:
    """Read a command row that nobody has begun."""
    return IssuedCommand(
        execution_id=row["execution_id"],
        command_id=CommandId(row["command_id"]),
        stage_id=row["stage_id"],
        step=row["step_name"],
        pool=row["pool"],
        lane=row["lane"],
        since=row["heard_at"],
    )


def read_leased_command(row: Mapping[str, Any]) -> LeasedCommand:
    """Read a command row that a worker runs, with its path, its frame and the stage's policy."""
    lease_s = (row["frame_policy"] or {}).get("lease_seconds")
    return LeasedCommand(
        execution_id=row["execution_id"],
        path=row["path"],
        command_id=CommandId(row["command_id"]),
        stage_id=row["stage_id"],
        frame_id=row["frame_id"],
        step=row["step_name"],
        attempt=row["attempts"],
        worker_id=row["worker_id"],
        pool=row["pool"],
        lane=row["lane"],
        started_event_id=row["started_event_id"],
        heard_at=row["heard_at"],
        lease_s=None if lease_s is None else float(lease_s),
    )


def read_stored_link(row: Mapping[str, Any]) -> StoredLineageLink:
    """Read the row of a stored result."""
    parent = row["parent_ref_id"]
    return StoredLineageLink(
        step=row["step_name"],
        run_id=str(row["run_id"]),
        entered_version=row["entered_version"],
        ref_id=str(row["ref_id"]),
        parent_ref_id=None if parent is None else str(parent),
        is_error=row["is_error"],
        reference=codec.convert_value(row["reference"], PayloadRef),
        created_at=row["created_at"],
    )


def list_latest_rows(
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
