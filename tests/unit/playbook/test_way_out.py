"""What a problem says besides its place: the nearest name, the exact sentence, what to write."""

import pytest
from tests.support.playbooks import document, judged

from noetl_playbook.parse.playbook import parse_playbook, parse_playbooks
from noetl_playbook.source.document_reader import HINTS_MAX, PROBLEMS_MAX
from noetl_playbook.source.problems import Level, format_problem

NOOP = "tool: {kind: noop}"
ARC = "next: {{arcs: [{}]}}"
FRAMED = "loop: {{in: [1], iterator: i, spec: {{mode: chunked, frame: {{{}}}}}}}"
RAW = "text that keeps its braces stands between {% raw %} and {% endraw %}"
UNCLOSED = "close what is opened here: }}, %} or an end tag is missing"


@pytest.mark.parametrize(
    ("code", "workflow", "meant"),
    [
        ("E103", f"- {{step: a, nxet: {{}}, {NOOP}}}", "next"),
        ("E103", "- {step: a, tool: {kind: http, url: u, hedaers: {}}}", "headers"),
        ("E103", f"- {{step: a, {NOOP}, {ARC.format('{step: a, wehn: x}')}}}", "when"),
        ("E103", f"- {{step: a, paginaton: {{}}, {NOOP}}}", "pagination"),
        ("E103", "- {step: a, tool: {kind: http, url: u, paginaton: {}}}", "pagination"),
        ("E103", "- {step: a, tool: {kind: http, url: u, retyr: {}}}", "retry"),
        ("E401", "- {step: a, tool: {kind: psotgres, auth: d, query: q}}", "postgres"),
        ("E104", f"- {{step: a, {NOOP}, next: {{spec: {{mode: inclusve}}}}}}", "inclusive"),
        ("E104", "- {step: a, tool: {kind: http, url: u, method: GTE}}", "GET"),
        ("E103", "- {step: a, tool: {kind: noop, spec: {polcy: {rules: []}}}}", "policy"),
        ("E103", "- {step: a, tool: {kind: python, script: {uri: a, sorce: {}}}}", "source"),
        ("E104", f"- {{step: a, {NOOP}, {ARC.format('{step: a, on: call.dnoe}')}}}", "call.done"),
        ("E104", f"- {{step: a, spec: {{loop_mode: fanot}}, {NOOP}}}", "fanout"),
        ("E104", f"- {{step: a, {FRAMED.format('engine: sparkk')}, {NOOP}}}", "spark"),
        ("E104", "- {step: a, tool: {kind: http, url: u, auth: {typ: basic, x: y}}}", "type"),
        ("E104", "- {step: a, tool: {kind: http, url: u, auth: {source: adcc}}}", "adc"),
        ("E203", f"- {{step: finish, {NOOP}, {ARC.format('{step: finsih}')}}}", "finish"),
        (
            "E204",
            (
                "- {step: a, tool: {name: fetch, kind: noop, spec: {policy: {rules:"
                " [{else: {do: jump, to: fecth}}]}}}}"
            ),
            "fetch",
        ),
        ("E202", "- {step: a, tool: {kind: workbook, name: gradee}}", "grade"),
        ("E302", "- {step: a, tool: {kind: noop, result: '{{ 1 | flaot }}'}}", "float"),
        ("E302", "- {step: a, tool: {kind: noop, result: '{{ a is defind }}'}}", "defined"),
        ("E303", "- {step: a, tool: {kind: noop, result: '{{ wrokload.x }}'}}", "workload"),
        ("E303", "- {step: a, tool: {kind: noop, result: '{{ regoin }}'}}", "region"),
        ("E303", "- {step: a, tool: {kind: noop, result: '{{ steps.b.x }}'}}", "steps.a"),
        (
            "E304",
            (
                "- {step: a, loop: {in: [1], iterator: patient},"
                " tool: {kind: noop, result: '{{ iter.pateint }}'}}"
            ),
            "iter.patient",
        ),
    ],
)
def test_the_nearest_name_is_offered(code: str, workflow: str, meant: str) -> None:
    root = "workload: {region: eu}\nworkbook: [{name: grade, tool: {kind: noop}}]\n"
    problems = [problem for problem in judged(workflow, root=root).problems if problem.code == code]
    assert [item.hint for item in problems] == [f"did you mean '{meant}'?"]


def test_a_reserved_kind_is_told_in_the_sentence_of_the_language() -> None:
    (problem,) = judged("- {step: a, tool: {kind: agent}}", level=Level.STRICT).problems
    assert format_problem(problem, file="f.yaml").endswith(
        "error E402 workflow[0].tool.kind: kind 'agent' is reserved and not available;"
        " call it with kind http, python or external"
    )


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ("kind: shell, cmds: [\"docker ps --format '{{.Names}}'\"]", RAW),
        ("kind: postgres, auth: d, query: \"SELECT '{{1,2},{3,4}}'::int[]\"", RAW),
        ("kind: noop, result: '{{ workload.region'", UNCLOSED),
        ("kind: noop, result: '{% if 1 %}a'", UNCLOSED),
        ("kind: noop, result: \"{% include 'a' %}\"", None),
    ],
)
def test_braces_that_open_no_template_are_told_how_to_be_kept(task: str, hint: str | None) -> None:
    (problem,) = judged(f"- {{step: a, tool: {{{task}}}}}").problems
    assert (problem.code, problem.hint) == ("E301", hint)


def test_a_bare_condition_is_not_told_of_braces_that_it_does_not_have() -> None:
    problems = judged(f"- {{step: a, {NOOP}, {ARC.format('{step: a, when: a b}')}}}").problems
    assert [problem.hint for problem in problems if problem.code == "E301"] == [None]


@pytest.mark.parametrize(
    ("metadata", "message", "hint"),
    [
        ("{name: [a]}", "metadata.name is text, found a list", "write metadata: {name: …}"),
        ("{name: '/'}", "metadata.name is empty", None),
        ("{path: a}", "metadata.name is required", None),
        ("a", "metadata is 'a', not a mapping", "write metadata: {name: …}"),
    ],
)
def test_a_playbook_without_a_name_is_told_what_is_wrong_with_it(
    metadata: str, message: str, hint: str | None
) -> None:
    text = document(f"- {{step: a, {NOOP}}}").replace("{name: test}", metadata)
    (problem,) = parse_playbook(text).problems
    assert (problem.code, problem.message, problem.hint) == ("E102", message, hint)


def test_a_template_in_sql_shows_how_to_bind_it() -> None:
    step = "- {step: a, tool: {kind: postgres, auth: d, query: \"SELECT '{{ ctx.name }}'\"}}"
    assert judged(step).problems == ()
    (problem,) = judged(step, level=Level.STRICT).problems
    assert problem.code == "W909"
    assert not problem.is_error
    assert problem.hint is not None
    assert 'params: ["{{ ctx.name }}"]' in problem.hint


@pytest.mark.parametrize(
    "expression",
    [
        *("1", "workload.n | int", "workload.n | float", "workload.n | sql_literal"),
        *("workload.n | sql_ident", "workload.n | to_number", "execution_id", "1 + 2"),
        *("1 if workload.n else 2", "workload.n | default(1) | int", "workload.n | length"),
    ],
)
def test_what_cannot_change_a_statement_is_not_mentioned(expression: str) -> None:
    step = (
        f"- {{step: a, tool: {{kind: postgres, auth: d, query: 'SELECT {{{{ {expression} }}}}'}}}}"
    )
    assert judged(step, level=Level.STRICT).problems == ()


@pytest.mark.parametrize(
    "expression", ["workload.n | string", "workload.n | int | string", "workload.n ~ 1", "[1]"]
)
def test_what_could_change_a_statement_is(expression: str) -> None:
    step = (
        f"- {{step: a, tool: {{kind: postgres, auth: d, query: 'SELECT {{{{ {expression} }}}}'}}}}"
    )
    assert [problem.code for problem in judged(step, level=Level.STRICT).problems] == ["W909"]


def test_problems_have_a_maximum_that_is_told() -> None:
    keys = ", ".join(f"unknown{i}: 1" for i in range(PROBLEMS_MAX + 5))
    parsed = judged(f"- {{step: a, {NOOP}, {keys}}}")
    assert len(parsed.problems) == PROBLEMS_MAX + 1
    assert parsed.problems[0].code == "W910"
    assert parsed.playbook is None
    nearly = ", ".join(f"desk{i:03}: 1" for i in range(HINTS_MAX + 50))
    hinted = [
        problem for problem in judged(f"- {{step: a, {NOOP}, {nearly}}}").problems if problem.hint
    ]
    assert len(hinted) <= HINTS_MAX


def test_a_problem_in_a_later_document_has_its_place_in_the_file() -> None:
    text = document(f"- {{step: a, {NOOP}}}") + "---\n" + document("- {step: a, tool: {kind: nop}}")
    first, second = parse_playbooks(text)
    assert first.problems == ()
    assert [(problem.line, problem.column) for problem in second.problems] == [(11, 28)]
