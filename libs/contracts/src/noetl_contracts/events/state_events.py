"""What happens to `state`: how far a playbook has read its sources."""

from msgspec import Struct

from noetl_contracts.commands.state_values import Increment, StateValue
from noetl_contracts.ids import CommandId, RunId


class StateRead(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="state.read"
):
    """A step begins with this range of its source; a replay has it from here alone."""

    step: str
    run_id: RunId
    increment: Increment


class StateChanged(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="state.changed",
):
    """A step succeeded and moved the value on; `revision` follows the one that the step read."""

    step: str
    run_id: RunId
    command_id: CommandId
    name: str
    value: StateValue
    revision: int
    previous: StateValue | None = None
    rows: int = 0
