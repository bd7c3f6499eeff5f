"""What streams ask of the steps that make them and of those that take their chunks."""

from noetl_playbook import aliases, plan
from noetl_playbook.loops import MAX_IN_FLIGHT_MAX
from noetl_playbook.model import Arc, Playbook, Step
from noetl_playbook.placed import arcs, placed
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.visibility import stream_targets

CHUNK_BYTES_MAX = 16 * 1024 * 1024
_KINDS = ("postgres", "duckdb", "spark", "http", "python")


def check_streams(reading: Reading, playbook: Playbook) -> None:
    """Report streams that cannot be, and targets that do more than handle one chunk."""
    by_name = plan.steps_by_name(playbook)
    chunked = stream_targets(playbook)
    for path, step in placed(reading, playbook):
        _check_producer(reading, step, path)
        for here, arc in arcs(step, path):
            _check_arc(reading, arc, here)
            target = by_name.get(arc.step)
            if arc.step not in chunked or target is None:
                continue
            if arc.on != aliases.PARTIAL:
                reading.report(
                    "E206",
                    (*here, "step"),
                    f"'{arc.step}' is a stream target and the target of another arc",
                )
            elif target.next or target.loop or any(task.stream for task in target.tool):
                reading.report(
                    "E206",
                    (*here, "step"),
                    f"stream target '{arc.step}' has next, loop or stream",
                )


def _check_arc(reading: Reading, arc: Arc, path: Path) -> None:
    at_once = arc.spec.max_in_flight
    if at_once is not None and not 1 <= at_once <= MAX_IN_FLIGHT_MAX:
        message = f"max_in_flight is between 1 and {MAX_IN_FLIGHT_MAX}"
        reading.report("E604", (*path, "spec", "max_in_flight"), message)


def _check_producer(reading: Reading, step: Step, path: Path) -> None:
    for place, task in zip(reading.tasks_of(path), step.tool, strict=False):
        if task.stream is None:
            continue
        here = (*place.path, "stream")
        if task.kind not in _KINDS:
            message = f"kind {task.kind} cannot stream"
            reading.report("E403", here, message, hint=f"kinds: {', '.join(_KINDS)}", of_key=True)
        elif len(step.tool) > 1 or step.loop is not None:
            message = "a step that streams has one task and no loop"
            reading.report("E403", here, message, of_key=True)
        for name, value, most in (
            ("chunk_rows", task.stream.chunk_rows, None),
            ("max_ahead", task.stream.max_ahead, None),
            ("chunk_bytes", task.stream.chunk_bytes, CHUNK_BYTES_MAX),
        ):
            if value < 1 or (most is not None and value > most):
                bound = "is at least 1" if most is None else f"is between 1 and {most}"
                reading.report("E609", (*here, name), f"{name} {bound}")
