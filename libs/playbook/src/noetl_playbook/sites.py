"""Checks every template of a document: its syntax, its filters, and the names that it reads."""

import msgspec

from noetl_playbook import names, spelling, syntax, visibility
from noetl_playbook.coercion import is_template
from noetl_playbook.model import Playbook, Step
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
        written |= visibility.written(step, "ctx")
    names_of_steps = (step.step for step in playbook.workflow)
    shared = frozenset(
        {*_EVERYWHERE, *playbook.workload, *playbook.vars, *names_of_steps, *written}
    )
    return _Known(shared=shared, by_step=by_step, steps=steps)


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
        section = rest[0] if rest and isinstance(rest[0], str) else ""
        paths = syntax.paths(tree, read)
        visibility.check_place(reading, site.path, step, section=section, read=paths)
