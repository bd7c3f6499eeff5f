"""What happens to a stream: chunks of rows that a task emits while it runs."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.chunks import Chunk
from noetl_contracts.ids import CommandId, RunId


class CallPartial(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="call.partial",
):
    """A task emitted a chunk, which activates each of `targets` once.

    `patch` is what the `set` of the chosen arcs wrote to `ctx`.
    """

    step: str
    run_id: RunId
    command_id: CommandId
    attempt: int
    chunk: Chunk
    targets: list[str] = msgspec.field(default_factory=list)
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
