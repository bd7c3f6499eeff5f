"""Commands as messages: the work of a minted frame, its items or parts, and its identity."""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import (
    COMMAND_BYTES_MAX,
    BatchWork,
    ChunkWork,
    Command,
    FrameWork,
    ItemWork,
    OpenFrame,
    ReduceWork,
    SlotWork,
    StateSlice,
    StepResult,
    StepWork,
    Work,
)
from noetl_contracts.status import RunStatus
from noetl_planner.domain.decision import limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.loops import reduce_stages, reruns
from noetl_playbook.model.playbook import ExecSpec
from noetl_replay.state import (
    CommandState,
    ExecutionState,
    FrameState,
    LoopState,
    RunState,
    StepState,
)

# Names that reach every step's result at once.
_ALL_STEPS = frozenset({"steps", "context"})
PARTS_BYTES_MAX = COMMAND_BYTES_MAX // 4


def build_frame_work(
    draft: DecisionDraft,
    run: RunState,
    loop_state: LoopState,
    opened: FrameState,
    policy: dict[str, Any],
) -> FrameWork | ReduceWork:
    """Describe a frame to the worker that is to run it."""
    assert loop_state.cut is not None, "only framed runs have minted frames"
    start = opened.start or 0
    if loop_state.mode == "reduce":
        return ReduceWork(
            stage_id=opened.stage_id,
            frame_id=opened.frame_id,
            unit=opened.slot,
            level=opened.frame_index,
            attempt=opened.attempts,
            start=start,
            end=start + opened.row_count,
            parts_ref=opened.rows_ref,
            fanin=reduce_stages.sum_source_fanins(draft, run),
            frame=policy,
        )
    return FrameWork(
        stage_id=opened.stage_id,
        frame_id=opened.frame_id,
        root_frame_id=ids.derive_frame_id(opened.stage_id, slot=opened.slot, frame_index=0),
        unit=opened.slot,
        frame_index=opened.frame_index,
        attempt=opened.attempts,
        start=start,
        end=start + opened.row_count,
        total=reruns.count_all_items(draft.state, run, loop_state.cut),
        form=loop_state.collection_form,
        collection_ref=loop_state.collection_ref,
        layout_ref=loop_state.cut.layout_ref,
        is_shard=loop_state.mode == "fanout" and loop_state.cut.inside is None,
        done=loop_state.success,
        failed=loop_state.failed,
        frame=policy,
    )


def build_command(draft: DecisionDraft, command_state: CommandState) -> Command:
    """Build the command; parts too large for a message become payloads of the draft."""
    state, run = draft.state, draft.state.runs[command_state.run_id]
    definition = draft.program.get_step_definition(command_state.step)
    is_large = draft.program.get_definition_bytes(command_state.step) > PARTS_BYTES_MAX
    policy = _get_frame_policy(state, run)
    lease_s = float(policy.get("lease_seconds", draft.limits.command_lease_s))
    return Command(
        command_id=command_state.command_id,
        execution_id=state.execution_id,
        tenant_id=state.tenant_id,
        organization_id=state.organization_id,
        run_id=command_state.run_id,
        activation=run.activation,
        step=command_state.step,
        attempt=command_state.attempt,
        pool=command_state.pool,
        lane=command_state.lane,
        lease_s=lease_s,
        heartbeat_s=min(
            float(policy.get("heartbeat_seconds", draft.limits.command_heartbeat_s)), lease_s / 3
        ),
        definition=None if is_large else definition,
        definition_ref=draft.store_value(definition) if is_large else None,
        work=_build_work(draft, run, command_state, policy),
        slice=_build_slice(draft, run),
        defaults=_collect_defaults(draft.program.playbook.executor.spec),
        limits=limits.select_worker_limits(draft.program.playbook.executor.spec.policy.limits),
        keychain=draft.program.list_keychain_entries(
            command_state.step, is_first=run.activation == 1
        ),
        catalog_id=state.catalog_id,
        parent_execution_id=state.parent_execution_id,
        resume=command_state.resume,
        file_sources=state.source.files if state.source is not None else [],
        file_entries=state.file_entries,
        path=state.path,
        traceparent=draft.traceparent,
    )


def _collect_defaults(spec: ExecSpec) -> dict[str, Any]:
    """Say what holds for every step that says nothing itself."""
    defaults: dict[str, Any] = codec.to_builtins(spec.policy.defaults)
    if spec.policy.results.inline_max_bytes is not None:
        defaults["inline_max_bytes"] = spec.policy.results.inline_max_bytes
    if spec.undefined is not None:
        defaults["undefined"] = spec.undefined
    return defaults


def _get_frame_policy(state: ExecutionState, run: RunState) -> dict[str, Any]:
    if run.loop is None or run.loop.stage_id is None:
        return {}
    return state.stages[run.loop.stage_id].frame_policy


def _build_work(
    draft: DecisionDraft, run: RunState, command_state: CommandState, policy: dict[str, Any]
) -> Work:
    if run.feed is not None and command_state.item_index is not None:
        return ChunkWork(
            index=command_state.item_index, chunk=run.feed.open[command_state.item_index]
        )
    if command_state.batch is not UNSET and run.loop is not None:
        return _build_batch_work(run.loop, command_state.batch)
    if command_state.item_index is not None and run.loop is not None:
        inline = run.loop.collection
        return ItemWork(
            index=command_state.item_index,
            total=run.loop.total,
            item=inline[command_state.item_index] if inline is not None else None,
            collection_ref=run.loop.collection_ref,
            form=run.loop.collection_form,
            done=run.loop.success,
            failed=run.loop.failed,
        )
    if command_state.frame_id is not None and run.loop is not None:
        return build_frame_work(
            draft, run, run.loop, draft.state.frames[command_state.frame_id], policy
        )
    if (
        command_state.slot is not None
        and run.loop is not None
        and command_state.stage_id is not None
    ):
        slot = run.loop.slots[command_state.slot]
        return SlotWork(
            stage_id=command_state.stage_id,
            slot=slot.slot,
            next_index=slot.next_index,
            open_frame=_build_open_frame(draft.state, slot.open_frame_id),
            frame=policy,
            rows_left=slot.rows_left,
        )
    return StepWork(chunks=run.stream.received if run.stream is not None else 0)


def _build_batch_work(loop: LoopState, indexes: list[int]) -> BatchWork:
    inline = loop.collection
    return BatchWork(
        indexes=list(indexes),
        total=loop.total,
        items=[] if inline is None else [inline[index] for index in indexes],
        collection_ref=loop.collection_ref,
        form=loop.collection_form,
        done=loop.success,
        failed=loop.failed,
    )


def _build_open_frame(state: ExecutionState, frame_id: Any) -> OpenFrame | None:
    """Return the frame that an earlier attempt began, for the worker that takes it over."""
    opened = state.frames.get(frame_id)
    if opened is None:
        return None
    return OpenFrame(
        frame_id=opened.frame_id,
        frame_index=opened.frame_index,
        rows_ref=opened.rows_ref,
        row_count=opened.row_count,
        dispatches=opened.attempts,
        parent_frame_id=opened.parent_frame_id,
    )


def _list_readable_steps(draft: DecisionDraft, run: RunState) -> Iterable[tuple[str, StepState]]:
    """Return the steps that a run may read; no others are looked at, however many there are."""
    steps = draft.state.steps
    mentioned = draft.program.get_readable_names(run.step)
    if mentioned & _ALL_STEPS:
        return steps.items()
    names = mentioned if run.came_from is None else mentioned | {run.came_from}
    return [(name, steps[name]) for name in sorted(names) if name in steps]


def _build_slice(draft: DecisionDraft, run: RunState) -> StateSlice:
    state = draft.state
    steps = {
        name: StepResult(
            status="error" if step.status is RunStatus.FAILED else "ok",
            result=step.result,
            error=codec.to_builtins(step.error) if step.error is not None else None,
        )
        for name, step in _list_readable_steps(draft, run)
        if step.result is not None or step.error is not None
    }
    # A large workload was stored when the execution began: no command costs its size again.
    stored = state.workload_ref
    if stored is None and len(codec.encode_json(state.workload)) > PARTS_BYTES_MAX:
        stored = draft.store_value(state.workload)
    is_much = len(codec.encode_json(state.ctx)) > PARTS_BYTES_MAX
    return StateSlice(
        workload=state.workload if stored is None else {},
        workload_ref=stored,
        ctx={} if is_much else state.ctx,
        ctx_ref=draft.store_value(state.ctx) if is_much else None,
        steps=steps,
        came_from=run.came_from,
        increment=None if run.increment is UNSET else run.increment,
    )
