"""What the rules of tasks ask for: jumps that have a target, attempts and waits within bounds."""

from noetl_contracts.parking import WAIT_S_MAX
from noetl_playbook.model import Action
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

ATTEMPTS_MAX = 1_000
_PREVIOUS = ("previous", "prev")


def check_actions(reading: Reading) -> None:
    """Report what no rule can do."""
    for path, action in reading.actions:
        _check_bounds(reading, path, action)
        if action.do == "jump" and action.to is not None and path[0] == "workflow":
            _check_target(reading, path, action.to)


def _check_bounds(reading: Reading, path: Path, action: Action) -> None:
    attempts = action.attempts
    if isinstance(attempts, int) and not 1 <= attempts <= ATTEMPTS_MAX:
        reading.report("E603", (*path, "attempts"), f"attempts is between 1 and {ATTEMPTS_MAX}")
    for name, value in (("delay", action.delay), ("max_delay", action.max_delay)):
        if isinstance(value, int | float) and not 0 <= value <= WAIT_S_MAX:
            reading.report("E603", (*path, name), f"{name} is between 0 and {WAIT_S_MAX} s")


def _check_target(reading: Reading, path: Path, target: str) -> None:
    tasks = reading.tasks_of(path)
    here = reading.task_at(path)
    known = [task.name for task in tasks]
    if target in _PREVIOUS:
        if tasks and here is tasks[0]:
            reading.report("E204", (*path, "to"), "the first task has no previous one")
    elif target not in known:
        reading.report(
            "E204",
            (*path, "to"),
            f"jump target '{target}' is not a task of this step",
            hint=reading.hint(target, known),
        )
