"""Projection rows: what a state and its changes look like, surface by surface.

The live projector writes these rows, replay recomputes them, and parity compares their checksums.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from noetl_contracts import codec
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.status import RunStatus
from noetl_replay.state import (
    Changes,
    CommandState,
    ExecutionState,
    FrameState,
    LoopState,
    ObjectState,
    StageState,
    StoredResult,
)

SURFACES = ("execution", "stage", "frame", "command", "loop", "business_object")

# Columns outside of the checksums, and so of parity: of rows that were summed before they had them.
UNSUMMED_COLUMNS = {"stage": frozenset({"parent_stage_id"})}

# Of what was late: the step's name and activation, or nothing; since when, and until when.
_LATE_FIELDS = ("step", "run_id", "since", "ended_at")

Row = dict[str, Any]


def build_execution_row(state: ExecutionState) -> Row:
    """Show an execution; only one that was late has `late`."""
    row = {
        "execution_id": state.execution_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "parent_execution_id": state.parent_execution_id,
        "path": state.path,
        "catalog_id": state.catalog_id,
        "catalog_version": state.catalog_version,
        "status": str(state.status),
        "current_step": _find_current_step(state),
        "completed_steps": sorted(
            name for name, step in state.steps.items() if step.status is RunStatus.COMPLETED
        ),
        "workload": _build_workload(state),
        "variables": codec.to_builtins(state.ctx),
        "error": codec.to_builtins(state.failure),
        "result": codec.to_builtins(state.result),
        "frames": state.frames_total,
        "rows": state.rows_total,
        "warnings": state.warnings,
        "last_event_id": state.last_event_id,
        "last_event_type": state.last_event_type,
        "version": state.version,
        "envelope_checksum": state.checksum,
        "started_at": state.started_at,
        "updated_at": state.updated_at,
        "ended_at": state.ended_at,
    }
    if state.late is not UNSET:
        row["late"] = [
            {name: codec.to_builtins(getattr(mark, name)) for name in _LATE_FIELDS}
            for mark in state.late
        ]
    return row


def _build_workload(state: ExecutionState) -> Any:
    """Show the inputs, or the reference by which large ones are kept."""
    if state.workload_ref is not None:
        return {"_ref": codec.to_builtins(state.workload_ref)}
    return codec.to_builtins(state.workload)


def _find_current_step(state: ExecutionState) -> str | None:
    run_state = max(state.runs.values(), key=lambda run: run.activation, default=None)
    return run_state.step if run_state is not None else state.last_step


def build_stage_row(state: ExecutionState, stage: StageState) -> Row:
    """Show a stage."""
    return {
        "execution_id": state.execution_id,
        "stage_id": stage.stage_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "parent_stage_id": None if stage.parent_stage_id is UNSET else stage.parent_stage_id,
        "run_id": stage.run_id,
        "step_name": stage.step,
        "kind": str(stage.kind),
        "status": str(stage.status),
        "slots": stage.slots,
        "frame_policy": stage.frame_policy,
        "frames": stage.frames,
        "frames_failed": stage.frames_failed,
        "rows": stage.rows,
        "rows_failed": stage.rows_failed,
        "opened_event_id": stage.opened_event_id,
        "closed_event_id": stage.closed_event_id,
        "started_at": stage.started_at,
        "ended_at": stage.ended_at,
    }


def build_frame_row(state: ExecutionState, frame: FrameState) -> Row:
    """Show a frame."""
    return {
        "execution_id": state.execution_id,
        "frame_id": frame.frame_id,
        "stage_id": frame.stage_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "parent_frame_id": frame.parent_frame_id,
        "command_id": frame.command_id,
        "claimed_event_id": frame.claimed_event_id,
        "terminal_event_id": frame.terminal_event_id,
        "cursor": {
            "slot": frame.slot,
            "frame_index": frame.frame_index,
            "rows_ref": codec.to_builtins(frame.rows_ref),
            "metrics": frame.metrics,
        },
        "row_count": frame.row_count,
        "rows_failed": frame.rows_failed,
        "status": str(frame.status),
        "owner_worker": frame.owner_worker,
        "output_ref": codec.to_builtins(frame.output_ref),
        "attempts": frame.attempts,
        "created_at": frame.created_at,
        "completed_at": frame.completed_at,
    }


def build_command_row(state: ExecutionState, command: CommandState) -> Row:
    """Show a command; only one that waits for a message has a `wait`."""
    row = {
        "execution_id": state.execution_id,
        "command_id": command.command_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "run_id": command.run_id,
        "step_name": command.step,
        "unit": command.unit,
        "pool": command.pool,
        "lane": command.lane,
        "stage_id": command.stage_id,
        "status": str(command.status),
        "attempts": command.attempt,
        "worker_id": command.worker_id,
        "worker_locator": command.worker_locator,
        "locality": command.locality,
        "rejected": command.rejected,
        "issued_event_id": command.issued_event_id,
        "started_event_id": command.started_event_id,
        "terminal_event_id": command.terminal_event_id,
        "issued_at": command.issued_at,
        "heard_at": command.heard_at,
        "completed_at": command.completed_at,
    }
    if command.parked is not None and isinstance(command.parked.wait, MessageWait):
        row["wait"] = codec.to_builtins(command.parked.wait)
    return row


def build_loop_row(state: ExecutionState, loop: LoopState) -> Row:
    """Show a loop epoch."""
    return {
        "execution_id": state.execution_id,
        "run_id": loop.run_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "step_name": loop.step,
        "mode": loop.mode,
        "status": str(loop.status),
        "stage_id": loop.stage_id,
        "total": loop.total,
        "done": loop.success,
        "failed": loop.failed,
        "in_flight": loop.in_flight,
        "is_finished": loop.is_finished,
        "last_event_id": loop.last_event_id,
        "started_at": loop.started_at,
    }


def build_object_row(state: ExecutionState, thing: ObjectState) -> Row:
    """Show an object of the playbook's domain."""
    return {
        "execution_id": state.execution_id,
        "object_id": thing.object_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "object_type": thing.object_type,
        "status": thing.status,
        "version": thing.version,
        "attributes": thing.attributes,
        "payload_refs": codec.to_builtins(thing.payload_refs),
        "first_event_id": thing.first_event_id,
        "last_event_id": thing.last_event_id,
        "is_deleted": thing.is_deleted,
        "created_at": thing.created_at,
        "updated_at": thing.updated_at,
    }


def build_result_row(state: ExecutionState, stored_result: StoredResult) -> Row:
    """Show a stored result and the one that led to it.

    No surface of parity: all of it stands in the ledger's own events, under their checksums, and
    it says of the past what the surfaces leave out. A rebuild compares it.
    """
    return {
        "ref_id": stored_result.ref_id,
        "execution_id": state.execution_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "run_id": stored_result.run_id,
        "step_name": stored_result.step,
        "is_error": stored_result.is_error,
        "entered_version": stored_result.entered_version,
        "reference": codec.to_builtins(stored_result.reference),
        "parent_ref_id": stored_result.parent_ref_id,
        "created_at": stored_result.created_at,
    }


def build_result_rows(state: ExecutionState, changes: Changes) -> list[Row]:
    """Show the stored results that the taken changes brought."""
    return [build_result_row(state, stored_result) for stored_result in changes.results.values()]


def build_changed_rows(state: ExecutionState, changes: Changes) -> dict[str, list[Row]]:
    """Show what the taken changes touched, and the execution itself."""
    return {
        "execution": [build_execution_row(state)],
        "stage": _build_rows(state, changes.stages, build_stage_row),
        "frame": _build_rows(state, changes.frames, build_frame_row),
        "command": _build_rows(state, changes.commands, build_command_row),
        "loop": _build_rows(state, changes.loops, build_loop_row),
        "business_object": _build_rows(state, changes.objects, build_object_row),
    }


def select_checksum_columns(surface: str, row: Mapping[str, Any]) -> Row:
    """Return the columns of a row that checksums and parity cover."""
    outside = UNSUMMED_COLUMNS.get(surface, frozenset())
    return {column: value for column, value in row.items() if column not in outside}


def select_checksum_surfaces(
    surfaces: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> dict[str, dict[str, Row]]:
    """Return keyed rows, surface by surface, as checksums and parity cover them."""
    return {
        surface: {key: select_checksum_columns(surface, row) for key, row in keyed.items()}
        for surface, keyed in surfaces.items()
    }


def _build_rows(
    state: ExecutionState,
    touched: Mapping[Any, Any],
    show: Callable[[ExecutionState, Any], Row],
) -> list[Row]:
    return [show(state, thing) for thing in touched.values()]


KEY_BY_SURFACE = {
    "execution": "execution_id",
    "stage": "stage_id",
    "frame": "frame_id",
    "command": "command_id",
    "loop": "run_id",
    "business_object": "object_id",
}
