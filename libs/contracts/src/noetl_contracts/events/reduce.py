"""What happens to a reduce stage besides its frames."""

from msgspec import Struct

from noetl_contracts.ids import RunId, StageId
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.slicing import Cut


class ReduceLevelOpened(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="reduce.level_opened",
):
    """The parts of one level are complete; groups of them may run."""

    step: str
    run_id: RunId
    stage_id: StageId
    level: int
    max_in_flight: int
    cut: Cut
    parts_ref: PayloadRef
