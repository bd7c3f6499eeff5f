"""What tasks wrote while they ran: lines in chunks, each a named object that is written once.

A chunk is `logs/<execution>/<minute>/<second>-<step>-<command>.<attempt>.<writer>-<number>`, with
times in UTC and a digest of the step's name. Names sort by time, so a reader goes on after the
last name that it has seen, and a follower lists the latest minutes alone. The chunks of one writer
are a log: numbered from 1, each with the digest of the one before, so that a chunk that was
changed or taken away shows.
"""

import re
from datetime import UTC, datetime

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.ids import CommandId, ExecutionId, FrameId, WorkerId

# The first part of the names.
LOGS = "logs"
# Whose tasks run code that writes.
KINDS_WITH_LOG = frozenset({"container", "python", "shell", "spark"})
# What the stream of a line is called.
STDOUT, STDERR, LOGGING, NOTICE = "stdout", "stderr", "logging", "notice"
_MINUTE = "%Y%m%dT%H%M"
_SECOND = "%S%f"
_STEP_DIGITS = 12
_NAME = re.compile(
    r"logs/(?P<execution>[0-9]+)/(?P<minute>[0-9]{8}T[0-9]{4})/(?P<second>[0-9]{8})"
    r"-(?P<step>[0-9a-f]{12})-(?P<command>[0-9]+)\.(?P<attempt>[0-9]+)"
    r"\.(?P<writer>[0-9a-f]{8})-(?P<number>[0-9]+)"
)


class LogSource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What wrote lines: one try of a task, at one item, frame or row."""

    task: str
    unit: str
    task_attempt: int
    frame_id: FrameId | None = None
    row_index: int | None = None


class LogLine(Struct, frozen=True, array_like=True):
    """One line; `source` is its place in the chunk's sources, `at_us` microseconds since 1970.

    `level` is empty unless the line came through `logging`, or is a notice of the worker.
    """

    at_us: int
    source: int
    stream: str
    level: str
    text: str


class LogChunk(Struct, frozen=True, kw_only=True):
    """Lines of one attempt of a command, in order; `first` is the number of the first line.

    `writer` is a token: of an attempt whose frames run in several processes each has its log.
    """

    execution_id: ExecutionId
    command_id: CommandId
    attempt: int
    writer: str
    worker_id: WorkerId
    step: str
    number: int
    previous_sha256: str
    first: int
    sources: tuple[LogSource, ...]
    lines: tuple[LogLine, ...]


class LogChunkName(Struct, frozen=True, kw_only=True, order=True):
    """What the name of a chunk says."""

    name: str
    minute: datetime
    step_digest: str
    command_id: CommandId
    attempt: int
    writer: str
    number: int


def build_chunk_prefix(execution_id: ExecutionId, minute: datetime | None = None) -> str:
    """Return what the names of an execution's chunks begin with, or those of one minute."""
    if minute is None:
        return f"{LOGS}/{execution_id}/"
    return f"{LOGS}/{execution_id}/{minute.astimezone(UTC).strftime(_MINUTE)}/"


def build_chunk_name(chunk: LogChunk, written_at: datetime) -> str:
    """Name a chunk by when it was written, and by whose it is."""
    at = written_at.astimezone(UTC)
    return (
        f"{build_chunk_prefix(chunk.execution_id, at)}{at.strftime(_SECOND)}"
        f"-{digest_step_name(chunk.step)}"
        f"-{chunk.command_id}.{chunk.attempt}.{chunk.writer}-{chunk.number}"
    )


def parse_chunk_name(name: str) -> LogChunkName | None:
    """Read the name of a chunk; None for anything else."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return LogChunkName(
        name=name,
        minute=datetime.strptime(match["minute"], _MINUTE).replace(tzinfo=UTC),
        step_digest=match["step"],
        command_id=CommandId(match["command"]),
        attempt=int(match["attempt"]),
        writer=match["writer"],
        number=int(match["number"]),
    )


def digest_step_name(step: str) -> str:
    """Return what stands for a step in names."""
    return codec.digest_hex(step.encode())[:_STEP_DIGITS]
