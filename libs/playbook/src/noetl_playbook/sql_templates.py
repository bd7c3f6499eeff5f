"""Templates inside SQL text: only what cannot change the statement goes without a word."""

from jinja2 import nodes

from noetl_playbook import places
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading, Site
from noetl_playbook.syntax import Tree

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


def check(reading: Reading, site: Site, tree: Tree) -> None:
    """Report the first expression of a statement that could change it."""
    if not _is_sql(reading, site.path):
        return
    emitted = _emitted(tree)
    unsafe = next((number for number, node in enumerate(emitted) if not _is_safe(node)), None)
    if unsafe is None:
        return
    starts = [each for each in places.openers(site.source) if site.source.startswith("{{", each)]
    offset = starts[unsafe] if len(starts) == len(emitted) else starts[0] if starts else 0
    reading.report(
        "W909",
        site.path,
        "a template inside SQL text can change the statement",
        hint="bind the value: write $1 in the text and params: "
        f'["{_expression(site.source, offset)}"] beside it',
        place=places.of_template(reading.document, reading.origin(site.path), site.source, offset),
    )


def _is_sql(reading: Reading, path: Path) -> bool:
    match path:
        case ("workflow", int(), "loop", "cursor", "claim"):
            return True
        case (*_, "source" | "target", "query"):
            return (task := reading.task_at(path)) is not None and task.kind == "transfer"
        case _:
            task = reading.task_at(path)
            if task is None or task.kind not in _SQL_KINDS:
                return False
            inside = [
                key for key in path[len(task.path) :] if isinstance(key, str) and key != "spec"
            ]
            return len(inside) == 1 and inside[0] in _SQL_FIELDS


def _emitted(tree: Tree) -> list[nodes.Expr]:
    """List the expressions of a template in the order of the text."""
    outputs = sorted(tree.root.find_all(nodes.Output), key=lambda each: each.lineno)
    return [
        node
        for output in outputs
        for node in output.nodes
        if not isinstance(node, nodes.TemplateData)
    ]


def _is_safe(node: nodes.Expr) -> bool:
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
            return _is_safe(left) and _is_safe(right)
        case nodes.CondExpr(expr1=first, expr2=second):
            return _is_safe(first) and second is not None and _is_safe(second)
        case _:
            return False


def _expression(source: str, offset: int) -> str:
    text = " ".join(source[offset : source.find("}}", offset) + 2].split())
    return text if 0 < len(text) <= _SHOWN_CHARACTERS_MAX else "{{ … }}"
