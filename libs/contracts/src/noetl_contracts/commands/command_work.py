"""Commands and the work that they carry: steps, items, chunks, slots, frames and reduces."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.commands.state_values import Increment
from noetl_contracts.commands.waits import Resume
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.execution_files import FileSource
from noetl_contracts.ids import (
    CommandId,
    ExecutionId,
    FrameId,
    OrganizationId,
    RunId,
    StageId,
    TenantId,
)
from noetl_contracts.payloads import PayloadRef, ResultEnvelope

CHUNKS_MAX = 100_000
CHUNK_BYTES_MAX = 16 * 1024 * 1024
COMMAND_BYTES_MAX = 256 * 1024
DEFAULT_POOL = "default"
IO_LANE = "io"
SPARK_LANE = "spark"


class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One chunk; its rows are the JSON list in the payload `ref`, and its run and `index` name it.

    `has_more` tells whether rows followed when it was emitted.
    """

    index: int
    row_count: int
    ref: PayloadRef
    has_more: bool = False


class StreamProgress(Struct, frozen=True, kw_only=True):
    """How far the planner is with a stream: chunks `received`, and of these `accepted`.

    A chunk is accepted when every activation that it leads to has been dispatched.
    """

    received: int
    accepted: int

    def encode_token(self) -> str:
        """Write it as the last token of a hint's subject."""
        return f"{self.received}-{self.accepted}"


def parse_stream_progress(token: str) -> StreamProgress | None:
    """Read the last token of a hint's subject; None for what is none."""
    received, _, accepted = token.partition("-")
    if not (received.isdigit() and accepted.isdigit()):
        return None
    return StreamProgress(received=int(received), accepted=int(accepted))


class StepResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a template may read of a step: its envelope's status, result and error."""

    status: str
    result: ResultEnvelope | None = None
    error: dict[str, Any] | None = None


class StateSlice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The minimal part of the execution's state that a command's templates name."""

    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    workload_ref: PayloadRef | None = None
    ctx: dict[str, Any] = msgspec.field(default_factory=dict)
    ctx_ref: PayloadRef | None = None
    steps: dict[str, StepResult] = msgspec.field(default_factory=dict)
    came_from: str | None = None
    increment: Increment | None = None


class OpenFrame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame that an earlier attempt left open: its rows are replayed, never claimed anew."""

    frame_id: FrameId
    frame_index: int
    rows_ref: PayloadRef
    row_count: int
    dispatches: int
    parent_frame_id: FrameId | None = None


class StepWork(Struct, frozen=True, kw_only=True, tag_field="work", tag="step"):
    """Run the step's pipeline once; of its stream, `chunks` have arrived from earlier attempts."""

    chunks: int = 0


class ChunkWork(Struct, frozen=True, kw_only=True, tag_field="work", tag="chunk"):
    """Run the pipeline for one chunk of another step's stream; `index` counts the activations."""

    index: int
    chunk: Chunk


class ItemWork(Struct, frozen=True, kw_only=True, tag_field="work", tag="item"):
    """Run the pipeline for one item of a collection; the item is inline or in the collection."""

    index: int
    total: int
    item: Any = None
    collection_ref: PayloadRef | None = None
    form: CollectionForm = CollectionForm.LIST
    done: int = 0
    failed: int = 0


class BatchWork(Struct, frozen=True, kw_only=True, tag_field="work", tag="batch"):
    """Run the pipeline for each of several items, one after another, and report each.

    `indexes` are the places of the items in the collection, in ascending order; `items` are they
    themselves where the collection is inline.
    """

    indexes: list[int]
    total: int
    items: list[Any] = msgspec.field(default_factory=list)
    collection_ref: PayloadRef | None = None
    form: CollectionForm = CollectionForm.LIST
    done: int = 0
    failed: int = 0


class SlotWork(Struct, frozen=True, kw_only=True, tag_field="work", tag="slot"):
    """Claim and run frames until a claim finds nothing.

    `rows_left` by the frame before `next_index` are to be continued with; None: nobody says.
    """

    stage_id: StageId
    slot: int
    next_index: int = 0
    open_frame: OpenFrame | None = None
    frame: dict[str, Any] = msgspec.field(default_factory=dict)
    rows_left: int | None = None


class FrameWork(Struct, frozen=True, kw_only=True, tag_field="work", tag="frame"):
    """Run one frame over the items from `start` up to `end` of a collection.

    `attempt` counts the frame's dispatches; `base_index` is where the unit that it belongs to
    begins. With a layout the items' own places in the source are listed there.
    """

    stage_id: StageId
    frame_id: FrameId
    root_frame_id: FrameId
    unit: int
    frame_index: int
    attempt: int
    start: int
    end: int
    total: int
    form: CollectionForm = CollectionForm.LIST
    collection_ref: PayloadRef | None = None
    layout_ref: PayloadRef | None = None
    is_shard: bool = False
    done: int = 0
    failed: int = 0
    frame: dict[str, Any] = msgspec.field(default_factory=dict)


class ReduceWork(Struct, frozen=True, kw_only=True, tag_field="work", tag="reduce"):
    """Run the body once over the parts from `start` up to `end` of a level."""

    stage_id: StageId
    frame_id: FrameId
    unit: int
    level: int
    attempt: int
    start: int
    end: int
    parts_ref: PayloadRef
    fanin: dict[str, Any] = msgspec.field(default_factory=dict)
    frame: dict[str, Any] = msgspec.field(default_factory=dict)


Work = StepWork | ItemWork | BatchWork | SlotWork | FrameWork | ReduceWork | ChunkWork


class Command(Struct, frozen=True, kw_only=True):
    """One unit of work for one worker.

    `definition` is the canonical step as `noetl_playbook.model.playbook.Step`; `attempt` is the
    fence that every fact about the command repeats; `lease_s` is how long the worker may hold it
    unheard; `limits` are the playbook's own bounds on a pipeline, by the names of the language;
    `keychain` holds the definitions of the playbook's entries, templates and all, never a value.
    With `resume` the pipeline goes on where an earlier attempt parked it. `file_sources` name the
    executions whose files a rerun takes over; `file_entries` is how long the journal of the
    execution's own files is known to be. `path` is the playbook's: some credentials are for some
    playbooks alone.
    """

    command_id: CommandId
    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    run_id: RunId
    activation: int
    step: str
    attempt: int
    pool: str
    lane: str
    lease_s: float
    heartbeat_s: float
    definition: dict[str, Any] | None
    work: Work
    definition_ref: PayloadRef | None = None
    slice: StateSlice = msgspec.field(default_factory=StateSlice)
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    keychain: list[dict[str, Any]] = msgspec.field(default_factory=list)
    catalog_id: str | None = None
    parent_execution_id: ExecutionId | None = None
    resume: Resume | None = None
    traceparent: str | None = None
    file_sources: list[FileSource] = msgspec.field(default_factory=list)
    file_entries: int = 0
    path: str = ""


def decode_command(data: bytes) -> Command:
    """Decode a message of `NOETL_COMMANDS`; raises `MalformedMessage`."""
    try:
        return codec.decode_as(data, Command)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(f"a command does not fit its schema: {failure}") from failure
