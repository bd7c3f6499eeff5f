"""Runs a frame that a slot has recorded, and keeps what it gives: in whichever process."""

from msgspec import structs

from noetl_contracts.parking import Resume
from noetl_worker.domain.frames import Frame, FrameResult, Ran
from noetl_worker.lanes.block import Block
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.inside import run_inside
from noetl_worker.lanes.once import run_once
from noetl_worker.lanes.unit import Surrounding


async def run_recorded(
    frame: Frame,
    *,
    block: Block,
    surrounding: Surrounding,
    hands: Hands,
    may_leave_rows: bool,
    resume: Resume | None = None,
) -> Ran:
    """Run a frame, or those that it is cut into, then store what it gives.

    `resume` is how a wait of one of its rows ended. Raises `ToolFailure`, or `FrameParked` when a
    row waits.
    """
    if frame.policy.inside is not None:
        result, _ = await run_inside(frame, block=block, surrounding=surrounding, hands=hands)
    else:
        result = await run_once(
            frame,
            block=block,
            surrounding=surrounding,
            hands=hands,
            may_leave_rows=may_leave_rows,
            resume=resume,
        )
    return await _kept(result, block, hands)


async def run_nothing(block: Block, hands: Hands) -> Ran:
    """Give what a frame without rows gives."""
    result = FrameResult(
        rows_done=0,
        rows_failed=0,
        error=None,
        patch={},
        results=[],
        remaining=[],
        duration_s=0.0,
    )
    return await _kept(result, block, hands)


async def _kept(result: FrameResult, block: Block, hands: Hands) -> Ran:
    loop = block.step.loop
    collects = loop is not None and loop.spec.collect != "none"
    envelope = result.kept
    if envelope is None and collects:
        envelope = await hands.keeper.keep_list(result.results)
    patch = await hands.keeper.keep_patch(result.patch)
    return Ran(
        result=structs.replace(result, patch=patch, results=[], remaining=[], kept=None),
        rows_left=len(result.remaining),
        envelope=envelope,
    )
