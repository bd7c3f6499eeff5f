"""Checks of templates: their place in the text, syntax, names, and use in SQL."""

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import nodes

from noetl_contracts import spelling
from noetl_playbook.lint import name_visibility
from noetl_playbook.lint.name_visibility import KnownNames, NameFinding
from noetl_playbook.model import language_names
from noetl_playbook.model.coercion import is_template
from noetl_playbook.model.playbook import Playbook, Step
from noetl_playbook.source.document_reader import DocumentReader, TemplateSite
from noetl_playbook.source.problems import Level, Path, Severity, TextPosition
from noetl_playbook.source.yaml_document import YamlDocument
from noetl_playbook.templates import input_reads, syntax
from noetl_playbook.templates.input_reads import Keys
from noetl_playbook.templates.sandbox import GLOBALS
from noetl_playbook.templates.syntax import NOT_AVAILABLE, SyntaxProblemError, TemplateTree

_OPENER = re.compile(r"\{\{|\{%")


def list_openers(source: str) -> list[int]:
    """List where each `{{` or `{%` of a template begins."""
    return [match.start() for match in _OPENER.finditer(source)]


def list_template_spans(source: str) -> list[tuple[int, int]]:
    """List where each template of a text begins, and where the next one does."""
    starts = list_openers(source)
    return list(zip(starts, [*starts[1:], len(source)], strict=False))


def find_template_place(
    document: YamlDocument, path: Path, source: str, offset: int
) -> TextPosition:
    """Place the template that opens at an offset of a value's text.

    A value on one line is the place itself; in longer ones the openers are counted, for folding
    and quoting change lines and columns but never their order.
    """
    place = document.find_place(path)
    if not place.line_end or path not in document.values:
        return place
    remaining = sum(1 for opener in list_openers(source) if opener < offset)
    first = place.line + 1 if place.is_block else place.line
    for line in range(first, min(place.line_end, len(document.lines)) + 1):
        line_text = document.lines[line - 1]
        start = place.column - 1 if line == place.line else 0
        for match in _OPENER.finditer(line_text, start):
            if remaining == 0:
                return TextPosition(line=line, column=match.start() + 1)
            remaining -= 1
    return _find_first_content(document, place)


def _find_first_content(document: YamlDocument, place: TextPosition) -> TextPosition:
    """Place a bare condition inside a block: where its text begins."""
    for line in range(place.line + 1, min(place.line_end, len(document.lines)) + 1):
        line_text = document.lines[line - 1]
        if place.is_block and line_text.strip():
            return TextPosition(line=line, column=len(line_text) - len(line_text.lstrip()) + 1)
    return place


SAFE_FILTERS = frozenset(
    {"int", "float", "to_number", "length", "count", "sql_literal", "sql_ident"}
)
# Made by the engine: digits, or words that need no quotes.
_MADE_BY_ENGINE = frozenset(
    {
        *("execution_id", "parent_execution_id", "catalog_id", "loop_index", "_attempt"),
        *("__frame_max_rows", "__frame_id", "__frame_index", "__worker_slot_id"),
    }
)
_SQL_FIELDS = frozenset(
    {"query", "command", "commands", "statement", "sql", "cmd", "cmds", "queries"}
)
_SQL_KINDS = frozenset({"postgres", "duckdb", "spark"})
_SHOWN_CHARACTERS_MAX = 60


def check_sql_template(reading: DocumentReader, site: TemplateSite, tree: TemplateTree) -> None:
    """Report the first expression of a statement that could change it."""
    if not _is_sql_field(reading, site.path):
        return
    emitted = _list_expressions(tree)
    unsafe = next(
        (number for number, node in enumerate(emitted) if not _is_safe_expression(node)), None
    )
    if unsafe is None:
        return
    starts = [
        opener for opener in list_openers(site.source) if site.source.startswith("{{", opener)
    ]
    offset = starts[unsafe] if len(starts) == len(emitted) else starts[0] if starts else 0
    reading.report_problem(
        "W909",
        site.path,
        "a template inside SQL text can change the statement",
        hint="bind the value: write $1 in the text and params: "
        f'["{_cut_expression(site.source, offset)}"] beside it',
        place=find_template_place(
            reading.document, reading.find_origin(site.path), site.source, offset
        ),
    )


def _is_sql_field(reading: DocumentReader, path: Path) -> bool:
    match path:
        case ("workflow", int(), "loop", "cursor", "claim"):
            return True
        case (*_, "source" | "target", "query"):
            return (task := reading.find_task(path)) is not None and task.kind == "transfer"
        case _:
            task = reading.find_task(path)
            if task is None or task.kind not in _SQL_KINDS:
                return False
            inside = [
                key for key in path[len(task.path) :] if isinstance(key, str) and key != "spec"
            ]
            return len(inside) == 1 and inside[0] in _SQL_FIELDS


def _list_expressions(tree: TemplateTree) -> list[nodes.Expr]:
    """List the expressions of a template in the order of the text."""
    outputs = sorted(tree.root.find_all(nodes.Output), key=lambda node_output: node_output.lineno)
    return [
        node
        for output in outputs
        for node in output.nodes
        if not isinstance(node, nodes.TemplateData)
    ]


def _is_safe_expression(node: nodes.Expr) -> bool:
    match node:
        case nodes.Const():
            return True
        case nodes.Filter(name=name):
            return name in SAFE_FILTERS
        case nodes.Name(name=name):
            return name in _MADE_BY_ENGINE
        case (
            nodes.Add(left=left, right=right)
            | nodes.Sub(left=left, right=right)
            | nodes.Mul(left=left, right=right)
        ):
            return _is_safe_expression(left) and _is_safe_expression(right)
        case nodes.CondExpr(expr1=first, expr2=second):
            return _is_safe_expression(first) and second is not None and _is_safe_expression(second)
        case _:
            return False


def _cut_expression(source: str, offset: int) -> str:
    text = " ".join(source[offset : source.find("}}", offset) + 2].split())
    return text if 0 < len(text) <= _SHOWN_CHARACTERS_MAX else "{{ … }}"


_SNIPPETS_TRIED_MAX = 50
_WORKLOAD = re.compile(r"\b(?:workload|payload)\b")
# What is said of a template that ends too early.
_UNCLOSED = ("end of template", "Missing end of")


def check_templates(reading: DocumentReader, playbook: Playbook | None) -> list[TemplateTree]:
    """Report templates that cannot be compiled, names that never resolve, and unbound SQL.

    Returns the templates that can be compiled, each once.
    """
    known_names = None if playbook is None else _collect_known_names(reading, playbook)
    # The same text may stand in many places.
    trees: dict[str, TemplateTree | SyntaxProblemError] = {}
    for site in reading.sites:
        source = site.source
        if site.is_condition and not is_template(source):
            source = "{{ " + source + " }}"
        if source not in trees:
            trees[source] = _parse_template(source)
        tree = trees[source]
        if isinstance(tree, SyntaxProblemError):
            _report_syntax(reading, site, tree)
            continue
        check_sql_template(reading, site, tree)
        if known_names is not None:
            _check_names(reading, site, tree, known_names)
            _check_inputs(reading, site, tree, known_names)
    return [tree for tree in trees.values() if isinstance(tree, TemplateTree)]


def _parse_template(source: str) -> TemplateTree | SyntaxProblemError:
    try:
        return syntax.parse_template(source)
    except SyntaxProblemError as error:
        return error


def _report_syntax(reading: DocumentReader, site: TemplateSite, error: SyntaxProblemError) -> None:
    for item in (error, *error.others):
        place = _find_place(reading, site, _find_failing_offset(site.source, item))
        hint = item.hint or _find_way_out(site, item)
        reading.report_problem(item.code, site.path, item.message, hint=hint, place=place)


def _find_way_out(site: TemplateSite, error: SyntaxProblemError) -> str | None:
    """Tell how braces are closed, or kept as text; a bare condition has none."""
    is_refused = error.message.endswith(NOT_AVAILABLE)
    if error.code != "E301" or is_refused or not is_template(site.source):
        return None
    if any(phrase in error.message for phrase in _UNCLOSED):
        return "close what is opened here: }}, %} or an end tag is missing"
    return "text that keeps its braces stands between {% raw %} and {% endraw %}"


def _find_place(reading: DocumentReader, site: TemplateSite, offset: int) -> TextPosition:
    return find_template_place(
        reading.document, reading.find_origin(site.path), site.source, offset
    )


def _find_failing_offset(source: str, error: SyntaxProblemError) -> int:
    """Find where the template opens that an error is about."""
    for start, end in list_template_spans(source)[:_SNIPPETS_TRIED_MAX]:
        if not source.startswith("{{", start):
            continue
        template = _parse_template(source[start:end])
        if isinstance(template, SyntaxProblemError) and _is_same_error(template, error):
            return start
    return _find_offset_on_line(source, error.line)


def _is_same_error(alone: SyntaxProblemError, error: SyntaxProblemError) -> bool:
    """Tell whether a template by itself has an error; of syntax, it may say so otherwise."""
    messages = [item.message for item in (alone, *alone.others)]
    return alone.code == error.code and (error.code != "E302" or error.message in messages)


def _find_offset_on_line(source: str, line: int) -> int:
    """Find the first template of the last line, up to a line, on which one opens."""
    offset = number = counted_until = 0
    last = -1
    for opener in list_openers(source):
        number += source.count("\n", counted_until, opener)
        counted_until = opener
        if number >= line:
            break
        if number > last:
            offset, last = opener, number
    return offset


def _collect_known_names(reading: DocumentReader, playbook: Playbook) -> KnownNames:
    steps: dict[int, Step] = {}
    written_keys: set[str] = set()
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        steps[index] = step
        written_keys |= name_visibility.list_written_keys(step, "ctx")
    return KnownNames(
        fixed=frozenset(
            {
                *language_names.FIXED_NAMES,
                *language_names.LAST_NAMES,
                *language_names.GLOBAL_NAMES,
                *GLOBALS,
                language_names.SEAL,
            }
        ),
        workload=playbook.known_workload,
        ctx=frozenset({*written_keys, *playbook.vars}),
        step_names=frozenset(step.step for step in playbook.workflow),
        keychain=frozenset(entry.name for entry in playbook.keychain),
        steps=steps,
        local={
            index: name_visibility.list_local_names(reading, ("workflow", index), step)
            for index, step in steps.items()
        },
        stream_targets=name_visibility.list_stream_targets(playbook),
    )


def _check_names(
    reading: DocumentReader, site: TemplateSite, tree: TemplateTree, known_names: KnownNames
) -> None:
    names = syntax.list_names(tree)
    paths = syntax.list_paths(tree, names)
    name_view = name_visibility.build_name_view(reading, site.path, known_names)
    asked_names = syntax.list_asked_names(tree) if reading.level is not Level.STRICT else None
    for finding in name_view.judge_names(names, paths):
        name, hint = finding.name, finding.hint
        if finding.is_unknown and reading.has_hints:
            hint = reading.suggest_word(name, name_view.list_near_names(name))
        reading.report_problem(
            finding.code,
            site.path,
            finding.message,
            hint=hint,
            place=_find_place(reading, site, _find_read_offset(site.source, tree, name)),
            severity=Severity.WARNING if _is_decided_by_run(finding, asked_names) else None,
        )


def _check_inputs(
    reading: DocumentReader, site: TemplateSite, tree: TemplateTree, known_names: KnownNames
) -> None:
    """Report inputs that a template reads and the workload lacks, unless it asks for them.

    A request may bring them, so that one is refused only if it looks like one of the workload's,
    and warned of otherwise.
    """
    if not known_names.workload or not _WORKLOAD.search(site.source):
        return
    reads = input_reads.find_template_reads(tree)
    asked_keys = {input_read.keys[:1] for input_read in reads if input_read.is_asked}
    missing = {
        keys
        for input_read in reads
        if input_read.root in input_reads.WHOLE_NAMES and input_read.keys[:1] not in asked_keys
        if (keys := _first_missing(known_names.workload, input_read.keys))
    }
    for keys in sorted(missing):
        _report_input(reading, site, tree, known_names, keys)


def _first_missing(workload: Mapping[str, Any], keys: Keys) -> Keys | None:
    """Find how far a path leads to something that a mapping of the workload lacks."""
    level: Any = workload
    for place, key in enumerate(keys):
        if not isinstance(level, Mapping) or not level:
            return None
        if key not in level:
            return keys[: place + 1]
        level = level[key]
    return None


def _report_input(
    reading: DocumentReader,
    site: TemplateSite,
    tree: TemplateTree,
    known_names: KnownNames,
    keys: Keys,
) -> None:
    level: Any = known_names.workload
    for key in keys[:-1]:
        level = level[key]
    nearest_key = spelling.find_nearest_word(keys[-1], level)
    is_slip = nearest_key is not None and spelling.is_spelling_slip(keys[-1], nearest_key)
    # A request may bring what looks like none of the declared ones.
    is_open = not is_slip and reading.level is not Level.STRICT
    name = ".".join(keys)
    suggestion = (
        f"did you mean '{'.'.join((*keys[:-1], nearest_key))}'? " if nearest_key is not None else ""
    )
    reading.report_problem(
        "E303",
        site.path,
        f"the workload has no '{name}'",
        hint=f"{suggestion}declare what a request brings under workload, with null or a default",
        place=_find_place(reading, site, _find_read_offset(site.source, tree, f"workload.{name}")),
        severity=Severity.WARNING if is_open else None,
    )


def _is_decided_by_run(finding: NameFinding, asked_names: frozenset[str] | None) -> bool:
    """Tell whether a name may come with a run: by a request, or where its template asks for it."""
    if asked_names is None or not finding.is_unknown:
        return False
    return finding.is_open or finding.name.split(".")[0] in asked_names


def _find_read_offset(source: str, tree: TemplateTree, name: str) -> int:
    """Find the template that reads a name."""
    spans = list_template_spans(source)
    if len(spans) == 1:
        return spans[0][0]
    root, _, member = name.partition(".")
    line = next((node.lineno for node in tree.root.find_all(nodes.Name) if node.name == root), 1)
    word = re.compile(rf"\b{re.escape(member or root)}\b")
    for start, end in spans:
        if word.search(source, start, end):
            return start
    return _find_offset_on_line(source, line)
