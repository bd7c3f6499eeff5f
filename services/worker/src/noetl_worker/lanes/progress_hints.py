"""Tells who follows an execution how far Spark is with one of its commands."""

from noetl_contracts import codec, subjects
from noetl_contracts.commands import Command
from noetl_contracts.step_progress import SparkProgress, StepProgress
from noetl_messaging.ports import Hints

# Tasks that may wait for Spark.
KINDS_ON_SPARK = frozenset({"spark", "transfer"})


async def tell_progress(hints: Hints, command: Command, spark: SparkProgress) -> None:
    """Send the progress of a command as a hint: what is lost is sent again a second later."""
    progress = StepProgress(
        step=command.step, command_id=command.command_id, attempt=command.attempt, spark=spark
    )
    await hints.say(subjects.progress(command.execution_id), codec.encode(progress))
