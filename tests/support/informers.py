"""Every fact that somebody could tell a planner about an execution as it stands."""

from collections.abc import Iterator
from typing import Any

from noetl_contracts.commands.waits import ChildWait, MessageWait
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import ExecutionId, StageId, WorkerId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import Fact
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_replay.state import CommandState, ExecutionState

WORKER = WorkerId("w-1")
REF = PayloadRef(
    uri="noetl://tenant/default/org/default/payloads/sha256/" + "0" * 64,
    sha256="0" * 64,
    media_type="application/json",
    payload_bytes=2,
    row_count=1,
)
ERROR = ErrorObject(kind="timeout", code="TIMEOUT", message="too late", retryable=True)
RESULT = ResultEnvelope(
    status="ok",
    context=result_envelope.build_inline_context(
        PipelineResult(tasks={"t": TaskResult(kind="python", raw={"n": 1})}, last="t")
    ),
)


def all_facts(state: ExecutionState) -> list[Fact]:
    """List what could be said of the execution, its runs, commands, stages and frames."""
    found: list[Fact] = [
        facts.CancelRequested(reason="enough"),
        facts.PauseRequested(request_id="p-1"),
        facts.ResumeRequested(request_id="r-1"),
        facts.CtxWriteRequested(request_id="c-1", patch={"k": 1}, removed=["l"]),
        facts.TimerDue(reason=facts.STALLED),
        facts.ExecutionRequested(path="t"),
    ]
    for run in state.runs.values():
        found.append(facts.ItemsCollected(run_id=run.run_id, result=RESULT))
        found.append(facts.PartsCollected(run_id=run.run_id, level=0, parts_ref=REF, parts=1))
    for command in state.commands.values():
        found += _of_command(command)
        found += _of_frames(state, command)
    return found


def _of_command(command_state: CommandState) -> Iterator[Fact]:
    about: dict[str, Any] = {
        "command_id": command_state.command_id,
        "attempt": command_state.attempt,
    }
    mine: dict[str, Any] = {**about, "worker_id": WORKER}
    yield facts.CommandStarted(**mine, locality={"zone": "z", "node": "n"}, max_distance="zone")
    yield facts.CommandHeartbeat(**mine, running=1, capacity=2)
    yield facts.CommandCompleted(**mine, result=RESULT, patch={"k": 1}, metrics={"rows": 1})
    yield facts.CommandFailed(**mine, error=ERROR, patch={"k": 1})
    yield facts.CommandLost(**about, reason="lease_expired")
    yield facts.CommandStopped(**mine)
    yield facts.ChunkEmitted(**mine, index=0, row_count=1, ref=REF, has_more=True)
    for wait in (
        ChildWait(key="1/a", task="t", path="t", timeout_s=60),
        MessageWait(key="1/a", task="t", mode="signal", address="signal/k", timeout_s=60),
    ):
        yield facts.CommandParked(**mine, resume_ref=REF, wait=wait)
        yield facts.CommandParked(**mine, resume_ref=REF, wait=wait, item_index=1)
    for index in (0, 1, 9):
        yield facts.CommandCompleted(**mine, result=RESULT, patch={"k": 1}, item_index=index)
        yield facts.CommandFailed(**mine, error=ERROR, item_index=index)
    yield facts.ItemsReturned(**mine, items=[2, 1, 2, 9])
    yield facts.MessageArrived(command_id=command_state.command_id, key="1/a", result=RESULT)
    yield facts.ChildEnded(
        command_id=command_state.command_id,
        key="1/a",
        child_execution_id=ExecutionId("77"),
        status="COMPLETED",
        result=RESULT,
    )


def _of_frames(state: ExecutionState, command_state: CommandState) -> Iterator[Fact]:
    known = None if command_state.frame_id is None else state.frames.get(command_state.frame_id)
    stages = [known.stage_id] if known is not None else list(state.stages)
    about: dict[str, Any] = {
        "command_id": command_state.command_id,
        "attempt": command_state.attempt,
        "worker_id": WORKER,
    }
    for stage in stages or [StageId("5")]:
        slot, index, frame = command_state.slot or 0, 0, "6"
        if known is not None:
            slot, index, frame = known.slot, known.frame_index, known.frame_id
        at = {"stage_id": stage, "frame_id": frame, "slot": slot, "frame_index": index}
        yield facts.FrameOpened(**about, **at, row_count=2, rows_ref=REF)
        yield facts.FrameClosed(**about, **at, row_count=2, result=RESULT, metrics={"n": 1})
        yield facts.FrameClosed(**about, **at, row_count=2, rows_failed=1, error=ERROR, rows_left=1)
    yield facts.SlotDry(**about, frames=0, next_index=0)
