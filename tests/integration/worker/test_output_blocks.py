# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Whose `output` block holds for what: the step's for its result, a task's for that task."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.working import (
    EXECUTION,
    ORGANIZATION,
    RUN,
    TENANT,
    Bench,
    bench,
    command_of,
    frame_of,
)

from noetl_contracts import codec, locators
from noetl_contracts.commands.command_work import ItemWork, StepResult
from noetl_contracts.commands.waits import Resume
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandParked,
    FrameClosed,
)
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_storage.payloads.memory import MemoryPayloads


async def kept(worker: Bench, step: str, **about: Any) -> ResultEnvelope:
    *_, done = await worker.run(command_of(step, **about))
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    return done.result


async def value_of(worker: Bench, step: str, **about: Any) -> Any:
    return await worker.value(await kept(worker, step, **about))


async def error_of(worker: Bench, step: str, **about: Any) -> ErrorObject:
    *_, done = await worker.run(command_of(step, **about))
    assert isinstance(done, CommandFailed), done
    return done.error


TWO = """
  - step: s
    output: OUTPUT
    tool:
      - {name: get, kind: noop, result: {count: 5, rows: [{i: 7}], items: [1]}}
      - {name: fin, kind: noop, result: {last: 1}}
"""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("count", 5),
        ("last", 1),
        ("get.count", 5),
        ("results.get.count", 5),
        ('"rows[0].i"', 7),
        ('"get.rows[0].i"', 7),
        ('"$.results.get.rows[0].i"', 7),
        ("get.items", [1]),
        ("fin", {"last": 1}),
    ],
)
async def test_a_step_selects_from_its_result_and_not_from_its_last_task(
    worker: Bench, path: str, value: Any
) -> None:
    output = f"{{inline_max_bytes: 0, select: [{{path: {path}, as: chosen}}]}}"
    result = await kept(worker, TWO.replace("OUTPUT", output))
    assert result.reference is not None
    assert result.context["fields"]["chosen"] == value


@pytest.mark.parametrize(
    "path", ["gone", "get.gone", "results.gone.count", '"rows[1].i"', "count.x"]
)
async def test_what_a_path_does_not_lead_to_is_not_selected(worker: Bench, path: str) -> None:
    output = f"{{inline_max_bytes: 0, select: [{{path: {path}, as: chosen}}]}}"
    result = await kept(worker, TWO.replace("OUTPUT", output))
    assert "chosen" not in result.context["fields"]


@pytest.mark.parametrize(
    ("accumulate", "expected"),
    [
        ("{merge_path: items, manifest_as: all}", [1]),
        ("{merge_path: get.items, manifest_as: all}", [1]),
        ("{merge_path: results.get.items, manifest_as: all}", [1]),
        ("{merge_path: last, manifest_as: all}", [1]),
        ("{merge_path: gone, manifest_as: all}", []),
        ("{manifest_as: all}", [{"last": 1}]),
        ("{merge_path: items, manifest_as: all, on_success: false}", []),
    ],
)
async def test_a_step_collects_from_its_result(
    worker: Bench, accumulate: str, expected: Any
) -> None:
    step = TWO.replace("OUTPUT", f"{{accumulate: {accumulate}}}")
    assert (await value_of(worker, step))["all"] == expected


@pytest.mark.parametrize("own", ["{inline_max_bytes: 100}", "{select: [{path: items}]}"])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_block_of_a_task_takes_nothing_from_what_its_step_collects(
    worker: Bench, own: str, count: int
) -> None:
    first = "- {name: first, kind: noop}" if count > 1 else ""
    step = f"""
  - step: s
    output: {{accumulate: {{merge_path: items, manifest_as: all}}}}
    tool:
      {first}
      - {{name: get, kind: noop, result: {{items: [1]}}, output: {own}}}
"""
    assert (await value_of(worker, step))["all"] == [1]


async def test_a_result_keeps_a_collection_as_it_was(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - name: get
        kind: noop
        result: {n: 1, before: "{{ all | default([]) }}", deep: [["{{ all | default([]) }}"]], made: "{{ [{'all': all | default([])}] }}"}
        output: {accumulate: {merge_path: n, manifest_as: all}}
      - {name: again, kind: noop, spec: {policy: {rules: [{when: "{{ all | length < 3 }}", then: {do: jump, to: get}}]}}}
"""
    found = await worker.value(await kept(worker, step))
    assert (found["all"], found["get"]["before"]) == ([1, 1, 1], [1, 1])
    assert (found["get"]["deep"], found["get"]["made"]) == ([[[1, 1]]], [{"all": [1, 1]}])


async def test_a_step_collects_once_a_run_and_goes_on_in_the_next(worker: Bench) -> None:
    step = """
  - step: s
    output: {accumulate: {merge_path: n, manifest_as: all}}
    tool:
      - {name: get, kind: noop, result: {n: "{{ iter.n | default(0) }}", before: "{{ all }}"}, set: {iter.n: "{{ (iter.n | default(0)) + 1 }}"}}
      - {name: again, kind: noop, spec: {policy: {rules: [{when: "{{ iter.n < 3 }}", then: {do: jump, to: get}}]}}}
"""
    steps: dict[str, StepResult] = {}
    for before, after in (([], [2]), ([2], [2, 2]), ([2, 2], [2, 2, 2])):
        result = await kept(worker, step, steps=steps)
        found = await worker.value(result)
        assert (found["all"], found["get"]["before"]) == (after, before)
        steps = {"s": StepResult(status="COMPLETED", result=result)}


async def test_a_run_that_fails_keeps_what_earlier_runs_gave_and_adds_where_that_is_asked_for(
    worker: Bench,
) -> None:
    for switch, expected in (("false", [1]), ("true", [1, 2])):
        step = f"""
  - step: s
    output: {{accumulate: {{merge_path: n, manifest_as: all, on_error: {switch}}}}}
    tool: {{kind: noop, result: {{n: "{{{{ workload.n }}}}"}}, spec: {{policy: {{rules: [{{when: "{{{{ workload.n > 1 }}}}", then: {{do: fail}}}}]}}}}}}
"""
        first = await kept(worker, step, workload={"n": 1})
        steps = {"s": StepResult(status="COMPLETED", result=first)}
        *_, done = await worker.run(command_of(step, workload={"n": 2}, steps=steps))
        assert isinstance(done, CommandFailed)
        assert done.result is not None
        assert (await worker.value(done.result))["all"] == expected


async def test_what_a_step_cannot_collect_fails_the_run_and_costs_nothing_collected(
    worker: Bench,
) -> None:
    step = """
  - step: s
    output: {accumulate: {strategy: concat, merge_path: n, manifest_as: all}}
    tool: {kind: noop, result: {n: "{{ workload.n }}"}}
"""
    first = await kept(worker, step, workload={"n": [1]})
    steps = {"s": StepResult(status="COMPLETED", result=first)}
    *_, done = await worker.run(command_of(step, workload={"n": "text"}, steps=steps))
    assert isinstance(done, CommandFailed)
    assert (done.error.kind, done.error.step) == ("schema", "s")
    assert done.result is not None
    assert (await worker.value(done.result))["all"] == [1]


@pytest.mark.parametrize("at", ["step", "task"])
async def test_what_is_collected_may_be_larger_than_what_is_selected(
    worker: Bench, at: str
) -> None:
    """It is no field beside a reference: who reads it loads it."""
    block = "output: {select: [{path: n}], accumulate: {merge_path: items, manifest_as: all}}"
    step = f"""
  - step: s
    {block if at == "step" else ""}
    tool:
      - {{name: get, kind: noop, result: {{items: "{{{{ range(20000) | list }}}}", n: 3}}, {block if at == "task" else "input: {}"}}}
      - {{name: fin, kind: noop}}
"""
    result = await kept(worker, step)
    assert result.reference is not None
    assert result.context["fields"]["n"] == 3
    assert "all" not in result.context["fields"]
    assert len((await worker.value(result))["all"]) == 20000


@pytest.mark.parametrize(
    ("step_output", "task_output", "is_stored"),
    [
        ("{inline_max_bytes: 65536}", "{inline_max_bytes: 0}", True),
        ("{inline_max_bytes: 0}", "{inline_max_bytes: 65536}", False),
        ("{inline_max_bytes: 0}", "{preview_max_bytes: 5}", True),
        ("{preview_max_bytes: 5}", "{inline_max_bytes: 0}", True),
        ("{store: {kind: memory}}", "{select: [{path: n}]}", True),
        ("null", "{inline_max_bytes: 0}", True),
        ("{inline_max_bytes: 0}", "null", True),
        ("null", "null", False),
    ],
)
async def test_the_block_of_the_only_task_wins_over_that_of_its_step(
    worker: Bench, step_output: str, task_output: str, *, is_stored: bool
) -> None:
    step = f"""
  - step: s
    output: {step_output}
    tool: {{kind: noop, result: {{n: 1}}, output: {task_output}}}
"""
    assert ((await kept(worker, step)).reference is not None) is is_stored


@pytest.mark.parametrize(
    ("step_output", "first", "second", "is_stored"),
    [
        ("{inline_max_bytes: 65536}", "null", "{inline_max_bytes: 0}", False),
        ("{inline_max_bytes: 0}", "null", "{inline_max_bytes: 65536}", True),
        ("null", "{inline_max_bytes: 0}", "null", False),
        ("null", "null", "{inline_max_bytes: 0}", True),
    ],
)
async def test_the_result_of_several_tasks_is_kept_as_the_step_says_else_as_the_task_in_front(
    worker: Bench, step_output: str, first: str, second: str, *, is_stored: bool
) -> None:
    step = f"""
  - step: s
    output: {step_output}
    tool:
      - {{name: a, kind: noop, result: {{n: 1}}, output: {first}}}
      - {{name: b, kind: noop, result: {{m: 2}}, output: {second}}}
"""
    assert ((await kept(worker, step)).reference is not None) is is_stored


async def test_the_executions_bound_does_not_beat_what_a_step_says_of_its_only_task(
    worker: Bench,
) -> None:
    step = """
  - step: s
    output: {inline_max_bytes: 65536}
    tool: {kind: noop, result: {t: "{{ 'x' * 200 }}"}, output: {preview_max_bytes: 10}}
"""
    assert (await kept(worker, step, defaults={"inline_max_bytes": 100})).reference is None


STORED = """
  - step: s
    tool:
      - {name: get, kind: noop, result: {count: 5, rows: [1, 2]}, output: {inline_max_bytes: 0, as: h, select: [{path: count}]}}
      - name: fin
        kind: noop
        result:
          own: "{{ get._ref }}"
          by_results: "{{ results.get._ref }}"
          by_as: "{{ h._ref }}"
          by_previous: "{{ _prev._ref }}"
          by_output: "{{ output.ref }}"
          by_data: "{{ output.data._ref }}"
          store: "{{ get._store }}"
          bytes: "{{ get._bytes }}"
          preview: "{{ get._preview }}"
          count: "{{ get.count + h.count + output.count }}"
          whole: "{{ get }}"
          rows: "{{ h.rows[1] }}"
          status: "{{ output.status }} {{ output.meta.attempt }}"
"""


async def test_what_a_task_gives_is_stored_as_its_block_says_while_the_pipeline_goes_on(
    worker: Bench,
) -> None:
    found = (await value_of(worker, STORED))["results"]["fin"]
    reference = found["own"]
    assert reference["ref"] == f"noetl://execution/{EXECUTION}/result/s/{RUN}/get"
    assert reference["kind"] == "result_ref"
    by = [found[f"by_{name}"] for name in ("results", "as", "previous", "output", "data")]
    assert by == [reference] * 5
    assert (found["store"], found["bytes"]) == ("memory", reference["bytes"])
    assert found["preview"] == '{"count":5,"rows":[1,2]}'
    assert (found["count"], found["rows"], found["status"]) == (15, 2, "ok 1")
    assert found["whole"] == {"count": 5, "rows": [1, 2]}


@pytest.mark.parametrize("given", ["{{ get._ref }}", "{{ h }}", "{{ get }}", "{{ get._ref.ref }}"])
async def test_what_a_task_gave_is_read_back_by_its_reference(worker: Bench, given: str) -> None:
    step = f"""
  - step: s
    tool:
      - {{name: get, kind: noop, result: {{count: 5}}, output: {{inline_max_bytes: 0, as: h}}}}
      - {{name: back, kind: artifact, action: get, result_ref: "{given}"}}
"""
    found = (await value_of(worker, step))["results"]["back"]
    assert found["data"] == {"count": 5}
    assert found["uri"] == f"noetl://execution/{EXECUTION}/result/s/{RUN}/get"


async def test_rules_and_writes_of_a_task_see_its_own_reference(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      name: get
      kind: noop
      result: {n: 1}
      output: {inline_max_bytes: 0}
      set: {ctx.own: "{{ output._ref.ref }}"}
      spec: {policy: {rules: [{when: "{{ output.ref is defined and output.data.n == 1 }}", then: {do: continue, set: {ctx.rule: "{{ output.ref.ref }}"}}}, {else: {do: fail}}]}}
"""
    *_, done = await worker.run(command_of(step))
    assert isinstance(done, CommandCompleted), done
    locator = f"noetl://execution/{EXECUTION}/result/s/{RUN}/get"
    assert done.patch == {"own": locator, "rule": locator}


@pytest.mark.parametrize(
    ("output", "size", "is_stored"),
    [
        ("{}", 10, False),
        ("{inline_max_bytes: 100}", 10, False),
        ("{inline_max_bytes: 100}", 200, True),
        ("{as: h}", 100, False),
        ("{as: h}", 2000, True),
        ("{preview_max_bytes: 5}", 2000, False),
        ("{preview_max_bytes: 5}", 70_000, True),
        ("{store: {kind: memory}}", 10, True),
    ],
)
async def test_a_task_is_stored_by_the_bounds_of_a_step(
    worker: Bench, output: str, size: int, *, is_stored: bool
) -> None:
    step = f"""
  - step: s
    tool:
      - {{name: get, kind: noop, result: {{t: "{{{{ 'x' * {size} }}}}"}}, output: {output}}}
      - {{name: fin, kind: noop, result: {{is_stored: "{{{{ get._ref is defined }}}}", size: "{{{{ get.t | length }}}}"}}}}
"""
    found = (await value_of(worker, step))["results"]["fin"]
    assert found == {"is_stored": is_stored, "size": size}


async def test_a_store_that_is_not_there_is_noted_of_a_task_too(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: get, kind: noop, result: {n: 1}, output: {store: {kind: s3}}}
      - {name: fin, kind: noop, result: {ref: "{{ get._ref.store }}"}}
"""
    result = await kept(worker, step)
    assert result.context["notes"] == ["store_fallback"]


class Counting(MemoryPayloads):
    """Counts what is stored."""

    stored = 0

    async def put_payload(self, *given: Any, **about: Any) -> PayloadRef:
        self.stored += 1
        return await super().put_payload(*given, **about)


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        ("{{ get.count }}", 0),
        ("ref of {{ workload.ref }}", 0),
        ("{{ load._ref }}", 0),
        ("{{ ctx.get._ref | default(1) }}", 0),
        ("{{ get._ref is defined }}", 1),
        ("{% set one = get %}{{ one._ref.ref }}", 1),
        ("{{ output.ref is defined }}", 1),
    ],
)
async def test_nothing_is_stored_of_what_no_template_asks_the_reference_of(
    told: str, stored: int
) -> None:
    step = f"""
  - step: s
    tool:
      - {{name: get, kind: noop, result: {{count: 5}}, output: {{inline_max_bytes: 0}}}}
      - {{name: fin, kind: noop, result: "{told}"}}
"""
    counting = Counting()
    async with bench(store=counting) as worker:
        await kept(worker, step, workload={"ref": 1, "load": {"_ref": 2}})
    assert counting.stored == stored


async def test_each_row_of_a_frame_has_what_it_stored(worker: Bench) -> None:
    rows = [{"n": n} for n in range(3)]
    reference = await worker.payloads.put_payload(
        codec.encode_json(rows),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=JSON_MEDIA_TYPE,
    )
    step = """
  - step: s
    loop: {in: [1], iterator: i, spec: {mode: chunked}}
    tool:
      - {name: get, kind: noop, result: {n: "{{ iter.i.n }}"}, output: {inline_max_bytes: 0}}
      - {name: back, kind: artifact, action: get, result_ref: "{{ get._ref }}"}
      - {name: fin, kind: noop, result: {n: "{{ back.n }}"}}
"""
    work = frame_of(0, reference, total=3, size=3, frame={"max_rows": 3, "row_concurrency": 3})
    *_, done = await worker.run(command_of(step, work=work))
    assert isinstance(done, FrameClosed), done
    assert done.error is None
    assert done.result is not None
    found = await worker.value(done.result)
    assert [result["n"] for result in found["results"]] == [0, 1, 2]


async def test_what_was_stored_is_known_after_a_wait(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: get, kind: noop, result: {count: 5}, output: {inline_max_bytes: 0, as: h}, set: {v: "{{ output }}"}}
      - {name: wait, kind: playbook, path: p}
      - {name: fin, kind: noop, result: {refs: ["{{ get._ref }}", "{{ h._ref }}", "{{ v._ref }}"], counts: "{{ get.count + h.count + v.count }}"}}
"""
    command = command_of(step)
    *_, parked = await worker.run(command)
    assert isinstance(parked, CommandParked), parked
    child = PipelineResult(tasks={"t": TaskResult(kind="noop", raw={"k": 1})}, last="t")
    resume = Resume(
        key=parked.wait.key,
        ref=parked.resume_ref,
        status="COMPLETED",
        result=ResultEnvelope(status="ok", context=result_envelope.build_inline_context(child)),
    )
    *_, done = await worker.run(structs.replace(command, attempt=2, resume=resume))
    assert isinstance(done, CommandCompleted), done
    found = (await worker.value(done.result))["results"]["fin"]
    assert found["counts"] == 15
    assert [ref["ref"] for ref in found["refs"]] == [
        f"noetl://execution/{EXECUTION}/result/s/{RUN}/get"
    ] * 3


async def test_a_collection_is_no_part_of_what_an_attempt_stores(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      - {name: get, kind: noop, result: {n: "{{ iter.n | default(0) }}"}, output: {inline_max_bytes: 0, accumulate: {merge_path: n, manifest_as: all}}, set: {iter.n: "{{ (iter.n | default(0)) + 1 }}", iter.bytes: "{{ output._bytes }}"}}
      - {name: again, kind: noop, result: {bytes: "{{ iter.bytes }}", all: "{{ all }}", own: "{{ get.all }}"}, spec: {policy: {rules: [{when: "{{ iter.n < 5 }}", then: {do: jump, to: get}}]}}}
"""
    found = await value_of(worker, step)
    assert found["all"] == found["own"] == [0, 1, 2, 3, 4]
    assert found["bytes"] < 70


async def test_a_secret_is_masked_in_the_store_and_not_in_the_pipeline(worker: Bench) -> None:
    hidden = "a-value-of-some-length"
    worker.mask.learn_secrets({"token": hidden})
    step = f"""
  - step: s
    tool:
      - {{name: get, kind: python, code: "return {{'t': '{hidden}'}}", output: {{inline_max_bytes: 0}}}}
      - {{name: fin, kind: python, input: {{t: "{{{{ get.t }}}}", ref: "{{{{ get._ref }}}}"}}, code: "return {{'size': len(t), 'sha256': ref['sha256'], 'bytes': ref['bytes']}}"}}
"""
    found = (await value_of(worker, step))["results"]["fin"]
    assert found["size"] == len(hidden)
    reference = PayloadRef(
        uri=locators.build_payload_locator(TENANT, ORGANIZATION, found["sha256"]),
        sha256=found["sha256"],
        media_type=JSON_MEDIA_TYPE,
        payload_bytes=found["bytes"],
    )
    data = await worker.payloads.read_payload(reference)
    assert hidden.encode() not in data
    assert b"***" in data


TTL = """
  - step: s
    output: {inline_max_bytes: 0, store: {ttl: "TTL"}}
    tool: {kind: noop, result: {n: 60}, set: {v: "{{ output.n }}", ctx.seen: 1}}
"""


async def test_the_ttl_of_a_store_is_rendered_where_the_pipeline_ends(worker: Bench) -> None:
    for ttl, expected in (("{{ v * 2 }}", 120), ("{{ workload.t }}", 7200), ("{{ none }}", None)):
        result = await kept(worker, TTL.replace("TTL", ttl), workload={"t": "2h"})
        assert result.context.get("ttl_s") == expected


@pytest.mark.parametrize(
    ("ttl", "kind", "why"),
    [
        ("{{ 'soon' }}", "validation", "'soon' is not a duration"),
        ("{{ -1 }}", "validation", "-1 is not a duration"),
        ("{{ nope }}", "template", "'nope' is undefined"),
    ],
)
async def test_a_ttl_that_is_no_duration_fails_the_step(
    worker: Bench, ttl: str, kind: str, why: str
) -> None:
    *_, done = await worker.run(command_of(TTL.replace("TTL", ttl)))
    assert isinstance(done, CommandFailed), done
    assert (done.error.kind, done.error.step, done.patch) == (kind, "s", {"seen": 1})
    assert f"field 'output.store.ttl': {why}" in done.error.message


async def test_an_item_whose_loop_keeps_nothing_is_not_stored_for_a_bound_of_the_execution(
    worker: Bench,
) -> None:
    step = """
  - step: s
    loop: {in: [1], iterator: i, spec: {mode: parallel, collect: none}}
    tool: {kind: noop, result: {long: "{{ 'x' * 3000 }}"}}
"""
    work = ItemWork(index=0, total=1, item=1)
    result = await kept(worker, step, work=work, defaults={"inline_max_bytes": 100})
    assert (result.reference, result.context["is_left_out"]) == (None, True)
