"""The work that a minted frame is: which items or parts, under which identity."""

from typing import Any

from noetl_contracts import ids
from noetl_contracts.commands import FrameWork, ReduceWork
from noetl_planner.domain import reducing, taken_items
from noetl_planner.domain.draft import Draft
from noetl_replay.state import FrameState, LoopState, RunState


def work(
    draft: Draft, run: RunState, live: LoopState, opened: FrameState, policy: dict[str, Any]
) -> FrameWork | ReduceWork:
    """Describe a frame to the worker that is to run it."""
    assert live.cut is not None, "only framed runs have minted frames"
    start = opened.start or 0
    if live.mode == "reduce":
        return ReduceWork(
            stage_id=opened.stage_id,
            frame_id=opened.frame_id,
            unit=opened.slot,
            level=opened.frame_index,
            attempt=opened.attempts,
            start=start,
            end=start + opened.row_count,
            parts_ref=opened.rows_ref,
            fanin=reducing.fanin_of(draft, run),
            frame=policy,
        )
    return FrameWork(
        stage_id=opened.stage_id,
        frame_id=opened.frame_id,
        root_frame_id=ids.frame_id(opened.stage_id, slot=opened.slot, frame_index=0),
        unit=opened.slot,
        frame_index=opened.frame_index,
        attempt=opened.attempts,
        start=start,
        end=start + opened.row_count,
        total=taken_items.count_items(draft.state, run, live.cut),
        form=live.collection_form,
        collection_ref=live.collection_ref,
        layout_ref=live.cut.layout_ref,
        is_shard=live.mode == "fanout" and live.cut.inside is None,
        done=live.success,
        failed=live.failed,
        frame=policy,
    )
