"""What happens to a stage: a unit of orchestration."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.ids import RunId, StageId
from noetl_contracts.status import StageKind, StageStatus


class StageOpened(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="stage.opened",
):
    """Frames of this stage may now be claimed."""

    stage_id: StageId
    run_id: RunId
    step: str
    kind: StageKind
    slots: int
    frame_policy: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_stage_id: StageId | None = None


class StageClosed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="stage.closed",
):
    """All frames are terminal and no slot can find more."""

    stage_id: StageId
    run_id: RunId
    step: str
    status: StageStatus
    frames: int
    rows: int
    frames_failed: int = 0
