"""Third witness: the event log of the engine."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import asyncpg

from noetl_pft.verify.checks import WitnessError
from noetl_pft.workload import queries

_STATEMENTS = queries.load_statements("events")
_PREFETCH = 5000

# The one place that knows how the event log spells what happens.
STARTED = "playbook.initialized"
COMPLETED = "playbook.completed"
TERMINAL = (COMPLETED, "playbook.failed", "execution.cancelled")
STEP_ENTER = "step.enter"
LOOP_DONE = "loop.done"
STAGE_OPENED = "stage.opened"
STAGE_CLOSED = "stage.closed"
FRAME_DISPATCHED = "frame.dispatched"
FRAME_COMMITTED = "frame.committed"
FRAME_FAILED = "frame.failed"
FRAME_ABANDONED = "frame.abandoned"
FRAME_REJECTED = "frame.commit_rejected"
COMMANDS = "command."
TRANSITIONS = frozenset(
    {
        *TERMINAL,
        *("step.enter", "step.exit", "call.done", "call.error", "ctx.patched"),
        *("loop.started", "loop.done", "loop.failed", "stage.opened", "stage.closed"),
        *("frame.dispatched", "frame.started", "frame.committed", "frame.failed"),
        *("frame.abandoned", "command.issued"),
    }
)


class Event(NamedTuple):
    """One event, as far as the verifier looks at it."""

    version: int
    kind: str
    step: str | None
    stage: str | None
    frame: str | None
    rows: int | None
    parent: str | None
    result_bytes: int


@dataclass(slots=True)
class FrameHistory:
    """What the events say about one frame."""

    stage: str | None = None
    step: str | None = None
    parent: str | None = None
    counts: Counter[str] = field(default_factory=Counter)
    claimed_rows: int | None = None
    committed_rows: int = 0
    terminal_version: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether the frame was ever opened with work in it."""
        return self.counts[FRAME_DISPATCHED] > 0 and self.claimed_rows != 0

    @property
    def repeat_count(self) -> int:
        """How often its work may have been done once more."""
        return max(self.counts[FRAME_DISPATCHED] - 1, 0) + self.counts[FRAME_REJECTED]


@dataclass(slots=True)
class EventLog:
    """The events of one execution, and its frames."""

    events: list[Event]
    frames: dict[str, FrameHistory]

    def get_root_frame(self, frame: str) -> str:
        """Return the first frame of a chain of continuations."""
        frames = {frame}
        while (entry := self.frames.get(frame)) and entry.parent and entry.parent not in frames:
            frame = entry.parent
            frames.add(frame)
        return frame

    def count_repeats_by_root(self) -> dict[str, int]:
        """Return how often the work of each chain may have been repeated."""
        repeats: dict[str, int] = defaultdict(int)
        for name, frame in self.frames.items():
            repeats[self.get_root_frame(name)] += frame.repeat_count
        return repeats


async def read_events(dsn: str, execution: str) -> EventLog:
    """Read all events of an execution in order, counting beside the stream."""
    if not execution.isdigit():
        raise WitnessError(f"an execution id is a decimal number, not {execution!r}")
    try:
        db = await asyncpg.connect(dsn, timeout=20)
    except (OSError, asyncpg.PostgresError) as problem:
        raise WitnessError(f"the event log cannot be read: {problem}") from problem
    try:
        async with db.transaction(isolation="repeatable_read", readonly=True):
            cursor = db.cursor(_STATEMENTS["events"], int(execution), prefetch=_PREFETCH)
            events = [_build_event(row) async for row in cursor]
            counted = await db.fetchval(_STATEMENTS["event_count"], int(execution))
    except asyncpg.PostgresError as problem:
        raise WitnessError(f"the event log cannot be read: {problem}") from problem
    finally:
        await db.close()
    if not events:
        raise WitnessError(f"the event log knows no execution {execution}")
    if len(events) != counted:
        raise WitnessError(f"{len(events)} events were read, {counted} are there")
    return EventLog(events, _collect_frames(events))


def _build_event(row: asyncpg.Record) -> Event:
    rows = row["row_count"]
    return Event(
        row["stream_version"],
        row["event_type"],
        row["node_name"],
        row["stage_id"],
        row["frame_id"],
        None if rows is None else int(rows),
        row["parent_frame_id"],
        row["result_bytes"],
    )


def _collect_frames(events: list[Event]) -> dict[str, FrameHistory]:
    frames: dict[str, FrameHistory] = defaultdict(FrameHistory)
    for event in events:
        if event.frame is None:
            continue
        frame = frames[event.frame]
        frame.counts[event.kind] += 1
        frame.stage = frame.stage or event.stage
        frame.step = frame.step or event.step
        match event.kind:
            case "frame.dispatched":
                frame.parent = frame.parent or event.parent
                frame.claimed_rows = event.rows if event.rows is not None else frame.claimed_rows
            case "frame.committed":
                frame.committed_rows += event.rows or 0
                frame.terminal_version = event.version
            case "frame.failed":
                frame.terminal_version = event.version
    return dict(frames)
