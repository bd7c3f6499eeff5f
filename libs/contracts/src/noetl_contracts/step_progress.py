"""How far a running task is, told while it runs and kept nowhere.

A worker tells it at most once a second under a hint of the execution; who follows the execution
shows it. What is lost is told again a second later.
"""

from typing import Literal

from msgspec import Struct

from noetl_contracts.ids import CommandId

# A hint with more bytes is no progress.
BYTES_MAX = 4096
STAGES_MAX = 4

# `session`: Spark is being started; `queue`: other jobs of the worker come first; `job`: it runs.
SparkPhase = Literal["session", "queue", "job"]


class StageProgress(Struct, frozen=True, array_like=True):
    """One stage of Spark that runs: how many of its tasks have ended."""

    stage: int
    tasks_done: int
    tasks: int


class SparkProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Spark does for a task, and for how many seconds it has been in this phase.

    `jobs` have begun so far; the first few `stages` that run are told.
    """

    phase: SparkPhase
    seconds: float
    jobs: int = 0
    stages: tuple[StageProgress, ...] = ()


class StepProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of one command of a step."""

    step: str
    command_id: CommandId
    attempt: int
    spark: SparkProgress
