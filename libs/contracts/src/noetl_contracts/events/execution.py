"""What happens to an execution as a whole."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CatalogId, ExecutionId
from noetl_contracts.parking import ParentLink
from noetl_contracts.payloads import PayloadRef, ResultEnvelope


class PlaybookInitialized(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="playbook.initialized",
):
    """The one root event: which playbook runs, with which inputs."""

    path: str
    catalog_id: CatalogId
    catalog_version: int
    playbook_digest: str
    entry_step: str
    workload: dict[str, Any]
    workload_ref: PayloadRef | None = None
    ctx: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_execution_id: ExecutionId | None = None
    requested_by: str | None = None
    parent: ParentLink | None = None


class PlaybookCompleted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="playbook.completed",
):
    """No step is live and no failure was left unhandled."""

    step: str | None = None
    result: ResultEnvelope | None = None


class PlaybookFailed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="playbook.failed",
):
    """A failure was left unhandled; `error` is the first one."""

    error: ErrorObject
    step: str | None = None


class CancelRequested(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.cancelling",
):
    """From here on nothing is dispatched; `is_alone` leaves the children as they are."""

    reason: str | None = None
    requested_by: str | None = None
    is_alone: bool = False


class ExecutionCancelled(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.cancelled",
):
    """In-flight work has stopped, or the grace period is over."""

    reason: str | None = None
