# ruff: noqa: E501 - a strategy reads best with one form to a line
"""Whatever mixture of older and canonical spelling, normalising once is normalising twice."""

from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.canonical_document import build_document
from tests.support.playbooks import HEADER, told_at_both_levels

from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbook
from noetl_playbook.source.problems import Level

# What has no canonical form is refused by name.
REFUSED = {"only one entry may collect", "a step with several tasks cannot be repeated"}
OLDER = {"W902", "W903", "W904"}
ROOT = """
workload: {xs: [1], n: 1}
workbook:
  - {name: grade, tool: {kind: python, input: {n: null}, code: "result = n"}, assert: {expects: [n]}}
  - {name: fetch, tool: {kind: http, endpoint: "http://h", retry: 2, credential: c}}
"""

conditions = st.sampled_from(
    [
        *("{{ response.more }}", "response.page < 3", "{{ result.next is defined }}"),
        *("{{ error.status == 503 }}", "error is defined", "{{ output.status == 'error' }}"),
        *("{{ event.name == 'call.done' and response.ok }}", "event.name != 'call.error'"),
        *("{{ workload.n > 1 }}", "{{ 'response' == 'error' }}"),
    ]
)
values = st.sampled_from(
    [
        1,
        True,
        None,
        "text",
        "{{ response.x }}",
        "a {{ result.y }} b",
        [1, "{{ workload.n }}"],
        {"k": 1},
    ]
)
blocks = st.dictionaries(st.sampled_from(["a", "b", "ctx.c"]), values, min_size=1, max_size=2)
params = st.dictionaries(st.sampled_from(["page", "X-Size"]), values, min_size=1, max_size=2)


def some(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with some of its optional keys."""
    return st.fixed_dictionaries(required, optional=optional)


sinks = st.one_of(
    some(
        {"tool": st.just("postgres"), "table": st.just("t")},
        auth=st.just({"type": "postgres", "credential": "d"}),
        mode=st.just("upsert"),
        key=st.just("id"),
    ),
    some({"statement": st.just("INSERT")}, params=st.just(["{{ response.x }}"])),
    some({"tool": st.just("python"), "code": st.just("result = data")}, args=blocks),
    some({"file": st.just("out.csv")}, data=values),
)
retries = st.one_of(
    st.integers(1, 9),
    st.booleans(),
    st.lists(
        some(
            {},
            when=conditions,
            max_attempts=st.integers(1, 9),
            backoff=st.sampled_from([5, "linear", "2"]),
            retry_on=st.just(["timeout", "http_5xx"]),
            next_call=st.fixed_dictionaries({"params": params}),
        ),
        max_size=2,
    ),
    some(
        {"next_call": st.fixed_dictionaries({"params": params})},
        when=conditions,
        collect=some({}, path=st.just("rows"), into=st.just("all")),
    ),
)
actions = st.one_of(
    some({}, set=blocks, next=st.just("last"), sink=sinks),
    st.lists(
        some(
            {},
            fail=st.just("no {{ response.x }}"),
            call=st.just({"tool": "noop", "with": {"a": 1}}),
        ),
        min_size=1,
        max_size=2,
    ),
)
cases = st.lists(
    some({"when": conditions, "then": actions}, **{"else": actions}), min_size=1, max_size=2
)
evals = st.lists(
    st.fixed_dictionaries(
        {"expr": conditions, "do": st.sampled_from(["continue", "break", "retry"])}
    ),
    min_size=1,
    max_size=2,
)

tasks = st.one_of(
    some(
        {"kind": st.just("http")} | {"url": st.sampled_from(["u", "{{ workload.u }}", "http://{{ workload.u }}/x"])},
        params=params, retry=retries, sink=sinks, args=blocks, credential=st.just("c"), timeout_seconds=st.just(3),
        set=blocks, set_ctx=blocks, eval=evals, result=st.just({"inline_max_bytes": 5}),
        pagination=some({"continue_while": conditions}, next_page=st.fixed_dictionaries({"params": params}), merge_path=st.just("rows")),
    ),
    some({"kind": st.just("python"), "code": st.just("result = {}")}, **{"with": blocks, "retry": st.integers(1, 3), "spec": st.just({"libs": ["json"], "policy": [{"cond": "{{ 1 }}", "then": {"do": "break"}}]})}),
    some({"tool": st.just("noop")}, result=values, set_iter=blocks),
    some({"kind": st.just("workbook"), "name": st.sampled_from(["grade", "fetch"])}, input=blocks, timeout=st.just("5s")),
    st.just({"kind": "postgres", "db_host": "h", "sql": "SELECT 1"}),
)  # fmt: skip


def distinct(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name every task, half of them by an older label."""
    named: list[dict[str, Any]] = []
    for index, task in enumerate(found):
        called = {"task": task["name"]} if "name" in task else {}
        rest = {key: item for key, item in task.items() if key != "name"}
        own = {**rest, **called}
        named.append(
            {f"t{index}": own} if index % 2 and "kind" in own else {"name": f"t{index}", **own}
        )
    return named


loops = st.one_of(
    some(
        {"in": st.just([1]), "iterator": st.just("x")},
        spec=some({}, mode=st.just("parallel"), max_concurrency=st.just(3)),
    ),
    some(
        {"collection": st.just("{{ workload.xs }}")},
        element=st.just("x"),
        mode=st.sampled_from(["async", "sequential"]),
        sink=sinks,
    ),
)
followings = st.one_of(
    st.just("last"),
    st.just(["last"]),
    st.just([{"step": "last", "when": "{{ workload.n }}", "args": {"a": 1}}]),
    st.just([{"when": "{{ workload.n }}", "then": ["last"]}, {"else": [{"step": "last"}]}]),
    st.just(
        {
            "spec": {"mode": "inclusive"},
            "arcs": [{"step": "last", "condition": "{{ 1 }}", "payload": {"b": 2}}],
        }
    ),
)
steps = st.one_of(
    some({"tool": tasks}, retry=retries, case=cases, loop=loops, next=followings, when=conditions, vars=blocks, sink=sinks, args=blocks, timeout=st.just("3s")),
    some({"tool": st.lists(tasks, min_size=1, max_size=3).map(distinct)}, case=cases, loop=loops, next=followings, sink=sinks, retry=st.integers(1, 3)),
    some({"tool": st.just("http"), "url": st.just("u")}, params=params, retry=retries, save=sinks, loop=loops),
)  # fmt: skip
workflows = st.lists(steps, min_size=1, max_size=2)


def read(workflow: Any, *, level: Level = Level.TOLERANT) -> ParsedPlaybook:
    """JSON is YAML; it keeps the test independent of how a dumper quotes."""
    return parse_playbook(
        f"{HEADER}{ROOT}workflow: {msgspec.json.encode(workflow).decode()}\n", level=level
    )


def is_read_by(path: tuple[str, ...], reads: tuple[tuple[str, ...], ...] | None) -> bool:
    """Tell whether inputs that are read have this one among them."""
    return any(path[: len(read_path)] == read_path for read_path in reads or ())


@given(workflows)
@example([{"tool": {"kind": "python", "code": "", "with": {"a": 1}}, "args": {"a": "{{ n }}"}}])
@settings(max_examples=300)
def test_what_is_normalised_is_normal(workflow: list[dict[str, Any]]) -> None:
    named = [{"step": f"s{index}", **step} for index, step in enumerate(workflow)]
    parsed = read([*named, {"step": "last", "tool": {"kind": "noop"}}])
    if parsed.playbook is None:
        assert {problem.message for problem in parsed.problems if problem.is_error} <= REFUSED
        return
    again = parse_playbook(msgspec.json.encode(build_document(parsed.playbook)).decode())
    assert again.playbook is not None
    # A step's template that each of its tasks replaces is checked, and is in no normal form.
    reads = again.playbook.inputs
    assert again.playbook == msgspec.structs.replace(parsed.playbook, inputs=reads)
    assert all(is_read_by(path, parsed.playbook.inputs) for path in reads or ())
    assert not OLDER & {
        problem.code for problem in again.problems if problem.path[:8] == "workflow"
    }


words = st.sampled_from(
    [
        *("step", "tool", "kind", "http", "noop", "python", "url", "code", "retry", "when", "then"),
        *("else", "case", "sink", "save", "next", "next_call", "collect", "path", "params", "set"),
        *("pagination", "continue_while", "next_page", "merge_path", "iterator", "items", "item"),
        *(
            "call",
            "fail",
            "args",
            "with",
            "eval",
            "expr",
            "do",
            "result",
            "spec",
            "policy",
            "table",
        ),
        *("workbook", "name", "grade", "task", "input", "loop", "collection", "max_attempts"),
        *(
            "backoff",
            "retry_on",
            "retry_on_status",
            "auth",
            "credential",
            "data",
            "vars",
            "outcome",
        ),
        *(
            "{{ response.a }}",
            "{{ outcome.result }}",
            "{{ a }} b",
            "{{ a",
            "{% if a %}b{% endif %}",
        ),
        *("response", "event.name == 'call.done'", "a-b", "x y", "statement", "storage", "file"),
    ]
)
anything = st.recursive(
    st.one_of(words, st.integers(-5, 5), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(words, anything, max_size=7), max_size=3))
@example([{"sink": {"tool": [], "step": None, "statement": "{{ response.a }}"}}])
@settings(max_examples=400)
def test_any_older_construct_gives_a_playbook_or_an_error(workflow: list[dict[str, Any]]) -> None:
    named = [{"step": f"s{index}", **step} for index, step in enumerate(workflow)]
    tolerant, strict = read(named), read(named, level=Level.STRICT)
    assert (tolerant.playbook is None) == any(problem.is_error for problem in tolerant.problems)
    problems = [(problem.code, problem.path) for problem in tolerant.problems]
    assert problems == told_at_both_levels(strict)
    if tolerant.playbook is not None:
        again = parse_playbook(msgspec.json.encode(build_document(tolerant.playbook)).decode())
        assert again.playbook == tolerant.playbook
