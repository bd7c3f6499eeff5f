"""Statuses of executions, stages, frames and commands, as they are stored."""

from enum import StrEnum


class ExecutionStatus(StrEnum):
    """Life of an execution."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class RunStatus(StrEnum):
    """Life of one activation of a step."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


class CommandStatus(StrEnum):
    """Life of a command."""

    ISSUED = "ISSUED"
    RUNNING = "RUNNING"
    PARKED = "PARKED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StageStatus(StrEnum):
    """Life of a stage."""

    OPEN = "OPEN"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class FrameStatus(StrEnum):
    """Life of a frame."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"
    CANCELLED = "CANCELLED"


class StageKind(StrEnum):
    """What a stage orchestrates."""

    LOOP = "loop"
    FANOUT = "fanout"
    REDUCE = "reduce"


TERMINAL_EXECUTION = frozenset(
    {ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED}
)
