"""The `incremental` block of a step: which state it goes on from, and what it does not go with."""

from typing import Any

from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import StateType, StateValueError
from noetl_playbook.model import coercion, datasets
from noetl_playbook.model.playbook import Incremental, Playbook, Step, Task
from noetl_playbook.source.document_reader import DocumentReader, describe_value, list_step_paths
from noetl_playbook.source.problems import Path

STATE_PREFIX = "state."
# Kinds whose rows the worker can look through for the greatest cursor.
READING_KINDS = ("postgres", "duckdb", "http", "transfer", "spark", "python")
_TRANSFER = "transfer"


def get_state_name(incremental: Incremental) -> str:
    """Return the name of the state, which the document spells `state.name`."""
    return incremental.from_.removeprefix(STATE_PREFIX)


def find_reading_task(tasks: tuple[Task, ...], task_name: str | None) -> Task | None:
    """Return the task whose rows say how far the step has read.

    It is the one that is named, else the transfer, which says what it has written, else the first.
    """
    if task_name is not None:
        return next((task for task in tasks if task.name == task_name), None)
    transfers = [task for task in tasks if task.kind == _TRANSFER]
    return transfers[-1] if transfers else next(iter(tasks), None)


def check_increments(reading: DocumentReader, playbook: Playbook) -> None:
    """Report increments that cannot be read."""
    for path, step in list_step_paths(reading, playbook):
        if step.incremental is not None:
            _check_increment(reading, step, step.incremental, (*path, "incremental"))


def _check_increment(
    reading: DocumentReader, step: Step, incremental: Incremental, path: Path
) -> None:
    name = get_state_name(incremental)
    if not incremental.from_.startswith(STATE_PREFIX) or not state_values.is_state_name(name):
        reading.report_problem(
            "E104",
            (*path, "from"),
            f"{describe_value(incremental.from_)} names no state",
            hint="write state. and a name of letters, digits and '_', as state.orders",
        )
    if not incremental.cursor:
        reading.report_problem("E104", (*path, "cursor"), "the cursor is the name of a column")
    for key, is_there in (("loop", step.loop), ("reduce", step.reduce)):
        if is_there is not None:
            reading.report_problem(
                "E104", path, f"incremental does not go with {key}", of_key=True,
                hint="read the increment in a step of its own",
            )  # fmt: skip
    if any(task.stream is not None for task in step.tool):
        reading.report_problem(
            "E104", path, "incremental does not go with a task that streams", of_key=True
        )
    _check_initial(reading, incremental, path)
    _check_task(reading, step, incremental, path)


def _check_initial(reading: DocumentReader, incremental: Incremental, path: Path) -> None:
    """Check the value that stands for a state, and the lag that is taken from it."""
    value: Any = incremental.initial
    if coercion.is_template(value):
        return
    type_ = (
        state_values.guess_state_type(value)
        if incremental.type is None
        else StateType(incremental.type)
    )
    inner_path = (*path, "initial")
    try:
        initial = state_values.parse_state_value(value, type_)
        inner_path = (*path, "lag")
        written_lag = reading.find_written(inner_path)
        is_open = coercion.is_template(written_lag)
        if (
            type_ is StateType.INTEGER
            and not is_open
            and coercion.coerce_number(written_lag or 0) is None
        ):
            reading.report_problem(
                "E104",
                inner_path,
                f"lag is {describe_value(written_lag)}: of integers it is a whole number",
            )
        elif isinstance(incremental.lag, int | float):
            state_values.subtract_lag(initial, incremental.lag)
    except StateValueError as problem:
        reading.report_problem("E104", inner_path, str(problem))


def _check_task(reading: DocumentReader, step: Step, incremental: Incremental, path: Path) -> None:
    task = find_reading_task(step.tool, incremental.task)
    if task is None:
        names = [item.name for item in step.tool]
        reading.report_problem(
            "E202",
            (*path, "task"),
            f"'{incremental.task}' is not a task of this step",
            hint=reading.suggest_word(str(incremental.task), names),
        )
    elif task.kind not in READING_KINDS:
        reading.report_problem(
            "E104",
            path,
            f"a task of kind {task.kind} reads no increments",
            hint=f"name the task that does as task; kinds: {', '.join(READING_KINDS)}",
            of_key=True,
        )
    _check_transfers(reading, step, task, path)
    for place, task_in_place in zip(reading.list_tasks(path), step.tool, strict=False):
        if task_in_place.kind == _TRANSFER and _appends(task_in_place):
            reading.report_problem(
                "W912",
                place.path,
                "the transfer appends rows that the next run may read again",
                hint="write mode: upsert and the key of the rows",
                of_key=True,
            )


def _check_transfers(reading: DocumentReader, step: Step, task: Task | None, path: Path) -> None:
    """Refuse a step in which the state would go further than one of its transfers has written."""
    transfers = [item for item in step.tool if item.kind == _TRANSFER]
    if len(transfers) > 1:
        reading.report_problem(
            "E104",
            path,
            "a step that reads increments has one transfer: each would read up to another row",
            hint="give each transfer a step and a state of its own",
            of_key=True,
        )
    elif transfers and task is not None and task.kind != _TRANSFER:
        reading.report_problem(
            "E104",
            (*path, "task"),
            "the state follows what the transfer has written, not what another task has read",
            hint="leave task out",
        )
    for transfer in transfers:
        if datasets.describes_dataset(transfer.fields.get("target")):
            reading.report_problem(
                "E104",
                path,
                "no increment is moved into a dataset, which keeps no state with its rows",
                hint="move it into a table of postgres, or write it by a task of kind spark",
                of_key=True,
            )


def _appends(task: Task) -> bool:
    """Tell whether a transfer adds every row, by its text; a template shows itself at run time."""
    target = task.fields.get("target")
    write_mode = target.get("mode") if isinstance(target, dict) else None
    mode = write_mode or task.fields.get("mode") or task.input.get("mode") or "append"
    has_query = isinstance(target, dict) and target.get("query") is not None
    if datasets.describes_dataset(target):
        return False
    return mode in ("append", "insert") and not has_query
