"""Rendering is deterministic, and the closures mean what Jinja's own code means."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from noetl_playbook.templates import closures, jinja_fallback, output_forms, render_limits, syntax
from noetl_playbook.templates.closures import NotTranslatedError
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.scope import ScopeParts, TemplateScope
from noetl_playbook.views.output_view import OutputView
from noetl_playbook.views.result_view import ResultView

BODY = {"paging": {"hasMore": True, "page": 2}, "data": [{"id": "p1"}], "n": None}
HTTP = ResultView({"status_code": 200, "headers": {}, "body": BODY}, kind="http")
SQL = ResultView(
    {"rows": [{"x": 1}, {"x": 2}], "row_count": 2, "columns": ["x"], "status": "SELECT 2"},
    kind="postgres",
)
NAMES = {
    "a": {"b": {"c": 1}, "s": "text", "list": [1, 2, "3"], "none": None},
    "n": 5,
    "s": "5",
    "flag": True,
    "none": None,
    "get": HTTP,
    "rows": SQL,
    "five": ResultView(5),
    "listed": ResultView([1, {"k": "v"}]),
    "output": OutputView(HTTP, kind="http"),
    "bad": OutputView(error={"kind": "rate_limit", "http_status": 429, "retryable": True}),
}
SCOPE = TemplateScope(NAMES, ScopeParts(workload={"w": {"x": 0.5}}))

keys = st.sampled_from(
    ["b", "c", "s", "list", "none", "gone", "body", "data", "paging", "page", "status", "error"]
)
paths = st.builds(
    lambda root, rest: ".".join([root, *rest]),
    st.sampled_from([*NAMES, "w", "gone"]),
    st.lists(keys, max_size=3),
)
indexed = st.builds(
    lambda path, index: f"{path}[{index}]", paths, st.sampled_from(["0", "-1", "n"])
)
constants = st.sampled_from(["1", "0", "'5'", "''", "none", "true", "'success'", "[1]", "{'k': 1}"])
atoms = st.one_of(paths, indexed, constants)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(
        ["==", "!=", "<", ">=", "and", "or", "+", "-", "*", "//", "~", "in", "not in"]
    )
    filters = st.sampled_from(
        ["string", "int", "default(3)", "d('x', true)", "tojson", "sql_literal", "length", "list",
         "first", "upper", "join(',')", "float", "sort", "items | list"]
    )  # fmt: skip
    tests = st.sampled_from(["defined", "undefined", "none", "mapping", "string", "in [1, 5]"])
    methods = st.sampled_from(["items()", "get('b')", "upper()", "split(',')", "keys() | list"])
    return st.one_of(
        st.builds(lambda a, op, b: f"({a} {op} {b})", inner, operators, inner),
        st.builds(lambda a, f: f"({a} | {f})", inner, filters),
        st.builds(lambda a, t: f"({a} is {t})", inner, tests),
        st.builds(lambda a, m: f"({a}).{m}", inner, methods),
        st.builds(lambda a, k: f"({a}).{k}", inner, keys),
        st.builds(lambda a: f"(not {a})", inner),
        st.builds(lambda a: f"(-{a})", inner),
        st.builds(lambda a, b, c: f"({a} if {b} else {c})", inner, inner, inner),
        st.builds(lambda a, b: f"[{a}, {b}]", inner, inner),
        st.builds(lambda a: f"{{'k': {a}}}", inner),
    )


sources = st.recursive(atoms, grown, max_leaves=6)


def outcome(run: Any) -> tuple[str, Any]:
    """Run an expression; every fault is one outcome, whatever its words."""
    try:
        return "value", repr(output_forms.to_plain(run(SCOPE)))
    except (TemplateError, *render_limits.FAULTS):
        return "fault", None


@given(sources)
@example("(1 if bad.b.error.b else a)")
@settings(max_examples=500)
def test_the_fast_path_and_jinja_agree(source: str) -> None:
    tree = syntax.parse_template("{{ " + source + " }}")
    assert tree.value is not None
    try:
        fast = closures.translate_expression(tree.value)
    except NotTranslatedError:
        return
    assert outcome(fast) == outcome(jinja_fallback.compile_value_by_jinja(tree, tree.value))


@given(st.lists(sources, min_size=1, max_size=3))
@settings(max_examples=200)
def test_text_templates_agree_with_jinja(parts: list[str]) -> None:
    source = "".join("<{{ " + part + " }}>" for part in parts)
    compiled = compile_value(source)
    by_jinja = jinja_fallback.compile_text_by_jinja(syntax.parse_template(source), "text")
    try:
        expected: Any = by_jinja(SCOPE)
    except (TemplateError, *render_limits.FAULTS):
        expected = None
    try:
        found = compiled.render(SCOPE)
    except TemplateError:
        found = None
    assert found == expected


@given(sources)
@settings(max_examples=200)
def test_rendering_twice_gives_the_same_and_changes_nothing(source: str) -> None:
    before = repr(output_forms.to_plain({"a": NAMES["a"], "get": HTTP, "rows": SQL}))
    compiled = compile_value("{{ " + source + " }}")
    assert outcome(compiled.render) == outcome(compiled.render)
    assert repr(output_forms.to_plain({"a": NAMES["a"], "get": HTTP, "rows": SQL})) == before


@given(sources)
@settings(max_examples=200)
def test_a_template_reads_only_the_names_it_declares(source: str) -> None:
    compiled = compile_value("{{ " + source + " }}")
    read: set[str] = set()

    class Watched(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            read.add(name)
            return SCOPE[name]

    outcome(lambda _scope: compiled.render(Watched()))
    assert read <= compiled.names
    assert {path.split(".")[0] for path in compiled.paths} <= compiled.names
