"""Checks that need the whole playbook: names that must exist, and what can be reached."""

from noetl_playbook import plan
from noetl_playbook.arc_events import check_arc_events
from noetl_playbook.hidden import check_hidden
from noetl_playbook.jumps import check_actions
from noetl_playbook.limits import check_limits
from noetl_playbook.model import Playbook, Step
from noetl_playbook.placed import arcs, placed
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.sites import check_sites
from noetl_playbook.streams import check_streams
from noetl_playbook.syntax import Tree
from noetl_playbook.waits import check_waits


def validate(reading: Reading, playbook: Playbook | None) -> list[Tree]:
    """Report what only the whole document can tell; returns the templates that compile."""
    if playbook is not None:
        _check_names(reading, playbook)
        _check_ends(reading, playbook)
        known = frozenset(step.step for step in playbook.workflow)
        for path, step in placed(reading, playbook):
            _check_arcs(reading, known, step, path)
            _check_sources(reading, playbook, step, path)
        check_arc_events(reading, playbook)
        check_streams(reading, playbook)
        check_waits(reading, playbook)
        _check_reachability(reading, playbook)
        check_hidden(reading, playbook)
        check_limits(reading, playbook)
    check_actions(reading)
    return check_sites(reading, playbook)


def _check_names(reading: Reading, playbook: Playbook) -> None:
    seen: set[str] = set()
    for path, step in placed(reading, playbook):
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
                hint=reading.hint(name, names),
            )


def _check_arcs(reading: Reading, known: frozenset[str], step: Step, path: Path) -> None:
    for arc_path, arc in arcs(step, path):
        if arc.step not in known:
            reading.report(
                "E203",
                (*arc_path, "step"),
                f"arc target '{arc.step}' is not a step of this workflow",
                hint=reading.hint(arc.step, known),
            )


def _check_sources(reading: Reading, playbook: Playbook, step: Step, path: Path) -> None:
    """Check the names that reduces refer to."""
    if step.reduce is not None:
        _check_reduce(reading, playbook, step.reduce.from_, (*path, "reduce", "from"))


def _check_reduce(
    reading: Reading, playbook: Playbook, sources: tuple[str, ...], path: Path
) -> None:
    if reading.written(path) == []:
        reading.report(
            "E104", path, "a reduce needs a source", hint="name the loop step whose parts it takes"
        )
    # A loop that could not be read is still a loop.
    loops = {step.step for step in playbook.workflow if step.loop is not None}
    loops |= {
        step.step
        for place, step in placed(reading, playbook)
        if reading.document.value["workflow"][place[1]].get("loop") is not None
    }
    for index, name in enumerate(sources):
        if name not in loops:
            reading.report(
                "E202",
                (*path, index),
                f"'{name}' is not a loop step",
                hint=reading.hint(name, loops),
            )


def _check_reachability(reading: Reading, playbook: Playbook) -> None:
    if not playbook.workflow:
        return
    graph = plan.Graph.of(playbook)
    reached = graph.reachable(graph.entry) | {graph.entry}
    for path, step in placed(reading, playbook):
        if step.step not in reached:
            reading.report(
                "E205",
                (*path, "step"),
                f"step '{step.step}' cannot be reached from '{graph.entry}'",
            )
