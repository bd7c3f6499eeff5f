"""Where tasks cannot wait, and what a reduce does not begin early: said before anything runs."""

from noetl_playbook.model import Frame, Playbook, Step
from noetl_playbook.placed import placed
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

_WAITING_KINDS = frozenset({"playbook", "external"})
# The longest wait of a pipeline that cannot let its worker go.
HELD_S_MAX = 60


def check_waits(reading: Reading, playbook: Playbook) -> None:
    """Report tasks that let their worker go where it cannot be let go, and groups that wait."""
    for path, step in placed(reading, playbook):
        _check_tasks(reading, step, path)
        if step.reduce is not None and step.reduce.spec.start == "eager":
            reading.report(
                "W911",
                (*path, "reduce", "spec", "start"),
                "start: eager begins no group before its source has ended",
                hint="leave it out: the result is the same",
            )


def _check_tasks(reading: Reading, step: Step, path: Path) -> None:
    reason = _why_held(step)
    if reason is None:
        return
    for place, task in zip(reading.tasks_of(path), step.tool, strict=False):
        if task.kind in _WAITING_KINDS:
            reading.report(
                "E504",
                (*place.path, "kind"),
                f"kind {task.kind} cannot wait {reason}",
                hint="leave that out, or wait in a step of its own",
            )
    for at, action in reading.actions:
        if at[: len(path)] == path and _is_too_long(action.delay):
            reading.report(
                "E504",
                (*at, "delay"),
                f"a delay of more than {HELD_S_MAX} s cannot be waited for {reason}",
                hint="leave that out, or wait in a step of its own",
            )


def _is_too_long(delay: object) -> bool:
    return isinstance(delay, int | float) and delay > HELD_S_MAX


def _why_held(step: Step) -> str | None:
    """Say what keeps a step's worker until the end of a frame, if anything does."""
    if step.loop is not None and step.loop.spec.policy.exec == "local":
        return "in a loop with exec: local"
    return "in a frame with transaction: true" if _is_transaction(_frame_of(step)) else None


def _frame_of(step: Step) -> Frame | None:
    if step.loop is not None:
        return step.loop.spec.frame
    return step.reduce.spec.frame if step.reduce is not None else None


def _is_transaction(frame: Frame | None) -> bool:
    """Tell whether a frame is one by its text; what a template says shows when it runs."""
    return frame is not None and frame.transaction in {True, "true"}
