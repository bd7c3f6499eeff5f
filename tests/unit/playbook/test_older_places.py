"""Problems in older constructs show the place that was written, not the one that it became."""

import pytest
from tests.support.playbooks import HEADER, a_step, codes, judged

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level


def places(workflow: str, *, level: Level = Level.TOLERANT) -> dict[str, tuple[int, int]]:
    """The places of the faults that are about templates and values, by path."""
    parsed = parse_playbook(f"{HEADER}workflow:\n{workflow}", level=level)
    older = ("W901", "W902", "W903")
    return {
        problem.path: (problem.line, problem.column)
        for problem in parsed.problems
        if problem.code not in older
    }


def test_a_template_in_a_condition_of_a_retry_is_found_where_it_stands() -> None:
    found = places("""
  - step: s
    tool:
      kind: http
      url: u
      retry:
        - max_attempts: 2
          when: "{{ error | uper }}"
    retry:
      - when: "{{ response | uper }}"
        next_call:
          params: {page: "{{ response.page | uper }}"}
    sink:
      tool: postgres
      table: "{{ a | uper }}"
""")
    assert found == {
        "workflow[0].tool.retry[0].when": (12, 17),
        "workflow[0].retry[0].when": (14, 15),
        "workflow[0].retry[0].next_call.params.page": (16, 26),
        "workflow[0].sink.table": (19, 14),
    }


def test_faults_of_a_case_are_found_where_they_stand() -> None:
    found = places("""
  - step: s
    tool: {kind: http, url: u}
    case:
      - when: "{{ response.x }}"
        then:
          - set: {ctx.a: "{{ response | uper }}"}
          - next: [{step: gone}]
          - {sink: {tool: htp}}
      - when: "{{ a | uper }}"
        then: {fail: no}
""")
    assert found == {
        'workflow[0].case[0].then[0].set["ctx.a"]': (11, 26),
        "workflow[0].case[0].then[1].next[0].step": (12, 27),
        "workflow[0].case[0].then[2].sink.tool": (13, 27),
        "workflow[0].case[1].when": (14, 15),
        "workflow[0].case[1].then.fail": (15, 22),
    }


def test_tasks_around_an_older_construct_keep_their_places() -> None:
    found = places("""
  - step: s
    tool:
      - {name: a, kind: noop, result: "{{ a | uper }}"}
      - name: b
        kind: http
        url: u
        retry: {next_call: {params: {p: 1}}}
      - {name: c, kind: noop, with: {x: "{{ a | uper }}"}}
""")
    assert found == {
        "workflow[0].tool[0].result": (8, 39),
        "workflow[0].tool[2].with.x": (13, 41),
    }


@pytest.mark.parametrize(
    ("step", "path"),
    [
        ("tool: {kind: noop}, retry: {when: '{{ a }} and {{ b }}'}", "workflow[0].retry.when"),
        ("tool: {kind: noop}, retry: soon", "workflow[0].retry"),
        ("tool: {kind: noop}, retry: {backoff: often}", "workflow[0].retry.backoff"),
        ("tool: [{kind: noop}, {kind: noop}], retry: {collect: {}}", "workflow[0].retry"),
        ("tool: {kind: noop}, case: [{when: '{% if a %}1{% endif %}', then: {set: {a: 1}}}]",
         "workflow[0].case[0].when"),
        ("tool: {kind: http, url: '{% if ctx.a %}b{% endif %}'}, retry: {next_call: {url: x}}",
         "workflow[0].retry.next_call.url"),
        ("tool: {kind: noop}, retry: [{collect: {}}, {collect: {}}]",
         "workflow[0].retry[1].collect"),
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_refused_by_name(step: str, path: str) -> None:
    parsed = judged(f"- {{step: s, {step}}}")
    assert parsed.playbook is None
    assert [(problem.code, problem.path) for problem in parsed.problems if problem.is_error] == [
        ("E104", path)
    ]


def test_unknown_keys_of_older_constructs_are_told() -> None:
    parsed = judged("""
        - step: s
          tool: {kind: http, url: u}
          retry: {max_attempt: 3}
          case: [{when: "{{ 1 }}", then: {sett: {a: 1}}}]
          pagination: {next_pag: {}}
          sink: {tool: postgres, tabel: t}
        """)
    hints = {problem.path: problem.hint for problem in parsed.problems if problem.code == "E103"}
    assert hints == {
        "workflow[0].retry.max_attempt": "did you mean 'max_attempts'?",
        "workflow[0].case[0].then.sett": "did you mean 'set'?",
        "workflow[0].pagination.next_pag": "did you mean 'next_page'?",
        "workflow[0].sink.tabel": "did you mean 'table'?",
    }


def test_names_inside_text_and_names_that_a_template_binds_are_left_alone() -> None:
    step = a_step("""
        - step: s
          tool: {kind: http, url: u}
          retry:
            when: "{{ 'response' in response.names and ctx.response }}"
            next_call:
              params:
                a: "response {{ response.a }}"
                b: "{% for response in ctx.xs %}{{ response }}{% endfor %}"
        """)
    (rule, _) = step.tool[1].rules
    assert rule.when == "{{ ('response' in s_task.names and ctx.response) and iter.calls < 10000 }}"
    assert rule.then.set["iter.next_call"]["params"] == {
        "a": "response {{ s_task.a }}",
        "b": "{% for response in ctx.xs %}{{ response }}{% endfor %}",
    }


def test_outcome_keeps_a_meaning_that_the_document_gives_it() -> None:
    parsed = judged(
        "- {step: s, tool: {kind: noop, result: '{{ outcome.status }}'}}",
        root="workload: {outcome: {status: mine}}\n",
    )
    assert codes(parsed) == []


def test_a_step_whose_name_is_no_identifier_names_its_tasks_after_itself() -> None:
    step = a_step("- {step: a/b, tool: {kind: http, url: u}, sink: {tool: postgres, table: t}}")
    assert [task.name for task in step.tool] == ["a/b_task", "a/b_sink"]
    assert step.tool[1].fields["source"]["data"] == '{{ results["a/b_task"].body }}'


def test_a_collected_list_that_hides_the_data_of_a_response_is_told() -> None:
    text = """
        - step: s
          tool: {kind: python, code: "result = {'data': [1]}"}
          retry:
            when: "{{ response.data.more }}"
            collect: {path: data.rows}
            next_call: {input: {a: 1}}
        """
    parsed = judged(text)
    assert [(problem.code, problem.path) for problem in parsed.problems] == [
        ("W908", "workflow[0].retry.collect")
    ]
    assert codes(judged(text.replace("data.rows}", "data.rows, into: all}"))) == []
