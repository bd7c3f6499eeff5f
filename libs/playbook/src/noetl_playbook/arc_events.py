"""The events that arcs wait for: known ones, of a kind that their step can end with."""

from noetl_playbook import aliases
from noetl_playbook.model import Playbook, Step
from noetl_playbook.placed import arcs, placed
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

_OF_LOOPS = {aliases.LOOP_DONE: aliases.DONE, aliases.LOOP_FAILED: aliases.ERROR}
_KNOWN = ", ".join(aliases.ALSO_KNOWN_AS)


def check_arc_events(reading: Reading, playbook: Playbook) -> None:
    """Report arcs that no end of their step takes."""
    for path, step in placed(reading, playbook):
        for here, arc in arcs(step, path):
            if arc.on is not None:
                _check(reading, step, arc.on, (*here, "on"))


def _check(reading: Reading, step: Step, event: str, path: Path) -> None:
    if event not in aliases.BOUNDARY_EVENTS:
        reading.report(
            "E104",
            path,
            f"'{event}' is not an event of a step's end",
            hint=reading.hint(event, aliases.BOUNDARY_EVENTS) or f"write one of {_KNOWN}",
        )
    elif event == aliases.PARTIAL and not _streams(reading, path[:2]):
        reading.report(
            "E207",
            path,
            f"'{event}' never comes: no task of the step streams",
            hint="write stream on its task, or wait for call.done",
        )
    elif event in _OF_LOOPS and not _loops(reading, step, path[:2]):
        reading.report(
            "E207",
            path,
            f"'{event}' never comes: the step has no loop",
            hint=f"write on: {_OF_LOOPS[event]}",
        )


def _streams(reading: Reading, path: Path) -> bool:
    """Tell whether a task streams; one whose stream could not be read does."""
    tasks = reading.tasks_of(path)
    return any(isinstance(reading.written((*task.path, "stream")), dict) for task in tasks)


def _loops(reading: Reading, step: Step, path: Path) -> bool:
    """Tell whether a step has a loop; one that could not be read is one."""
    return step.loop is not None or reading.written((*path, "loop")) is not None
