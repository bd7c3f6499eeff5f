"""Runs a frame that a slot has recorded, and keeps what it gives: in whichever process."""

from msgspec import structs

from noetl_worker.domain.frames import Frame, Ran
from noetl_worker.lanes.block import Block
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.once import run_once
from noetl_worker.lanes.unit import Surrounding


async def run_recorded(
    frame: Frame, *, block: Block, surrounding: Surrounding, hands: Hands, may_leave_rows: bool
) -> Ran:
    """Run a frame, then store its results and its larger writes; raises `ToolFailure`."""
    result = await run_once(
        frame,
        block=block,
        surrounding=surrounding,
        hands=hands,
        may_leave_rows=may_leave_rows,
    )
    loop = block.step.loop
    collects = loop is not None and loop.spec.collect != "none"
    envelope = await hands.keeper.keep_list(result.results) if collects else None
    patch = await hands.keeper.keep_patch(result.patch)
    return Ran(
        result=structs.replace(result, patch=patch, results=[], remaining=[]),
        rows_left=len(result.remaining),
        envelope=envelope,
    )
