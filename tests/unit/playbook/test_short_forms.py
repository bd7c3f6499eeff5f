"""Short forms are forms of today: no warning, the same playbook as the long ones at both levels."""

import pytest
from jsonschema import Draft202012Validator
from tests.support.playbooks import document

from noetl_playbook.compat.retry import WORTH_A_RETRY
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbook
from noetl_playbook.schema import build_document_schema
from noetl_playbook.source.problems import Level
from noetl_playbook.source.yaml_document import read_document

VALIDATOR = Draft202012Validator(build_document_schema())
NOOP = "tool: {kind: noop}"
CALL = "kind: http, url: u"
ONCE_MORE = (
    f"{{when: \"{{{{ output.status == 'error' and ({WORTH_A_RETRY}) }}}}\", "
    "then: {do: retry, attempts: 3}}"
)
ENDS = f"- {{step: b, {NOOP}}}\n- {{step: c, {NOOP}}}\n"


def both(step: str) -> str:
    return document(f"- {{step: a, {step}}}\n{ENDS}")


def told(parsed_playbook: ParsedPlaybook) -> list[tuple[str, str]]:
    """List what is said but for steps that nothing leads to."""
    return [
        (problem.code, problem.path)
        for problem in parsed_playbook.problems
        if problem.code != "E205"
    ]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (f"{NOOP}, next: b", f"{NOOP}, next: {{spec: {{mode: inclusive}}, arcs: [{{step: b}}]}}"),
        (
            f"{NOOP}, next: [b, c]",
            f"{NOOP}, next: {{spec: {{mode: inclusive}}, arcs: [{{step: b}}, {{step: c}}]}}",
        ),
        (
            f'{NOOP}, next: [{{step: b, when: "{{{{ true }}}}"}}, c]',
            f'{NOOP}, next: {{arcs: [{{step: b, when: "{{{{ true }}}}"}}, {{step: c}}]}}',
        ),
        (
            f"tool: {{{CALL}, retry: {{max_attempts: 3}}}}",
            f"tool: {{{CALL}, spec: {{policy: {{rules: [{ONCE_MORE}]}}}}}}",
        ),
        (
            f"tool: {{{CALL}}}, retry: true",
            f"tool: {{{CALL}, spec: {{policy: {{rules: [{ONCE_MORE}]}}}}}}",
        ),
    ],
)
@pytest.mark.parametrize("level", list(Level))
def test_a_short_form_is_the_long_one(short: str, long: str, level: Level) -> None:
    playbook = parse_playbook(both(short), level=level)
    assert told(playbook) == []
    assert playbook.playbook is not None
    canonical = parse_playbook(both(long), level=level).playbook
    assert canonical is not None
    assert playbook.playbook == canonical
    assert list(VALIDATOR.iter_errors(read_document(both(short)).value)) == []


@pytest.mark.parametrize("level", list(Level))
def test_pages_are_fetched_and_collected_by_a_short_form(level: Level) -> None:
    pages = (
        'continue_while: "{{ response.more }}", next_page: {params: {page: 2}}, merge_path: rows'
    )
    text = both(f"tool: {{{CALL}, params: {{page: 1}}, pagination: {{{pages}}}}}")
    playbook = parse_playbook(text, level=level)
    assert told(playbook) == []
    assert playbook.playbook is not None
    assert [task.name for task in playbook.playbook.workflow[0].tool] == ["a_task", "a_task__page"]
    assert list(VALIDATOR.iter_errors(read_document(text).value)) == []


def test_a_sink_inside_a_retry_is_still_an_older_form() -> None:
    sink = "{tool: postgres, auth: d, table: t}"
    text = both(f'tool: {{{CALL}, retry: {{when: "{{{{ response.more }}}}", sink: {sink}}}}}')
    playbook = parse_playbook(text)
    assert told(playbook) == [("W903", "workflow[0].tool.retry")]


def test_short_forms_keep_the_rules_of_today() -> None:
    wrong = both(f"{NOOP}, retry: 3, next: b, nxt: c")
    playbook = parse_playbook(wrong)
    assert told(playbook) == [("E103", "workflow[0].nxt")]
    assert playbook.playbook is None
