"""A stored result and the one that led to it."""

from datetime import datetime

from msgspec import Struct

from noetl_contracts.ids import EventId, RunId
from noetl_contracts.payloads import PayloadRef


class KeptResult(Struct, frozen=True, kw_only=True):
    """A run's stored result; `ref_id` is the event that carries it, and identifies it.

    `parent_ref_id` is the nearest stored result that led to the run.
    """

    ref_id: EventId
    run_id: RunId
    step: str
    is_error: bool
    entered_version: int
    reference: PayloadRef
    parent_ref_id: EventId | None
    created_at: datetime
