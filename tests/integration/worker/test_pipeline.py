# ruff: noqa: E501 - a playbook reads best with one task to a line
"""The rules of pipelines, attempts and policies, over a scripted HTTP server."""

from typing import Any

import pytest
from tests.support.scripted import Script, says
from tests.support.working import Bench, command_of, is_stored

from noetl_contracts.commands.command_work import ItemWork, StepResult
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed, CommandStarted, Fact


def completed(facts: list[Fact]) -> CommandCompleted:
    assert isinstance(facts[0], CommandStarted)
    assert isinstance(facts[-1], CommandCompleted), facts[-1]
    return facts[-1]


def failed(facts: list[Fact]) -> CommandFailed:
    assert isinstance(facts[-1], CommandFailed), facts[-1]
    return facts[-1]


async def result_of(worker: Bench, step: str, **about: Any) -> Any:
    return await worker.value(completed(await worker.run(command_of(step, **about))).result)


async def test_a_noop_returns_its_rendered_result(worker: Bench) -> None:
    step = """
  - step: s
    tool: {kind: noop, result: {n: "{{ workload.n + 1 }}", t: "{{ workload.n }} of {{ ctx.m }}"}}
"""
    assert await result_of(worker, step, workload={"n": 1}, ctx={"m": 3}) == {"n": 2, "t": "1 of 3"}


async def test_values_reach_later_tasks_by_every_path(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, result: {x: 1, y: 1}, set: {v: "{{ output.x + 10 }}"}}
      - {name: b, kind: noop, result: {x: 2}}
      - name: c
        kind: noop
        result: {prev: "{{ _prev.x }}", of_a: "{{ results.a.x }}", bare: "{{ a.y }}", v: "{{ v }}",
                 out: "{{ output.data.x }}", own: "{{ s.b.x }}", status: "{{ output.status }}"}
"""
    found = await result_of(worker, step)
    assert found["results"]["c"] == {
        "prev": 2,
        "of_a": 1,
        "bare": 1,
        "v": 11,
        "out": 2,
        "own": 2,
        "status": "ok",
    }
    assert (found["a"]["x"], found["b"]["x"], found["y"]) == (1, 2, 1)


async def test_ctx_is_visible_at_once_and_handed_in_by_top_level_key(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, set: {ctx.p.q: 1, iter.i: 5}}
      - {name: b, kind: noop, result: {q: "{{ ctx.p.q }}", r: "{{ ctx.p.r }}", i: "{{ iter.i }}"}, set: {ctx.n: "{{ output.q }}"}}
"""
    end = completed(await worker.run(command_of(step, ctx={"p": {"r": 2}, "z": 0})))
    assert end.patch == {"p": {"q": 1, "r": 2}, "n": 1}
    assert (await worker.value(end.result))["b"] == {"q": 1, "r": 2, "i": 5}


async def test_a_set_block_is_rendered_as_a_whole_before_it_is_applied(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, set: {iter.x: 1, iter.y: 2}}
      - {name: b, kind: noop, set: {iter.x: "{{ iter.y }}", iter.y: "{{ iter.x }}"}}
      - {name: c, kind: noop, result: ["{{ iter.x }}", "{{ iter.y }}"]}
"""
    found = await result_of(worker, step)
    assert found == [2, 1]


async def test_retries_follow_the_rule_and_count_attempts(worker: Bench, server: Script) -> None:
    server.answers(says(status=503), says(status=503), says({"ok": True}))
    step = f"""
  - step: s
    tool:
      kind: http
      url: "{server.url}/x"
      headers: {{X-Attempt: "{{{{ _attempt }}}}"}}
      spec: {{policy: {{rules: [
        {{when: "{{{{ output.error.retryable }}}}", then: {{do: retry, attempts: 3, delay: 0.01, set: {{ctx.tries: "{{{{ _attempt }}}}"}}}}}}]}}}}
"""
    end = completed(await worker.run(command_of(step)))
    assert [seen.headers["X-Attempt"] for seen in server.seen] == ["1", "2", "3"]
    assert len({seen.headers["Idempotency-Key"] for seen in server.seen}) == 1
    assert end.patch == {"tries": 2}
    assert [(item.task, item.attempt, item.kind, item.code) for item in end.tries] == [
        ("s_task", 1, "server_error", "HTTP_503"),
        ("s_task", 2, "server_error", "HTTP_503"),
    ]
    assert all("answered 503" in item.message for item in end.tries)
    assert end.tries[0].at <= end.tries[1].at
    assert (await worker.value(end.result))["data"] == {"ok": True}


async def test_an_exhausted_retry_skips_the_else_and_fails(worker: Bench, server: Script) -> None:
    server.answers(says({"why": "busy"}, status=503))
    step = f"""
  - step: s
    tool:
      kind: http
      url: "{server.url}/x"
      spec: {{policy: {{rules: [
        {{when: "{{{{ output.error.kind == 'server_error' }}}}", then: {{do: retry, attempts: 2, delay: 0.01}}}},
        {{else: {{then: {{do: continue}}}}}}]}}}}
"""
    end = failed(await worker.run(command_of(step)))
    assert (
        end.error.kind,
        end.error.status,
        end.error.step,
        end.error.task,
        end.error.attempt,
    ) == (*("server_error", 503, "s", "s_task", 2),)
    assert [(item.attempt, item.kind) for item in end.error.tries] == [(1, "server_error")]
    assert end.result is not None
    assert (await worker.value(end.result))["body"] == {"why": "busy"}
    assert len(server.seen) == 2


async def test_a_tolerated_error_leaves_a_failure_record(worker: Bench, server: Script) -> None:
    server.answers(says(status=404))
    step = f"""
  - step: s
    tool:
      - {{name: a, kind: noop, result: {{x: 1}}}}
      - name: get
        kind: http
        url: "{server.url}/x"
        spec: {{policy: {{rules: [{{when: "{{{{ output.http.status == 404 }}}}", then: {{do: continue, set: {{ctx.missing: true}}}}}}]}}}}
      - {{name: c, kind: noop, result: {{prev: "{{{{ _prev.x }}}}", failed: "{{{{ get.status }}}}", kind: "{{{{ get.error.kind }}}}"}}}}
"""
    end = completed(await worker.run(command_of(step)))
    assert end.patch == {"missing": True}
    found = await worker.value(end.result)
    assert found["c"] == {"prev": 1, "failed": "error", "kind": "not_found"}


async def test_a_break_ends_the_pipeline_well(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, spec: {policy: {rules: [{else: {then: {do: break}}}]}}}
      - {name: b, kind: noop, set: {ctx.ran: true}}
"""
    end = completed(await worker.run(command_of(step)))
    assert end.patch == {}


async def test_a_rule_can_fail_what_succeeded(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      kind: noop
      result: {id: 7}
      spec: {policy: {rules: [{when: "{{ output.data.id != 8 }}", then: {do: fail, message: "got {{ output.id }}", set: {ctx.bad: true}}}]}}
"""
    end = failed(await worker.run(command_of(step)))
    assert (end.error.kind, end.error.message, end.patch) == ("policy", "got 7", {"bad": True})


@pytest.mark.parametrize(
    ("on_unmatched", "status", "ends_well"),
    [
        ("default", 200, True),
        ("default", 500, False),
        ("continue", 500, True),
        ("fail", 200, False),
    ],
)
async def test_what_no_rule_decides_follows_on_unmatched(
    worker: Bench, server: Script, on_unmatched: str, status: int, *, ends_well: bool
) -> None:
    server.answers(says({}, status=status))
    step = f"""
  - step: s
    tool:
      kind: http
      url: "{server.url}/x"
      spec: {{policy: {{on_unmatched: {on_unmatched}, rules: [{{when: "{{{{ output.http.status == 1 }}}}", then: {{do: break}}}}]}}}}
"""
    facts = await worker.run(command_of(step))
    assert isinstance(facts[-1], CommandCompleted if ends_well else CommandFailed)


async def test_pages_are_fetched_by_jumping_and_accumulated(worker: Bench, server: Script) -> None:
    server.answers(
        says({"items": [1, 2], "paging": {"hasMore": True}}),
        says({"items": [3], "paging": {"hasMore": True}}),
        says({"items": [4], "paging": {"hasMore": False}}),
    )
    step = f"""
  - step: pull
    tool:
      - {{name: init, kind: noop, spec: {{policy: {{rules: [{{else: {{then: {{do: continue, set: {{iter.page: 1}}}}}}}}]}}}}}}
      - name: get
        kind: http
        url: "{server.url}/items"
        params: {{page: "{{{{ iter.page }}}}", size: 100, none: null, flag: true, many: [1, 2]}}
        output: {{accumulate: {{strategy: append, merge_path: items, manifest_as: all_items}}}}
      - name: again
        kind: noop
        spec: {{policy: {{rules: [
          {{when: "{{{{ get.paging.hasMore }}}}", then: {{do: jump, to: get, set: {{iter.page: "{{{{ iter.page + 1 }}}}"}}}}}},
          {{else: {{then: {{do: break}}}}}}]}}}}
"""
    found = await result_of(worker, step)
    assert found["all_items"] == [1, 2, 3, 4]
    assert [seen.query["page"] for seen in server.seen] == ["1", "2", "3"]
    assert "none" not in server.seen[0].query
    assert server.seen[0].query["flag"] == "true"
    assert len({seen.headers["Idempotency-Key"] for seen in server.seen}) == 3


async def test_an_undefined_name_fails_the_task_and_says_where(worker: Bench) -> None:
    step = """
  - step: load
    tool: {name: fetch, kind: http, url: "http://x/{{ iter.pag }}"}
"""
    end = failed(await worker.run(command_of(step)))
    assert end.error.kind == "template"
    assert end.error.message.startswith(
        "step 'load', task 'fetch', field 'url': 'iter.pag' is undefined in {{ iter.pag }}"
    )


async def test_assertions_guard_inputs_and_results(worker: Bench) -> None:
    step = """
  - step: s
    tool: {kind: noop, input: {a: null}, assert: {expects: [a, b]}}
"""
    end = failed(await worker.run(command_of(step)))
    assert (end.error.kind, "a, b" in end.error.message) == ("assertion", True)
    step = """
  - step: s
    tool: {kind: noop, result: {a: 1}, assert: {returns: [a, b]}}
"""
    end = failed(await worker.run(command_of(step)))
    assert (end.error.kind, end.error.message) == ("assertion", "the result lacks b")


async def test_an_item_knows_its_place(worker: Bench) -> None:
    step = """
  - step: s
    loop: {in: "{{ workload.xs }}", iterator: x, spec: {mode: parallel}}
    tool: {kind: noop, result: {x: "{{ iter.x }}", bare: "{{ x }}", i: "{{ loop_index }}", last: "{{ iter._last }}", n: "{{ iter._total }}"}}
"""
    found = await result_of(worker, step, work=ItemWork(index=2, total=3, item="c"))
    assert found == {"x": "c", "bare": "c", "i": 2, "last": True, "n": 3}


async def test_the_step_that_led_here_is_the_first_output(worker: Bench) -> None:
    earlier = StepResult(
        status="ok",
        result=ResultEnvelope(
            status="ok",
            context={
                "shape": "pipeline",
                "data": {"tasks": {"t": {"kind": "python", "raw": {"n": 4}}}, "last": "t"},
            },
        ),
    )
    step = """
  - step: s
    tool: {kind: noop, result: ["{{ output.data.n }}", "{{ before.n }}", "{{ steps.before.status }}"]}
"""
    found = await result_of(worker, step, steps={"before": earlier}, came_from="before")
    assert found == [4, 4, "ok"]


async def test_a_large_result_is_stored_and_loaded_when_it_is_touched(worker: Bench) -> None:
    step = """
  - step: s
    tool: {kind: python, code: "result = {'count': 500, 'rows': [{'i': i} for i in range(500)], 'columns': ['i']}"}
    output: {select: [{path: "rows[3].i", as: third}]}
"""
    end = completed(await worker.run(command_of(step)))
    assert end.result.reference is not None
    assert end.result.reference.row_count == 500
    assert end.result.context["fields"] == {"count": 500, "third": 3}
    later = """
  - step: t
    tool: {kind: noop, result: ["{{ s.count }}", "{{ s.rows[499].i }}", "{{ s.third }}"]}
"""
    steps = {"s": StepResult(status="ok", result=end.result)}
    assert await result_of(worker, later, steps=steps) == [500, 499, 3]
    assert not is_stored(end.result)


async def test_a_kind_of_a_later_release_fails_the_task_alone(worker: Bench) -> None:
    step = """
  - step: s
    tool: {kind: agent, sql: "select 1"}
"""
    end = failed(await worker.run(command_of(step)))
    assert (end.error.kind, end.error.retryable) == ("unsupported_tool", False)


async def test_writes_to_ctx_are_handed_in_also_by_a_failure(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, set: {ctx.n: 1}}
      - {name: b, kind: python, code: "raise ValueError('no')"}
"""
    end = failed(await worker.run(command_of(step)))
    assert (end.patch, end.error.exception_type, end.error.task) == ({"n": 1}, "ValueError", "b")


@pytest.mark.parametrize(
    ("block", "field", "name"),
    [
        ("{ctx.p.x: 4}", "ctx.p.x", "p"),
        ("{ctx.gone.x: 4}", "ctx.gone.x", "gone"),
        ("{ctx.q.r.x: 4}", "ctx.q.r.x", "r"),
        ("{iter.n.x: 4}", "iter.n.x", "n"),
        ("{v.x: 4}", "v.x", "v"),
        ("{ctx.fresh: [1], ctx.fresh.x: 4}", "ctx.fresh.x", "fresh"),
    ],
)
async def test_a_path_through_a_value_without_keys_is_refused_before_anything_is_written(
    worker: Bench, block: str, field: str, name: str
) -> None:
    """As the planner refuses it in the `set` of a step."""
    step = f"""
  - step: s
    tool:
      - {{name: a, kind: noop, set: {{iter.n: 1, v: [1]}}}}
      - {{name: b, kind: noop, set: {{ctx.z: 1, {block[1:]}}}
"""
    ctx = {"p": 1, "gone": None, "q": {"r": "text"}}
    end = failed(await worker.run(command_of(step, ctx=ctx)))
    assert (end.error.kind, end.error.step, end.error.task) == ("validation", "s", "b")
    assert f"field 'set.{field}': '{name}' is not a mapping, it has no keys" in end.error.message
    assert end.patch == {}


async def test_several_paths_of_one_block_meet_in_one_value(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, result: {k: 1}, set: {v: "{{ output }}", ctx.p.x: 1, ctx.p.y.z: 2, iter.a.b: 3}}
      - {name: b, kind: noop, set: {v.more: 2, iter.a.c: 4}}
      - {name: c, kind: noop, result: {v: "{{ v }}", a: "{{ iter.a }}"}}
"""
    end = completed(await worker.run(command_of(step, ctx={"p": {"w": 0, "y": {"u": 5}}})))
    assert end.patch == {"p": {"w": 0, "x": 1, "y": {"u": 5, "z": 2}}}
    found = await worker.value(end.result)
    assert (found["v"], found["a"]) == ({"k": 1, "more": 2}, {"b": 3, "c": 4})


NO_TEXT = r"{{ '\\ud800' }}"


@pytest.mark.parametrize(
    "tool",
    [
        f'{{kind: python, code: "{NO_TEXT}"}}',
        f'{{kind: duckdb, query: "{NO_TEXT}"}}',
        f'{{kind: http, url: "http://127.0.0.1:9/{NO_TEXT}"}}',
        f'{{kind: noop, result: ["{NO_TEXT}"]}}',
        f'{{kind: noop, set: {{ctx.a: "{NO_TEXT}"}}}}',
        f'{{kind: postgres, auth: "{NO_TEXT}", query: select 1}}',
    ],
)
async def test_a_template_that_gives_no_text_fails_as_one(worker: Bench, tool: str) -> None:
    step = f"""
  - step: s
    tool: {tool}
"""
    error = failed(await worker.run(command_of(step))).error
    assert (error.kind, error.retryable, error.step) == ("template", False, "s")


async def test_a_rule_decides_on_a_text_that_is_none(worker: Bench) -> None:
    step = f"""
  - step: s
    tool:
      name: odd
      kind: python
      code: "{NO_TEXT}"
      spec: {{policy: {{rules: [{{when: "{{{{ error.kind == 'template' }}}}", then: {{do: continue}}}}]}}}}
"""
    completed(await worker.run(command_of(step)))


async def test_ctx_can_be_kept_inside_of_itself(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: a, kind: noop, set: {ctx.n: 1}}
      - {name: b, kind: noop, set: {ctx.before: "{{ ctx }}", ctx.whole: "{{ {'c': ctx} }}"}}
      - {name: c, kind: noop, set: {ctx.n: 2}}
"""
    found = completed(await worker.run(command_of(step, ctx={"m": 0})))
    then = {"m": 0, "n": 1}
    assert found.patch == {"n": 2, "before": then, "whole": {"c": then}}


async def test_of_many_failed_tries_the_latest_are_kept_and_name_their_attempts(
    worker: Bench,
) -> None:
    step = """
  - step: s
    tool:
      kind: python
      code: "raise ValueError('no canary-canary, ' + 'x' * 1000)"
      spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 25, delay: 0}}]}}
"""
    worker.mask.learn_secrets({"token": "canary-canary"})
    end = failed(await worker.run(command_of(step)))
    assert end.error.attempt == 25
    assert [item.attempt for item in end.error.tries] == list(range(5, 25))
    assert all(len(item.message) <= 300 for item in end.error.tries)
    assert "canary" not in str(end.error)
