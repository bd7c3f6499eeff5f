"""What the tasks of a live run did, added up over its commands and frames."""

from noetl_contracts.ids import RunId
from noetl_contracts.task_metrics import MetricsByTask, add_tasks
from noetl_replay.state import ExecutionState


def add_to_run(state: ExecutionState, run_id: RunId, tasks: MetricsByTask) -> None:
    """Add what a command or a frame says that it did."""
    run = state.runs.get(run_id)
    if tasks and run is not None:
        run.tasks = add_tasks(run.tasks, tasks)
