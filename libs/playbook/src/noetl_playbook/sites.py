"""Checks every template of a document: its syntax, its filters, and the names that it reads."""

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import nodes

from noetl_contracts import spelling
from noetl_playbook import input_reads, names, places, sql_templates, syntax, visibility
from noetl_playbook.coercion import is_template
from noetl_playbook.input_reads import Keys
from noetl_playbook.model import Playbook, Step
from noetl_playbook.problems import Level, Place, Severity
from noetl_playbook.reading import Reading, Site
from noetl_playbook.sandbox import GLOBALS
from noetl_playbook.syntax import NOT_AVAILABLE, SyntaxProblemError, Tree
from noetl_playbook.visibility import Finding, Known

_SNIPPETS_TRIED_MAX = 50
_WORKLOAD = re.compile(r"\b(?:workload|payload)\b")
# What is said of a template that ends too early.
_UNCLOSED = ("end of template", "Missing end of")


def check_sites(reading: Reading, playbook: Playbook | None) -> list[Tree]:
    """Report templates that cannot be compiled, names that never resolve, and unbound SQL.

    Returns the templates that can be compiled, each once.
    """
    known = None if playbook is None else _known(reading, playbook)
    # The same text may stand in many places.
    trees: dict[str, Tree | SyntaxProblemError] = {}
    for site in reading.sites:
        source = site.source
        if site.is_condition and not is_template(source):
            source = "{{ " + source + " }}"
        if source not in trees:
            trees[source] = _parsed(source)
        tree = trees[source]
        if isinstance(tree, SyntaxProblemError):
            _report_syntax(reading, site, tree)
            continue
        sql_templates.check(reading, site, tree)
        if known is not None:
            _check_names(reading, site, tree, known)
            _check_inputs(reading, site, tree, known)
    return [tree for tree in trees.values() if isinstance(tree, Tree)]


def _parsed(source: str) -> Tree | SyntaxProblemError:
    try:
        return syntax.parse(source)
    except SyntaxProblemError as error:
        return error


def _report_syntax(reading: Reading, site: Site, error: SyntaxProblemError) -> None:
    for each in (error, *error.others):
        place = _place(reading, site, _failing(site.source, each))
        hint = each.hint or _way_out(site, each)
        reading.report(each.code, site.path, each.message, hint=hint, place=place)


def _way_out(site: Site, error: SyntaxProblemError) -> str | None:
    """Tell how braces are closed, or kept as text; a bare condition has none."""
    is_refused = error.message.endswith(NOT_AVAILABLE)
    if error.code != "E301" or is_refused or not is_template(site.source):
        return None
    if any(said in error.message for said in _UNCLOSED):
        return "close what is opened here: }}, %} or an end tag is missing"
    return "text that keeps its braces stands between {% raw %} and {% endraw %}"


def _place(reading: Reading, site: Site, offset: int) -> Place:
    return places.of_template(reading.document, reading.origin(site.path), site.source, offset)


def _failing(source: str, error: SyntaxProblemError) -> int:
    """Find where the template opens that an error is about."""
    for start, end in places.spans(source)[:_SNIPPETS_TRIED_MAX]:
        if not source.startswith("{{", start):
            continue
        found = _parsed(source[start:end])
        if isinstance(found, SyntaxProblemError) and _is_same(found, error):
            return start
    return _on_line(source, error.line)


def _is_same(alone: SyntaxProblemError, error: SyntaxProblemError) -> bool:
    """Tell whether a template by itself has an error; of syntax, it may say so otherwise."""
    messages = [each.message for each in (alone, *alone.others)]
    return alone.code == error.code and (error.code != "E302" or error.message in messages)


def _on_line(source: str, line: int) -> int:
    """Find the first template of the last line, up to a line, on which one opens."""
    lines = [(source.count("\n", 0, each), each) for each in places.openers(source)]
    last = max((number for number, _ in lines if number < line), default=-1)
    return next((each for number, each in lines if number == last), 0)


def _known(reading: Reading, playbook: Playbook) -> Known:
    steps: dict[int, Step] = {}
    written: set[str] = set()
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        steps[index] = step
        written |= visibility.written(step, "ctx")
    return Known(
        fixed=frozenset(
            {*names.FIXED_NAMES, *names.LAST_NAMES, *names.GLOBAL_NAMES, *GLOBALS, names.SEAL}
        ),
        workload=playbook.workload,
        ctx=frozenset({*written, *playbook.vars}),
        step_names=frozenset(step.step for step in playbook.workflow),
        keychain=frozenset(entry.name for entry in playbook.keychain),
        steps=steps,
        local={
            index: visibility.local_names(reading, ("workflow", index), step)
            for index, step in steps.items()
        },
        stream_targets=visibility.stream_targets(playbook),
    )


def _check_names(reading: Reading, site: Site, tree: Tree, known: Known) -> None:
    read = syntax.names(tree)
    paths = syntax.paths(tree, read)
    here = visibility.view_of(reading, site.path, known)
    asked = syntax.list_asked_names(tree) if reading.level is not Level.STRICT else None
    for finding in here.findings(read, paths):
        name, hint = finding.name, finding.hint
        if finding.is_unknown and reading.has_hints:
            hint = reading.hint(name, here.near(name))
        reading.report(
            finding.code,
            site.path,
            finding.message,
            hint=hint,
            place=_place(reading, site, _offset_of(site.source, tree, name)),
            severity=Severity.WARNING if _is_decided_by_run(finding, asked) else None,
        )


def _check_inputs(reading: Reading, site: Site, tree: Tree, known: Known) -> None:
    """Report inputs that a template reads and the workload lacks, unless it asks for them.

    A request may bring them, so that one is refused only if it looks like one of the workload's.
    """
    if not known.workload or not _WORKLOAD.search(site.source):
        return
    reads = input_reads.find_template_reads(tree)
    asked = {read.keys[:1] for read in reads if read.is_asked}
    missing = {
        keys
        for read in reads
        if read.root in input_reads.WHOLE_NAMES and read.keys[:1] not in asked
        if (keys := _first_missing(known.workload, read.keys))
    }
    for keys in sorted(missing):
        _report_input(reading, site, tree, known, keys)


def _first_missing(declared: Mapping[str, Any], keys: Keys) -> Keys | None:
    """Find how far a path leads to something that a mapping of the workload lacks."""
    here: Any = declared
    for place, key in enumerate(keys):
        if not isinstance(here, Mapping) or not here:
            return None
        if key not in here:
            return keys[: place + 1]
        here = here[key]
    return None


def _report_input(reading: Reading, site: Site, tree: Tree, known: Known, keys: Keys) -> None:
    here: Any = known.workload
    for key in keys[:-1]:
        here = here[key]
    near = spelling.nearest(keys[-1], here)
    is_slip = near is not None and spelling.is_slip(keys[-1], near)
    if not is_slip and reading.level is not Level.STRICT:
        # A request may bring it.
        return
    name = ".".join(keys)
    asked = f"did you mean '{'.'.join((*keys[:-1], near))}'? " if near is not None else ""
    reading.report(
        "E303",
        site.path,
        f"the workload has no '{name}'",
        hint=f"{asked}declare what a request brings under workload, with null or a default",
        place=_place(reading, site, _offset_of(site.source, tree, f"workload.{name}")),
    )


def _is_decided_by_run(finding: Finding, asked: frozenset[str] | None) -> bool:
    """Tell whether a name may come with a run: by a request, or where its template asks for it."""
    if asked is None or not finding.is_unknown:
        return False
    return finding.is_open or finding.name.split(".")[0] in asked


def _offset_of(source: str, tree: Tree, name: str) -> int:
    """Find the template that reads a name."""
    spans = places.spans(source)
    if len(spans) == 1:
        return spans[0][0]
    root, _, rest = name.partition(".")
    line = next((node.lineno for node in tree.root.find_all(nodes.Name) if node.name == root), 1)
    word = re.compile(rf"\b{re.escape(rest or root)}\b")
    for start, end in spans:
        if word.search(source, start, end):
            return start
    return _on_line(source, line)
