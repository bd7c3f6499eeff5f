"""Checks of a whole playbook: names, arcs, ends, reachability, and names that others hide."""

from noetl_playbook import plan
from noetl_playbook.lint.step_checks import (
    check_actions,
    check_arc_events,
    check_deadlines,
    check_streams,
    check_waits,
)
from noetl_playbook.lint.stream_modes import check_stream_modes
from noetl_playbook.lint.template_checks import check_templates
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import Playbook, Step
from noetl_playbook.sections.increments import check_increments
from noetl_playbook.sections.limits import check_limits
from noetl_playbook.source.document_reader import DocumentReader, list_arc_paths, list_step_paths
from noetl_playbook.source.problems import Path
from noetl_playbook.templates.syntax import TemplateTree


def check_shadowed_names(reading: DocumentReader, playbook: Playbook) -> None:
    """Report names that a fixed name hides."""
    for key in playbook.workload:
        _report_shadowed(reading, ("workload", key), key, reach=f"workload.{key}", of_key=True)
    for key in playbook.declared_inputs.keys() - playbook.workload.keys():
        _report_shadowed(reading, ("inputs", key), key, reach=f"workload.{key}", of_key=True)
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        path: Path = ("workflow", index)
        _report_shadowed(reading, (*path, "step"), step.step, reach=f"steps.{step.step}")
        if step.loop is not None:
            iterator = step.loop.iterator
            _report_shadowed(
                reading, (*path, "loop", "iterator"), iterator, reach=f"iter.{iterator}"
            )
        for task in reading.list_tasks(path):
            if task.name == f"{step.step}_task":
                continue
            _report_shadowed(reading, (*task.path, "name"), task.name, reach=f"results.{task.name}")
    for place, name, reach in reading.variables:
        _report_shadowed(reading, place, name, reach=reach, of_key=True)


def _report_shadowed(
    reading: DocumentReader, path: Path, name: str, *, reach: str, of_key: bool = False
) -> None:
    if name in language_names.FIXED_NAMES:
        reading.report_problem(
            "W908",
            path,
            f"the fixed name '{name}' hides this",
            hint=f"reach it as {reach}",
            of_key=of_key,
        )


def validate_playbook(reading: DocumentReader, playbook: Playbook | None) -> list[TemplateTree]:
    """Report what only the whole document can tell; returns the templates that compile."""
    if playbook is not None:
        _check_step_names(reading, playbook)
        _check_end_steps(reading, playbook)
        steps = frozenset(step.step for step in playbook.workflow)
        for path, step in list_step_paths(reading, playbook):
            _check_arcs(reading, steps, step, path)
            _check_reduce_sources(reading, playbook, step, path)
        check_arc_events(reading, playbook)
        check_streams(reading, playbook)
        check_stream_modes(reading, playbook)
        check_waits(reading, playbook)
        check_deadlines(reading, playbook)
        check_increments(reading, playbook)
        _check_reachability(reading, playbook)
        check_shadowed_names(reading, playbook)
        check_limits(reading, playbook)
    check_actions(reading)
    return check_templates(reading, playbook)


def _check_step_names(reading: DocumentReader, playbook: Playbook) -> None:
    names: set[str] = set()
    for path, step in list_step_paths(reading, playbook):
        if step.step in names:
            reading.report_problem("E201", (*path, "step"), f"two steps are named '{step.step}'")
        names.add(step.step)


def _check_end_steps(reading: DocumentReader, playbook: Playbook) -> None:
    spec = playbook.executor.spec
    names = [step.step for step in playbook.workflow]
    for key, name in (("entry_step", spec.entry_step), ("final_step", spec.final_step)):
        if name is not None and name not in names:
            reading.report_problem(
                "E202",
                ("executor", "spec", key),
                f"'{name}' is not a step",
                hint=reading.suggest_word(name, names),
            )


def _check_arcs(
    reading: DocumentReader, known_names: frozenset[str], step: Step, path: Path
) -> None:
    for arc_path, arc in list_arc_paths(step, path):
        if arc.step not in known_names:
            reading.report_problem(
                "E203",
                (*arc_path, "step"),
                f"arc target '{arc.step}' is not a step of this workflow",
                hint=reading.suggest_word(arc.step, known_names),
            )


def _check_reduce_sources(
    reading: DocumentReader, playbook: Playbook, step: Step, path: Path
) -> None:
    """Check the names that reduces refer to."""
    if step.reduce is not None:
        _check_source_names(reading, playbook, step.reduce.from_, (*path, "reduce", "from"))


def _check_source_names(
    reading: DocumentReader, playbook: Playbook, sources: tuple[str, ...], path: Path
) -> None:
    if reading.find_written(path) == []:
        reading.report_problem(
            "E104", path, "a reduce needs a source", hint="name the loop step whose parts it takes"
        )
    # A loop that could not be read is still a loop.
    loops = {step.step for step in playbook.workflow if step.loop is not None}
    loops |= {
        step.step
        for place, step in list_step_paths(reading, playbook)
        if reading.document.value["workflow"][place[1]].get("loop") is not None
    }
    for index, name in enumerate(sources):
        if name not in loops:
            reading.report_problem(
                "E202",
                (*path, index),
                f"'{name}' is not a loop step",
                hint=reading.suggest_word(name, loops),
            )


def _check_reachability(reading: DocumentReader, playbook: Playbook) -> None:
    if not playbook.workflow:
        return
    graph = plan.WorkflowGraph.from_playbook(playbook)
    reachable_steps = graph.list_reachable(graph.entry) | {graph.entry}
    for path, step in list_step_paths(reading, playbook):
        if step.step not in reachable_steps:
            reading.report_problem(
                "E205",
                (*path, "step"),
                f"step '{step.step}' cannot be reached from '{graph.entry}'",
            )
