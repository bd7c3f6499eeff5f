"""Documents become canonical playbooks; every fault has its code, place and way out."""

import msgspec
import pytest
from tests.support.canonical_document import build_document
from tests.support.playbooks import HEADER, a_playbook, a_step, codes, document, judged

from noetl_playbook.compat import dialect
from noetl_playbook.model.playbook import Loop, Playbook, Step
from noetl_playbook.parse.playbook import parse_playbook, parse_playbooks
from noetl_playbook.source.problems import Level, format_problem

NOOP = "- {step: s, tool: {kind: noop}}"
TO_END = "- {step: end, tool: {kind: noop}}"


def the_loop(step: Step) -> Loop:
    assert step.loop is not None
    return step.loop


def test_the_smallest_playbook_has_every_default() -> None:
    parsed = parse_playbook(f"{HEADER}workflow:\n  {NOOP}\n", level=Level.STRICT)
    assert parsed.problems == ()
    assert parsed.playbook is not None
    assert parsed.playbook.metadata.path == "test"
    assert parsed.playbook.workflow[0].tool[0].name == "s_task"
    assert parsed.playbook.executor.spec.policy.failure.mode == "fail_fast"


def test_a_playbook_survives_the_wire() -> None:
    playbook = a_playbook("""
        - step: load
          loop: {in: "{{ [1, 2] }}", iterator: n, spec: {mode: parallel}}
          tool:
            - {name: get, kind: http, url: "{{ n }}", assert: {returns: [body]}, timeout: 30s}
            - {kind: noop, set: {k: 1}}
          next: {arcs: [{step: load, on: loop.failed, when: "{{ false }}", set: {a: 1}}]}
        """)
    wire = msgspec.json.encode(playbook)
    assert msgspec.json.decode(wire, type=Playbook) == playbook
    step = msgspec.to_builtins(playbook.workflow[0])
    assert msgspec.convert(step, Step) == playbook.workflow[0]


def normalised_again(playbook: Playbook) -> Playbook:
    """Write a playbook as a document and read that strictly."""
    text = msgspec.json.encode(build_document(playbook)).decode()
    parsed = parse_playbook(text, level=Level.STRICT)
    assert parsed.playbook is not None, parsed.problems
    return parsed.playbook


def test_normalising_a_canonical_playbook_changes_nothing() -> None:
    once = a_playbook(
        """
        - step: load
          input: {a: 1}
          spec: {timeout: 5m, policy: {admit: {rules: [{when: "{{ true }}", then: {allow: true}}]}}}
          loop: {in: [1], iterator: i, spec: {mode: chunked, frame: {lease_seconds: 10}}}
          tool:
            - {name: get, kind: http, url: u, spec: {policy: {rules: [{else: {do: break}}]}}}
            - {kind: noop, set: {v: 1, ctx.c: 2}}
          output: {output_select: [count], accumulate: true}
          next: {arcs: [{step: load, on: loop.failed, set: {a: 1}}]}
        """,
        root="keychain: [{name: k, kind: static, map: {a: 1}}]\n",
    )
    twice = normalised_again(once)
    assert normalised_again(twice) == twice
    assert msgspec.structs.replace(once.workflow[0], input={}) == twice.workflow[0]
    assert once.keychain == twice.keychain


def test_tasks_are_named_and_take_the_input_of_the_step() -> None:
    step = a_step("""
        - step: s
          input: {a: 1, b: 2}
          tool:
            - {kind: noop, input: {b: 3}}
            - {name: two, kind: noop}
        """)
    assert [(task.name, task.input) for task in step.tool] == [
        ("task_0", {"a": 1, "b": 3}),
        ("two", {"a": 1, "b": 2}),
    ]


def test_alternative_spellings_of_fields_become_one() -> None:
    step = a_step("""
        - step: s
          tool:
            - {kind: http, endpoint: "http://h"}
            - {kind: postgres, auth: db, command: "SELECT 1"}
        """)
    assert step.tool[0].fields == {"url": "http://h"}
    assert step.tool[1].fields == {"query": "SELECT 1"}


def test_declared_types_are_coerced() -> None:
    playbook = a_playbook(
        """
        - step: s
          spec: {timeout: 5m}
          output: {inline_max_bytes: 64KiB}
          tool: {kind: noop, timeout: "500ms"}
        """,
        root="executor: {spec: {no_next_is_error: 'yes', policy: {limits: {max_steps: '7'}}}}\n",
    )
    step = playbook.workflow[0]
    assert playbook.executor.spec.no_next_is_error is True
    assert playbook.executor.spec.policy.limits == {"max_steps": 7}
    assert step.spec.policy.lifecycle.timeout_s == 300
    assert step.output is not None
    assert step.output.inline_max_bytes == 65_536
    assert step.tool[0].timeout == 0.5


@pytest.mark.parametrize(
    "rule",
    [
        "{else: {then: {do: break}}}",
        "{else: {do: break}}",
        "{else: null, then: {do: break}}",
    ],
)
def test_three_spellings_of_else_agree(rule: str) -> None:
    step = a_step(f"- {{step: s, tool: {{kind: noop, spec: {{policy: {{rules: [{rule}]}}}}}}}}")
    (found,) = step.tool[0].rules
    assert found.when is None
    assert found.then.do == "break"


def test_set_keys_say_their_scope() -> None:
    step = a_step("""
        - step: s
          set: {a: 1, ctx.b.c: 2, step.d: 3}
          tool:
            kind: noop
            set: {v: 1, iter.i: 2, ctx.c: 3}
            spec: {policy: {rules: [{else: {then: {do: continue, set: {r: 1, iter.x: 2}}}}]}}
        """)
    assert step.set == {"ctx.a": 1, "ctx.b.c": 2, "ctx.d": 3}
    assert step.tool[0].set == {"v": 1, "iter.i": 2, "ctx.c": 3}
    assert step.tool[0].rules[0].then.set == {"ctx.r": 1, "iter.x": 2}


@pytest.mark.parametrize(
    ("spec", "mode", "in_flight", "rows"),
    [
        ("{}", "sequential", 1, None),
        ("{mode: parallel}", "parallel", 10, None),
        ("{mode: chunked}", "chunked", 1, 100),
        ("{mode: chunked, chunk_size: 7}", "chunked", 1, 7),
        ("{mode: chunked, chunk_size: 7, frame: {size: 3}}", "chunked", 1, 3),
        ("{mode: parallel, frame: {max_rows: 5}}", "chunked", 10, 5),
        ("{mode: fanout}", "fanout", 64, 1),
    ],
)
def test_a_loop_states_its_defaults(spec: str, mode: str, in_flight: int, rows: object) -> None:
    loop = f"{{in: [1], iterator: i, spec: {spec}}}"
    step = a_step(f"- {{step: s, loop: {loop}, tool: {{kind: noop}}}}")
    found = the_loop(step).spec
    assert found.mode == mode
    assert found.max_in_flight == in_flight
    assert (found.frame.max_rows if found.frame else None) == rows
    assert found.policy.failure is not None
    assert found.policy.failure.mode == "drain"


def test_a_cursor_collects_nothing_and_does_its_best_unless_told_otherwise() -> None:
    text = """
        - step: s
          spec: {{policy: {{failure: {failure}}}}}
          loop:
            cursor: {{kind: postgres, auth: db, claim: "UPDATE q RETURNING id", params: [1]}}
            iterator: row
            spec: {{mode: cursor, max_in_flight: "{{{{ 4 }}}}"}}
          tool: {{kind: noop}}
        """
    loop = the_loop(a_step(text.format(failure="null")))
    assert loop.spec.collect == "none"
    assert loop.spec.policy.failure is not None
    assert loop.spec.policy.failure.mode == "best_effort"
    assert loop.cursor is not None
    assert loop.cursor.params == [1]
    assert loop.spec.max_in_flight == "{{ 4 }}"
    strict = the_loop(a_step(text.format(failure='{mode: fail_fast, max_failed: "5%"}')))
    assert strict.spec.policy.failure is not None
    assert strict.spec.policy.failure.max_failed == "5%"


def test_a_long_heartbeat_is_clamped_in_tolerant_mode() -> None:
    steps = """
        - step: s
          loop:
            in: "{{ [1] }}"
            iterator: i
            spec: {mode: chunked, frame: {lease_seconds: 30, heartbeat_seconds: 20}}
          tool: {kind: noop}
        """
    parsed = judged(steps)
    assert codes(parsed) == ["E502"]
    assert parsed.playbook is not None
    frame = the_loop(parsed.playbook.workflow[0]).spec.frame
    assert frame is not None
    assert frame.heartbeat_seconds == 10
    assert judged(steps, level=Level.STRICT).playbook is None


FAULTS = [
    ("E101", "- {step: s, step: t, tool: {kind: noop}}"),
    ("E102", ""),
    ("E103", "- {step: s, tool: {kind: noop}, descr: x}"),
    ("E103", "- {step: s, tool: {kind: http, url: x, methd: GET}}"),
    ("E104", "- {step: s, tool: {kind: noop}, spec: {timeout: soon}}"),
    ("E104", "- {step: s, tool: {kind: noop}, next: {spec: {mode: exclusiv}}}"),
    ("E104", "- {step: s, tool: {url: x}}"),
    ("E104", "- {tool: {kind: noop}}"),
    ("E104", "- 5"),
    ("E104", "- {step: s, tool: {kind: noop, spec: {policy: {rules: [{when: '{{ 1 }}'}]}}}}"),
    ("E104", "- {step: s, url: x}"),
    ("E105", "- {step: s, url: x, tool: {kind: http, url: y}}"),
    ("E106", "- {step: s}"),
    ("E201", f"{NOOP}\n{NOOP}"),
    ("E201", "- {step: s, tool: [{name: a, kind: noop}, {name: a, kind: noop}]}"),
    ("E201", "- {step: s, tool: {kind: noop, name: 'a b'}}"),
    ("E201", "- {step: s, tool: {kind: noop}, set: {'a b': 1}}"),
    ("E203", "- {step: s, tool: {kind: noop}, next: {arcs: [{step: gone}]}}"),
    ("E204", ("- {step: s, tool: {kind: noop, spec: {policy: {rules: "
             "[{else: {do: jump, to: x}}]}}}}")),
    ("E204", ("- {step: s, tool: {kind: noop, spec: {policy: {rules: "
             "[{else: {do: jump, to: previous}}]}}}}")),
    ("E205", f"{NOOP}\n- {{step: t, tool: {{kind: noop}}}}"),
    ("E206", ("- {step: s, tool: {kind: noop}, next: {arcs: [{step: t, on: call.partial}]}}\n"
             "- {step: t, tool: {kind: noop}, next: {arcs: [{step: s}]}}")),
    ("E301", "- {step: s, tool: {kind: http, url: '{{ a'}}"),
    ("E302", "- {step: s, tool: {kind: http, url: '{{ 1 | uper }}'}}"),
    ("E303", "- {step: s, tool: {kind: http, url: '{{ nowhere.x }}'}}"),
    ("E304", "- {step: s, tool: {kind: http, url: '{{ fanin.total }}'}}"),
    ("E304", "- {step: s, tool: {kind: noop}, set: {iter.x: 1}}"),
    ("E304", "- {step: s, tool: {kind: noop, result: '{{ iter.row }}'}}"),
    ("E304", "- {step: s, tool: {kind: noop}, set: {a: '{{ iter.row }}'}}"),
    ("E304", "- {step: s, tool: {kind: noop, result: '{{ loop_index }}'}}"),
    ("W907", ("- {step: s, loop: {in: [1], iterator: i, spec: {mode: parallel}}, "
             "tool: {kind: noop, set: {ctx.n: '{{ ctx.n + 1 }}'}}}")),
    ("W908", "- {step: output, tool: {kind: noop}}"),
    ("E401", "- {step: s, tool: {kind: htp}}"),
    ("E402", "- {step: s, tool: {kind: agent}}"),
    ("E403", "- {step: s, tool: {kind: http}}"),
    ("E403", "- {step: s, tool: {kind: postgres, auth: a}}"),
    ("E403", "- {step: s, tool: {kind: python, code: x, code_b64: y}}"),
    ("E403", "- {step: s, tool: {kind: postgres, query: x, command: y}}"),
    ("E501", "- {step: s, loop: {iterator: i}, tool: {kind: noop}}"),
    ("E501", "- {step: s, loop: {in: [1]}, tool: {kind: noop}}"),
    ("E501", "- {step: s, loop: {in: [1], iterator: i, spec: {mode: cursor}}, tool: {kind: noop}}"),
    ("E501", ("- {step: s, loop: {cursor: {kind: postgres, auth: a}, iterator: i}, "
             "tool: {kind: noop}}")),
    ("E503", ("- {step: s, loop: {cursor: {kind: postgres, auth: a, claim: DELETE}, iterator: i}, "
             "tool: {kind: noop}}")),
    ("E603", ("- {step: s, tool: {kind: noop, spec: {policy: {rules: "
             "[{else: {do: retry, attempts: 5000}}]}}}}")),
    ("E604", ("- {step: s, loop: {in: [1], iterator: i, spec: {mode: parallel, "
             "max_in_flight: 20000}}, tool: {kind: noop}}")),
    ("W905", "- {step: s, tool: {kind: noop}, next: {arcs: [{step: s, when: '1 > 0'}]}}"),
    ("W906", "- {step: s, tool: {kind: noop, result: yes}}"),
]  # fmt: skip
TOLERATED = {
    "E106",
    "E205",
    "E304",
    "E402",
    "E502",
    "E503",
    "W905",
    "W906",
    "W907",
    "W908",
}


@pytest.mark.parametrize(("code", "workflow"), FAULTS)
def test_each_fault_has_its_code_and_weight(code: str, workflow: str) -> None:
    parsed = judged(workflow)
    assert code in codes(parsed)
    assert (parsed.playbook is not None) is (code in TOLERATED)
    strict = judged(workflow, level=Level.STRICT)
    assert code in codes(strict)
    assert (strict.playbook is not None) is (
        code in {c for c in TOLERATED if c.startswith("W9")} | {"E205"}
    )


@pytest.mark.parametrize(
    ("root", "code"),
    [
        ("executor: {spec: {entry_step: gone}}\n", "E202"),
        ("executor: {requires: {tools: [htp]}}\n", "E401"),
        ("executor: []\n", "E104"),
        ("wrkload: {}\n", "E103"),
        ("vars: {a: 1}\n", "W901"),
        ("keychain: [{name: a, kind: static}, {name: a, kind: static}]\n", "E201"),
    ],
)
def test_faults_outside_the_workflow_are_found(root: str, code: str) -> None:
    assert code in codes(judged(NOOP, root=root))


@pytest.mark.parametrize(
    ("text", "codes_expected"),
    [
        ("- a", ["E101"]),
        ("a: [", ["E101"]),
        ("kind: Playbook\nmetadata: {name: a}\nworkflow:\n  " + NOOP, ["W901"]),
        ("apiVersion: x\nkind: Job\nmetadata: {}\n", ["E102", "E102", "E102", "E102"]),
    ],
)
def test_documents_that_are_no_playbooks_are_refused(text: str, codes_expected: list[str]) -> None:
    assert sorted(codes(parse_playbook(text))) == sorted(codes_expected)


def test_all_problems_are_reported_at_once_in_order_with_their_places() -> None:
    parsed = judged("""
        - step: load
          tool: {kind: http, url: x}
          next: {arcs: [{step: finsh}]}
        - step: finish
          tool: {kind: htp}
        - step: text
          tool:
            kind: postgres
            auth: db
            query: |
              SELECT 1;
              SELECT {{ a | uper }}
        """)
    lines = [format_problem(problem, file="f.yaml") for problem in parsed.problems]
    assert lines == [
        (
            "f.yaml:7:26: error E203 workflow[0].next.arcs[0].step: arc target 'finsh' is not a"
            " step of this workflow (did you mean 'finish'?)"
        ),
        "f.yaml:8:11: warning E205 workflow[1].step: step 'finish' cannot be reached from 'load'",
        (
            "f.yaml:9:18: error E401 workflow[1].tool.kind: unknown tool kind 'htp'"
            " (did you mean 'http'?)"
        ),
        "f.yaml:10:11: warning E205 workflow[2].step: step 'text' cannot be reached from 'load'",
        (
            "f.yaml:16:16: error E302 workflow[2].tool.query: unknown filter 'uper'"
            " (did you mean 'upper'?)"
        ),
    ]
    assert [problem.step for problem in parsed.problems] == [
        "load",
        "finish",
        "finish",
        "text",
        "text",
    ]


def test_names_that_can_resolve_are_not_reported() -> None:
    parsed = judged(
        """
        - step: a
          loop: {in: "{{ workload.xs }}", iterator: row, spec: {mode: chunked}}
          tool:
            - {name: get, kind: http, url: "{{ row.u }}{{ xs }}{{ row_rows }}", set: {body: 1}}
            - {kind: noop, result: "{{ body }}{{ get.x }}{{ iter.row }}{{ frame.id }}"}
          set: {total: "{{ fanin.total }}"}
          next: {arcs: [{step: b, when: "{{ event.name == 'loop.done' and total > now().x }}"}]}
        - {step: b, tool: {kind: noop, result: "{{ a.results }}{{ total }}{{ args.x }}{{ error }}"}}
        """,
        root="workload: {xs: [1]}\n",
        level=Level.STRICT,
    )
    assert parsed.problems == ()


@pytest.mark.parametrize(
    ("older", "canonical"),
    [
        ("- {step: s, tool: noop}", NOOP),
        ("- {name: s, type: noop}", NOOP),
        ("- {step: s, tool: {a: {kind: noop}, b: {kind: noop}}}",
         "- {step: s, tool: [{name: a, kind: noop}, {name: b, kind: noop}]}"),
        ("- {step: s, tool: [{a: {kind: noop}}]}", "- {step: s, tool: [{name: a, kind: noop}]}"),
        ("- {step: s, tool: http, url: u, method: GET}",
         "- {step: s, tool: {kind: http, url: u, method: GET}}"),
        ("- {step: s, tool: {kind: http, spec: {url: u}}}",
         "- {step: s, tool: {kind: http, url: u}}"),
        ("- {step: s, args: {a: 1}, tool: {kind: noop, with: {b: 2}}}",
         "- {step: s, input: {a: 1}, tool: {kind: noop, input: {b: 2}}}"),
        ("- {step: s, tool: {kind: sql, credential: db, timeout_seconds: 3, query: q}}",
         "- {step: s, tool: {kind: postgres, auth: db, timeout: 3, query: q}}"),
        ("- {step: s, tool: {kind: noop}, set_ctx: {a: 1}}",
         "- {step: s, tool: {kind: noop}, set: {ctx.a: 1}}"),
        ("- {step: s, tool: {kind: noop}, vars: {a: 1}}",
         "- {step: s, tool: {kind: noop}, set: {ctx.a: 1}}"),
        ("- {step: s, tool: {kind: noop}, timeout: 3}",
         "- {step: s, tool: {kind: noop}, spec: {timeout: 3}}"),
        ("- {step: s, tool: {kind: noop}, when: '{{ true }}'}",
         ("- {step: s, tool: {kind: noop}, spec: {policy: {admit: {rules: "
         "[{when: '{{ true }}', then: {allow: true}}, {else: {then: {allow: false}}}]}}}}")),
        (("- {step: s, tool: {kind: noop, eval: [{expr: '{{ 1 }}', do: break}, "
         "{else: {do: fail}}]}}"),
         ("- {step: s, tool: {kind: noop, spec: {policy: {rules: "
         "[{when: '{{ 1 }}', then: {do: break}}, {else: {do: fail}}]}}}}")),
        ("- {step: s, tool: {kind: noop, spec: {policy: [{else: {do: break}}]}}}",
         "- {step: s, tool: {kind: noop, spec: {policy: {rules: [{else: {do: break}}]}}}}"),
        ("- {step: s, tool: {kind: noop}, next: [{step: s, when: '{{ 1 }}', args: {a: 1}}]}",
         ("- {step: s, tool: {kind: noop}, next: {arcs: "
         "[{step: s, when: '{{ 1 }}', set: {ctx.a: 1}}]}}")),
        ("- {step: s, tool: {kind: noop}, next: [{when: '{{ 1 }}', then: [s, s]}, {else: [s]}]}",
         ("- {step: s, tool: {kind: noop}, next: {arcs: [{step: s, when: '{{ 1 }}'}, "
         "{step: s, when: '{{ 1 }}'}, {step: s}]}}")),
        ("- {step: s, tool: {kind: noop}, next: {arcs: [{step: s, condition: '{{ 1 }}'}]}}",
         "- {step: s, tool: {kind: noop}, next: {arcs: [{step: s, when: '{{ 1 }}'}]}}"),
        ("- {step: s, tool: {kind: noop}, loop: {collection: [1], element: x, mode: async}}",
         "- {step: s, tool: {kind: noop}, loop: {in: [1], iterator: x, spec: {mode: parallel}}}"),
        ("- {step: s, tool: {kind: noop}, loop: {collection: [1], concurrency: 3, mode: parallel}}",
         ("- {step: s, tool: {kind: noop}, loop: {in: [1], iterator: item, "
         "spec: {mode: parallel, max_in_flight: 3}}}")),
    ],
)  # fmt: skip
def test_older_forms_become_canonical_and_strict_refuses_them(older: str, canonical: str) -> None:
    today = dialect.write_undefined_mode(a_playbook(older), "strict")
    assert today == a_playbook(canonical)
    assert normalised_again(today) == normalised_again(a_playbook(canonical))
    strict = judged(older, level=Level.STRICT)
    assert strict.playbook is None
    assert all(problem.code.startswith("W90") for problem in strict.problems if problem.is_error)
    assert judged(canonical, level=Level.STRICT).playbook is not None


def test_root_vars_are_kept_for_the_start() -> None:
    assert a_playbook(NOOP, root="vars: {a: '{{ b }}'}\nworkload: {b: 1}\n").vars == {
        "a": "{{ b }}"
    }


def test_each_document_of_a_text_is_its_own_playbook() -> None:
    text = document(NOOP) + "---\n" + document("- {step: t}")
    first, second = parse_playbooks(text)
    assert first.playbook is not None
    assert second.playbook is not None
    assert second.playbook.workflow[0].step == "t"
    assert parse_playbook(text).playbook is None
