"""Checks that need the whole playbook: names that must exist, and what can be reached."""

from collections.abc import Iterator

from noetl_playbook import plan, spelling
from noetl_playbook.model import Playbook, Step
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.sites import check_sites
from noetl_playbook.visibility import check_hidden

_ATTEMPTS_MAX = 1_000
_DELAY_S_MAX = 3_600
_CHUNK = "call.partial"


def validate(reading: Reading, playbook: Playbook | None) -> None:
    """Report what only the whole document can tell."""
    if playbook is not None:
        _check_names(reading, playbook)
        _check_ends(reading, playbook)
        for path, step in _placed(reading, playbook):
            _check_arcs(reading, playbook, step, path)
            _check_sources(reading, playbook, step, path)
            _check_rule_limits(reading, step, path)
        _check_streams(reading, playbook)
        _check_reachability(reading, playbook)
        check_hidden(reading, playbook)
    check_sites(reading, playbook)


def _placed(reading: Reading, playbook: Playbook) -> Iterator[tuple[Path, Step]]:
    """Pair every step with its place in the document."""
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        yield ("workflow", index), step


def _check_names(reading: Reading, playbook: Playbook) -> None:
    seen: set[str] = set()
    for path, step in _placed(reading, playbook):
        if step.step in seen:
            reading.report("E201", (*path, "step"), f"two steps are named '{step.step}'")
        seen.add(step.step)


def _check_ends(reading: Reading, playbook: Playbook) -> None:
    spec = playbook.executor.spec
    names = [step.step for step in playbook.workflow]
    for key, name in (("entry_step", spec.entry_step), ("final_step", spec.final_step)):
        if name is not None and name not in names:
            reading.report(
                "E202",
                ("executor", "spec", key),
                f"'{name}' is not a step",
                hint=spelling.hint(name, names),
            )


def _check_arcs(reading: Reading, playbook: Playbook, step: Step, path: Path) -> None:
    names = [each.step for each in playbook.workflow]
    for index, arc in enumerate(step.next.arcs if step.next else ()):
        if arc.step not in names:
            reading.report(
                "E203",
                (*path, "next", "arcs", index, "step"),
                f"arc target '{arc.step}' is not a step of this workflow",
                hint=spelling.hint(arc.step, names),
            )


def _check_sources(reading: Reading, playbook: Playbook, step: Step, path: Path) -> None:
    """Check the names that reduces refer to."""
    loops = {each.step for each in playbook.workflow if each.loop is not None}
    for name in step.reduce.from_ if step.reduce else ():
        if name not in loops:
            reading.report(
                "E202",
                (*path, "reduce", "from"),
                f"'{name}' is not a loop step",
                hint=spelling.hint(name, loops),
            )


def _check_rule_limits(reading: Reading, step: Step, path: Path) -> None:
    for task in step.tool:
        for rule in task.rules:
            then = rule.then
            if isinstance(then.attempts, int) and not 1 <= then.attempts <= _ATTEMPTS_MAX:
                reading.report(
                    "E603",
                    (*path, "tool"),
                    f"task '{task.name}': attempts is between 1 and {_ATTEMPTS_MAX}",
                )
            for name, value in (("delay", then.delay), ("max_delay", then.max_delay)):
                if isinstance(value, int | float) and not 0 <= value <= _DELAY_S_MAX:
                    reading.report(
                        "E603",
                        (*path, "tool"),
                        f"task '{task.name}': {name} is between 0 and {_DELAY_S_MAX} s",
                    )


def _check_streams(reading: Reading, playbook: Playbook) -> None:
    """Check that a stream's target does nothing but handle that chunk."""
    by_name = plan.steps_by_name(playbook)
    chunked = {
        arc.step
        for step in playbook.workflow
        for arc in (step.next.arcs if step.next else ())
        if arc.on == _CHUNK
    }
    for path, step in _placed(reading, playbook):
        for index, arc in enumerate(step.next.arcs if step.next else ()):
            here = (*path, "next", "arcs", index)
            target = by_name.get(arc.step)
            if arc.step not in chunked or target is None:
                continue
            if arc.on != _CHUNK:
                reading.report(
                    "E206", here, f"'{arc.step}' is a stream target and the target of another arc"
                )
            elif target.next or target.loop or any(task.stream for task in target.tool):
                reading.report("E206", here, f"stream target '{arc.step}' has next, loop or stream")


def _check_reachability(reading: Reading, playbook: Playbook) -> None:
    if not playbook.workflow:
        return
    graph = plan.Graph.of(playbook)
    reached = graph.reachable(graph.entry) | {graph.entry}
    for path, step in _placed(reading, playbook):
        if step.step not in reached:
            reading.report(
                "E205",
                (*path, "step"),
                f"step '{step.step}' cannot be reached from '{graph.entry}'",
            )
