"""What people and playbooks ask of a running execution, and what a step says besides its result."""

from msgspec import Struct

from noetl_contracts.ids import RunId

CUSTOM = "custom"


class ExecutionPaused(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.paused",
):
    """From here on nothing is dispatched; what runs may finish, and bounds in time go on."""

    request_id: str
    reason: str | None = None
    requested_by: str | None = None


class ExecutionResumed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.resumed",
):
    """The execution goes on exactly where it was held."""

    request_id: str
    requested_by: str | None = None


class CustomEvent(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag=CUSTOM
):
    """A step's end, announced under a name of the playbook's own: its type is `custom.<name>`."""

    name: str
    step: str
    run_id: RunId
    status: str
