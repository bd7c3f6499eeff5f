"""Names that a fixed name hides: they can be reached by their long form alone."""

from noetl_playbook import names
from noetl_playbook.model import Playbook
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading


def check_hidden(reading: Reading, playbook: Playbook) -> None:
    """Report names that a fixed name hides."""
    for key in playbook.workload:
        _report_hidden(reading, ("workload", key), key, reach=f"workload.{key}", of_key=True)
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        path: Path = ("workflow", index)
        _report_hidden(reading, (*path, "step"), step.step, reach=f"steps.{step.step}")
        if step.loop is not None:
            iterator = step.loop.iterator
            _report_hidden(reading, (*path, "loop", "iterator"), iterator, reach=f"iter.{iterator}")
        for task in reading.tasks_of(path):
            if task.name == f"{step.step}_task":
                continue
            _report_hidden(reading, (*task.path, "name"), task.name, reach=f"results.{task.name}")
    for place, name, reach in reading.variables:
        _report_hidden(reading, place, name, reach=reach, of_key=True)


def _report_hidden(
    reading: Reading, path: Path, name: str, *, reach: str, of_key: bool = False
) -> None:
    if name in names.FIXED_NAMES:
        reading.report(
            "W908",
            path,
            f"the fixed name '{name}' hides this",
            hint=f"reach it as {reach}",
            of_key=of_key,
        )
