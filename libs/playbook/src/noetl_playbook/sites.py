"""Checks every template of a document: its syntax, its filters, and the names that it reads."""

from typing import Any

import msgspec

from noetl_playbook import names, spelling, syntax
from noetl_playbook.coercion import is_template
from noetl_playbook.model import Playbook, Step
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading, Site
from noetl_playbook.sandbox import GLOBALS
from noetl_playbook.syntax import SyntaxProblemError

_EVERYWHERE = names.FIXED_NAMES | names.LAST_NAMES | names.GLOBAL_NAMES | GLOBALS.keys()
_CORRELATION = frozenset({"correlation", "callback"})


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The names that a document defines."""

    shared: frozenset[str]
    by_step: dict[int, frozenset[str]]
    steps: dict[int, Step]


def check_sites(reading: Reading, playbook: Playbook | None) -> None:
    """Report templates that cannot be compiled, and names that can never resolve."""
    known = None if playbook is None else _known(reading, playbook)
    for site in reading.sites:
        tree = _parse(reading, site)
        if tree is not None and known is not None:
            _check_names(reading, site, tree, known)


def _parse(reading: Reading, site: Site) -> syntax.Tree | None:
    source = site.source
    if site.is_condition and not is_template(source):
        source = "{{ " + source + " }}"
    try:
        return syntax.parse(source)
    except SyntaxProblemError as error:
        reading.report(
            error.code, site.path, error.message, hint=error.hint, source_line=error.line
        )
        return None


def _known(reading: Reading, playbook: Playbook) -> _Known:
    written: set[str] = set()
    by_step: dict[int, frozenset[str]] = {}
    steps: dict[int, Step] = {}
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        steps[index] = step
        by_step[index] = _names_of(step)
        written |= _written(step)
    names_of_steps = (step.step for step in playbook.workflow)
    shared = frozenset(
        {*_EVERYWHERE, *playbook.workload, *playbook.vars, *names_of_steps, *written}
    )
    return _Known(shared=shared, by_step=by_step, steps=steps)


def _written(step: Step) -> set[str]:
    """List the `ctx` keys that a step may set."""
    blocks: list[dict[str, Any]] = [step.set]
    blocks += [arc.set for arc in (step.next.arcs if step.next else ())]
    for task in step.tool:
        blocks.append(task.set)
        blocks += [rule.then.set for rule in task.rules]
    targets = (names.split_target(key) for block in blocks for key in block)
    return {found[1].split(".")[0] for found in targets if found and found[0] == "ctx"}


def _names_of(step: Step) -> frozenset[str]:
    """List the names that exist only inside a step."""
    found: set[str] = set()
    for task in step.tool:
        found.add(task.name)
        found |= {key for key in task.set if "." not in key}
        found |= {key.split(".")[0] for key in task.set if not key.startswith(("ctx.", "iter."))}
        if task.output is not None:
            found |= {task.output.as_} if task.output.as_ else set()
            found |= {task.output.accumulate.manifest_as} if task.output.accumulate else set()
        if task.kind == "external":
            found |= _CORRELATION
    iterator = step.loop.iterator if step.loop else step.reduce.iterator if step.reduce else None
    if iterator is not None:
        found |= {iterator, f"{iterator}_rows"}
    return frozenset(found)


def _check_names(reading: Reading, site: Site, tree: syntax.Tree, known: _Known) -> None:
    match site.path:
        case ("workflow", int(index), *rest):
            local = known.by_step.get(index, frozenset())
            step = known.steps.get(index)
        case _:
            local, step, rest = frozenset(), None, []
    everything = known.shared | local
    read = syntax.names(tree)
    for name in sorted(read - everything):
        reading.report(
            "E303",
            site.path,
            f"'{name}' is not a name here",
            hint=spelling.hint(name, everything),
        )
    if step is not None:
        _check_scope(reading, site.path, step, rest, syntax.paths(tree, read))


def _check_scope(
    reading: Reading, path: Path, step: Step, rest: list[Any], read: frozenset[str]
) -> None:
    """Report names that exist, but not at this place."""
    is_inside = rest[:1] == ["tool"]
    if is_inside and step.reduce is None and any(each.split(".")[0] == "fanin" for each in read):
        reading.report("E304", path, "'fanin' exists in arcs and in the step's set only")
    is_looping = step.loop is not None or step.reduce is not None
    for name in ("loop_index", "loop", "frame"):
        if is_inside and not is_looping and any(each.split(".")[0] == name for each in read):
            reading.report("E304", path, f"'{name}' exists inside a loop only")
