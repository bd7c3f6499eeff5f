"""Checks of steps that need the whole playbook: events of arcs, streams, waits and actions."""

from noetl_contracts.commands.waits import WAIT_S_MAX
from noetl_playbook import plan
from noetl_playbook.lint.name_visibility import list_stream_targets
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import Action, Arc, Frame, Number, Playbook, Step
from noetl_playbook.sections.loops import MAX_IN_FLIGHT_MAX
from noetl_playbook.source.document_reader import DocumentReader, list_arc_paths, list_step_paths
from noetl_playbook.source.problems import Path

_OF_LOOPS = {
    language_names.LOOP_DONE: language_names.DONE,
    language_names.LOOP_FAILED: language_names.ERROR,
}
_EVENT_NAMES = ", ".join(language_names.ALSO_KNOWN_AS)


def check_arc_events(reading: DocumentReader, playbook: Playbook) -> None:
    """Report arcs that no end of their step takes."""
    for path, step in list_step_paths(reading, playbook):
        for inner_path, arc in list_arc_paths(step, path):
            if arc.on is not None:
                _check_event(reading, step, arc.on, (*inner_path, "on"))


def _check_event(reading: DocumentReader, step: Step, event: str, path: Path) -> None:
    if event not in language_names.BOUNDARY_EVENTS:
        reading.report_problem(
            "E104",
            path,
            f"'{event}' is not an event of a step's end",
            hint=reading.suggest_word(event, language_names.BOUNDARY_EVENTS)
            or f"write one of {_EVENT_NAMES}",
        )
    elif event == language_names.PARTIAL and not _has_stream(reading, path[:2]):
        reading.report_problem(
            "E207",
            path,
            f"'{event}' never comes: no task of the step streams",
            hint="write stream on its task, or wait for call.done",
        )
    elif event in _OF_LOOPS and not _has_loop(reading, step, path[:2]):
        reading.report_problem(
            "E207",
            path,
            f"'{event}' never comes: the step has no loop",
            hint=f"write on: {_OF_LOOPS[event]}",
        )


def _has_stream(reading: DocumentReader, path: Path) -> bool:
    """Tell whether a task streams; one whose stream could not be read does."""
    tasks = reading.list_tasks(path)
    return any(isinstance(reading.find_written((*task.path, "stream")), dict) for task in tasks)


def _has_loop(reading: DocumentReader, step: Step, path: Path) -> bool:
    """Tell whether a step has a loop; one that could not be read is one."""
    return step.loop is not None or reading.find_written((*path, "loop")) is not None


CHUNK_BYTES_MAX = 16 * 1024 * 1024
STREAM_KINDS = ("postgres", "duckdb", "spark", "http", "python")


def check_streams(reading: DocumentReader, playbook: Playbook) -> None:
    """Report streams that cannot be, and targets that do more than handle one chunk."""
    by_name = plan.map_steps_by_name(playbook)
    chunked = list_stream_targets(playbook)
    for path, step in list_step_paths(reading, playbook):
        _check_producer(reading, step, path)
        for inner_path, arc in list_arc_paths(step, path):
            _check_arc(reading, arc, inner_path)
            target = by_name.get(arc.step)
            if arc.step not in chunked or target is None:
                continue
            if arc.on != language_names.PARTIAL:
                reading.report_problem(
                    "E206",
                    (*inner_path, "step"),
                    f"'{arc.step}' is a stream target and the target of another arc",
                )
            elif target.next or target.loop or any(task.stream for task in target.tool):
                reading.report_problem(
                    "E206",
                    (*inner_path, "step"),
                    f"stream target '{arc.step}' has next, loop or stream",
                )


def _check_arc(reading: DocumentReader, arc: Arc, path: Path) -> None:
    at_once = arc.spec.max_in_flight
    if at_once is not None and not 1 <= at_once <= MAX_IN_FLIGHT_MAX:
        message = f"max_in_flight is between 1 and {MAX_IN_FLIGHT_MAX}"
        reading.report_problem("E604", (*path, "spec", "max_in_flight"), message)


def _check_producer(reading: DocumentReader, step: Step, path: Path) -> None:
    for place, task in zip(reading.list_tasks(path), step.tool, strict=False):
        if task.stream is None:
            continue
        inner_path = (*place.path, "stream")
        if task.kind not in STREAM_KINDS:
            message = f"kind {task.kind} cannot stream"
            reading.report_problem(
                "E403", inner_path, message, hint=f"kinds: {', '.join(STREAM_KINDS)}", of_key=True
            )
        elif len(step.tool) > 1 or step.loop is not None:
            message = "a step that streams has one task and no loop"
            reading.report_problem("E403", inner_path, message, of_key=True)
        elif task.output is not None and task.output.sink is not None:
            message = "rows go into a stream or into the dataset of 'output', and not into both"
            hint = "write the dataset in a step of its own"
            reading.report_problem("E403", inner_path, message, hint=hint, of_key=True)
        for name, value, maximum in (
            ("chunk_rows", task.stream.chunk_rows, None),
            ("max_ahead", task.stream.max_ahead, None),
            ("chunk_bytes", task.stream.chunk_bytes, CHUNK_BYTES_MAX),
        ):
            if value < 1 or (maximum is not None and value > maximum):
                bound = "is at least 1" if maximum is None else f"is between 1 and {maximum}"
                reading.report_problem("E609", (*inner_path, name), f"{name} {bound}")


_WAITING_KINDS = frozenset({"playbook", "external"})
# The longest wait of a pipeline that cannot let its worker go.
HELD_S_MAX = 60


def check_waits(reading: DocumentReader, playbook: Playbook) -> None:
    """Report tasks that let their worker go where it cannot be let go, and groups that wait."""
    for path, step in list_step_paths(reading, playbook):
        _check_tasks(reading, step, path)
        if step.reduce is not None and step.reduce.spec.start == "eager":
            reading.report_problem(
                "W911",
                (*path, "reduce", "spec", "start"),
                "start: eager begins no group before its source has ended",
                hint="leave it out: the result is the same",
            )


def check_deadlines(reading: DocumentReader, playbook: Playbook) -> None:
    """Report deadlines that a timeout forestalls, of the executor and of steps."""
    spec = playbook.executor.spec
    _check_deadline(reading, spec.deadline, spec.timeout, ("executor", "spec", "deadline"))
    for path, step in list_step_paths(reading, playbook):
        timeout = step.spec.policy.lifecycle.timeout_s
        _check_deadline(reading, step.spec.deadline, timeout, (*path, "spec", "deadline"))


def _check_deadline(
    reading: DocumentReader, deadline: Number | None, timeout: Number | None, path: Path
) -> None:
    if deadline is None or timeout is None or isinstance(deadline, str) or isinstance(timeout, str):
        return
    if deadline >= timeout:
        reading.report_problem(
            "W913",
            path,
            f"the deadline of {deadline:g} s never passes: the timeout is {timeout:g} s",
            hint="give a deadline that is shorter than the timeout",
        )


def _check_tasks(reading: DocumentReader, step: Step, path: Path) -> None:
    reason = _find_held_reason(step)
    if reason is None:
        return
    for place, task in zip(reading.list_tasks(path), step.tool, strict=False):
        if task.kind in _WAITING_KINDS:
            reading.report_problem(
                "E504",
                (*place.path, "kind"),
                f"kind {task.kind} cannot wait {reason}",
                hint="leave that out, or wait in a step of its own",
            )
    for at, action in reading.actions:
        if at[: len(path)] == path and _is_too_long(action.delay):
            reading.report_problem(
                "E504",
                (*at, "delay"),
                f"a delay of more than {HELD_S_MAX} s cannot be waited for {reason}",
                hint="leave that out, or wait in a step of its own",
            )


def _is_too_long(delay: object) -> bool:
    return isinstance(delay, int | float) and delay > HELD_S_MAX


def _find_held_reason(step: Step) -> str | None:
    """Say what keeps a step's worker until the end of a frame, if anything does."""
    if step.loop is not None and step.loop.spec.policy.exec == "local":
        return "in a loop with exec: local"
    return "in a frame with transaction: true" if _is_transaction(_find_frame(step)) else None


def _find_frame(step: Step) -> Frame | None:
    if step.loop is not None:
        return step.loop.spec.frame
    return step.reduce.spec.frame if step.reduce is not None else None


def _is_transaction(frame: Frame | None) -> bool:
    """Tell whether a frame is one by its text; what a template says shows when it runs."""
    return frame is not None and frame.transaction in {True, "true"}


ATTEMPTS_MAX = 1_000
_PREVIOUS = ("previous", "prev")


def check_actions(reading: DocumentReader) -> None:
    """Report what no rule can do."""
    for path, action in reading.actions:
        _check_bounds(reading, path, action)
        if action.do == "jump" and action.to is not None and path[0] == "workflow":
            _check_target(reading, path, action.to)


def _check_bounds(reading: DocumentReader, path: Path, action: Action) -> None:
    attempts = action.attempts
    if isinstance(attempts, int) and not 1 <= attempts <= ATTEMPTS_MAX:
        reading.report_problem(
            "E603", (*path, "attempts"), f"attempts is between 1 and {ATTEMPTS_MAX}"
        )
    for name, value in (("delay", action.delay), ("max_delay", action.max_delay)):
        if isinstance(value, int | float) and not 0 <= value <= WAIT_S_MAX:
            reading.report_problem("E603", (*path, name), f"{name} is between 0 and {WAIT_S_MAX} s")


def _check_target(reading: DocumentReader, path: Path, target: str) -> None:
    tasks = reading.list_tasks(path)
    target_task = reading.find_task(path)
    names = [task.name for task in tasks]
    if target in _PREVIOUS:
        if tasks and target_task is tasks[0]:
            reading.report_problem("E204", (*path, "to"), "the first task has no previous one")
    elif target not in names:
        reading.report_problem(
            "E204",
            (*path, "to"),
            f"jump target '{target}' is not a task of this step",
            hint=reading.suggest_word(target, names),
        )
