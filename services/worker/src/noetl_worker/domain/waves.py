"""Waves: the frames that one Spark job runs, and the manifests that its executors write of them."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CommandId, FrameId, OrganizationId, TenantId, WorkerId
from noetl_contracts.requests.facts import CommandFailed, Fact, FrameClosed
from noetl_worker.domain.frames import Frame, FrameOutcome

# Frames of the first wave; later waves grow or shrink by how long the one before took.
SIZE_FIRST = 16
# A shorter wave wastes the start of its job, and a longer one loses much work in a failure.
_SHORT_S = 4.0
_LONG_S = 30.0


class WaveFrame(Struct, frozen=True, kw_only=True):
    """One frame's command; `place` is the frame's index in the wave.

    A slot's command runs many frames: then `frame` is the frame to run, without its rows, which
    are in its record. With `may_leave_rows` the frame may end before all its rows have started.
    """

    place: int
    command: Command
    frame: Frame | None = None
    may_leave_rows: bool = False


class WavePartition(Struct, frozen=True, kw_only=True):
    """The frames of one partition of a wave; its manifests are stored under the wave's `name`."""

    name: str
    part: int
    tenant_id: TenantId
    organization_id: OrganizationId
    worker_id: WorkerId
    frames: list[WaveFrame]


class FrameManifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An executor's report of a frame that ended: where its result is, and the fact to publish.

    A slot publishes the facts of its frames itself: for its frames `ran` or `error` is set.

    `sha256` and `row_count` are the stored result's, `schema_digest` that of its columns' names.
    """

    place: int
    command_id: CommandId
    attempt: int
    fact: Fact | None = None
    ran: FrameOutcome | None = None
    frame_id: FrameId | None = None
    sha256: str | None = None
    row_count: int | None = None
    schema_digest: str | None = None
    error: ErrorObject | None = None


def build_manifest(wave_frame: WaveFrame, fact: Fact) -> FrameManifest:
    """Build the manifest of a frame from the fact that ends it."""
    command = wave_frame.command
    envelope = fact.result if isinstance(fact, FrameClosed) else None
    reference = envelope.reference if envelope is not None else None
    columns = envelope.context.get("columns") if envelope is not None else None
    return FrameManifest(
        place=wave_frame.place,
        command_id=command.command_id,
        attempt=command.attempt,
        fact=fact,
        frame_id=fact.frame_id if isinstance(fact, FrameClosed) else None,
        sha256=reference.sha256 if reference is not None else None,
        row_count=fact.row_count if isinstance(fact, FrameClosed) else None,
        schema_digest=_digest_columns(columns),
        error=fact.error if isinstance(fact, FrameClosed | CommandFailed) else None,
    )


def build_slot_manifest(
    wave_frame: WaveFrame, frame: Frame, outcome: FrameOutcome | ErrorObject
) -> FrameManifest:
    """Build the manifest of a slot's frame from its outcome or error."""
    end = outcome if isinstance(outcome, FrameOutcome) else None
    reference = end.envelope.reference if end is not None and end.envelope is not None else None
    return FrameManifest(
        place=wave_frame.place,
        command_id=wave_frame.command.command_id,
        attempt=wave_frame.command.attempt,
        ran=end,
        frame_id=frame.frame_id,
        sha256=reference.sha256 if reference is not None else None,
        row_count=end.result.rows_done + end.result.rows_failed if end is not None else None,
        error=outcome if isinstance(outcome, ErrorObject) else None,
    )


def _digest_columns(columns: Any) -> str | None:
    return None if columns is None else codec.digest_hex(codec.encode_canonical(columns))


def build_bundle_name(wave: str, part: int, number: int) -> str:
    """Build the name of a bundle: manifests of some frames of a partition."""
    return f"{wave}/part-{part}.{number}"


def is_bundle_name(name: str, part: int | None) -> bool:
    """Return whether an object is a bundle of a partition, or of any with None."""
    head, dot, _ = name.rpartition("/")[2].partition(".")
    return bool(dot) and (part is None or head == f"part-{part}")


def build_claim_name(wave: str, part: int) -> str:
    """Build the name of the object by which one Spark task claims a partition of a wave."""
    return f"{wave}/part-{part}"


def deal_frames(frames: list[WaveFrame], parts: int) -> list[list[WaveFrame]]:
    """Spread frames evenly over at most `parts` partitions, none of them empty."""
    count = min(max(1, parts), len(frames))
    return [frames[part::count] for part in range(count)]


def compute_next_size(size: int, *, frames: int, took_s: float, frames_max: int) -> int:
    """Return how many frames the next wave may take, given how long this one took."""
    if took_s < _SHORT_S and frames >= size:
        return min(size * 2, frames_max)
    if took_s > _LONG_S:
        return max(1, size // 2)
    return size
