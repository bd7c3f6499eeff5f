# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Each loop mode and reduce, end to end in one process."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.inprocess import a_system, begin, ended, run, value
from tests.support.polling import eventually

from noetl_cli.local.system import LocalSystem
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[LocalSystem]:
    async with a_system(tmp_path) as system:
        yield system


def a_loop(source: str, spec: str, *, tool: str = "{kind: noop, result: '{{ iter.it }}'}") -> str:
    return f"""
workflow:
  - step: each
    loop: {{in: "{source}", iterator: it, spec: {spec}}}
    tool: {tool}
    set: {{ctx.all: "{{{{ each.results }}}}", ctx.stats: "{{{{ each.stats }}}}", ctx.fanin: "{{{{ fanin }}}}"}}
    next: {{arcs: [{{step: after, when: "{{{{ event.name == 'loop.done' }}}}"}}]}}
  - step: after
    tool: {{kind: noop, result: "{{{{ each.fanin.status }}}}"}}
    set: {{ctx.status: "{{{{ after }}}}", ctx.again: "{{{{ each.fanin.results }}}}"}}
"""


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: sequential}",
        "{mode: parallel, max_in_flight: 3}",
        "{mode: chunked, chunk_size: 3, max_in_flight: 2}",
        "{mode: chunked, chunk_size: 3, frame: {row_concurrency: 3}}",
        "{mode: parallel, frame: {max_rows: 4}}",
        "{mode: fanout, fanout: {shard_size: 2}}",
        "{mode: fanout, fanout: {partitions: 3}}",
        "{mode: fanout, fanout: {partitions: 3, partition_by: a}}",
    ],
)
@pytest.mark.parametrize("source", ["{{ range(8) | list }}", "8"])
async def test_results_are_complete_and_in_item_order(
    opened: LocalSystem, spec: str, source: str
) -> None:
    outcome = await run(opened, a_loop(source if source != "8" else "{{ 8 }}", spec))
    assert outcome.state.ctx["all"] == list(range(8)), outcome.types
    stats = outcome.state.ctx["stats"]
    assert (stats["total"], stats["success"], stats["failed"]) == (8, 8, 0)
    assert outcome.state.ctx["status"] == "complete"


BOOM = "{kind: noop, spec: {policy: {rules: [{when: '{{ iter.it in workload.bad }}', then: {do: fail, message: boom}}]}}, result: '{{ iter.it }}'}"


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: sequential}",
        "{mode: parallel}",
        "{mode: parallel, frame: {max_rows: 4}}",
        "{mode: chunked, chunk_size: 3}",
        "{mode: chunked, chunk_size: 8, frame: {row_concurrency: 3}}",
        "{mode: chunked, chunk_size: 3, policy: {exec: local}}",
        "{mode: parallel, policy: {exec: local}}",
    ],
)
async def test_failed_items_are_listed_by_their_own_places(opened: LocalSystem, spec: str) -> None:
    playbook = a_loop("{{ range(8) | list }}", spec, tool=BOOM).replace(
        "step: each\n", "step: each\n    spec: {policy: {failure: {mode: best_effort}}}\n"
    )
    outcome = await run(opened, playbook, bad=[4, 5, 7])
    fanin = outcome.state.ctx["fanin"]
    failed = fanin["failed_items"]
    assert fanin["failed"] == 3
    assert [(item["index"], item["key"]) for item in failed] == [
        (place, f"{fanin['loop_id']}:{place}") for place in (4, 5, 7)
    ]
    assert {item["error"]["message"] for item in failed} == {"boom"}


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: sequential}",
        "{mode: chunked, chunk_size: 3}",
        "{mode: fanout}",
    ],
)
async def test_a_failed_unit_leaves_its_record_in_its_place(opened: LocalSystem, spec: str) -> None:
    playbook = a_loop("{{ range(5) | list }}", spec, tool=BOOM).replace(
        "'loop.done'", "'loop.failed'"
    )
    outcome = await run(opened, playbook, bad=[1, 3])
    results = (
        outcome.state.ctx["again"]
        if "fanout" in spec
        else (await value(opened, outcome, "each"))["results"]
    )
    assert [
        result["error"]["message"] if isinstance(result, dict) else result for result in results
    ] == [
        0,
        "boom",
        2,
        "boom",
        4,
    ]
    kept = await value(opened, outcome, "each")
    assert (kept["stats"]["success"], kept["stats"]["failed"]) == (3, 2)


async def test_a_body_that_takes_whole_frames_gives_one_result_each(opened: LocalSystem) -> None:
    spec = "{mode: chunked, chunk_size: 4, frame: {process: frame}}"
    outcome = await run(
        opened,
        a_loop("{{ range(10) | list }}", spec, tool="{kind: noop, result: '{{ iter.it | sum }}'}"),
    )
    assert outcome.state.ctx["all"] == [6, 22, 17]
    assert outcome.state.ctx["stats"]["total"] == 3


REDUCED = """
workflow:
  - step: each
    loop: {in: "{{ range(20) | list }}", iterator: it, spec: SPEC}
    tool: {kind: noop, result: '{{ iter.it }}'}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: each, iterator: parts, spec: REDUCE}
    tool: {kind: noop, result: "{{ iter.parts | map(attribute='data') | join('+') }}"}
    set: {ctx.total: "{{ total }}"}
"""


@pytest.mark.parametrize(
    "reduce", ["{mode: single}", "{mode: tree, fan_in: 3}", "{mode: tree, fan_in: 32}"]
)
@pytest.mark.parametrize("spec", ["{mode: fanout}", "{mode: parallel}"])
async def test_a_reduce_takes_its_parts_in_index_order(
    opened: LocalSystem, spec: str, reduce: str
) -> None:
    outcome = await run(opened, REDUCED.replace("SPEC", spec).replace("REDUCE", reduce))
    assert outcome.state.ctx["total"] == "+".join(str(number) for number in range(20)), (
        outcome.types
    )


@pytest.mark.parametrize(
    "spec",
    [
        "mode: sequential",
        "mode: parallel",
        "mode: chunked, chunk_size: 3, max_in_flight: 2",
        "mode: chunked, chunk_size: 3, frame: {max_seconds: 0.000001}",
        "mode: fanout, fanout: {shard_size: 3}",
        "mode: fanout, fanout: {partitions: 3}",
        "mode: fanout, fanout: {partitions: 3, partition_by: a}",
    ],
)
async def test_a_local_loop_is_one_command_and_gives_the_same(
    opened: LocalSystem, spec: str
) -> None:
    outcome = await run(
        opened, a_loop("{{ range(8) | list }}", f"{{{spec}, policy: {{exec: local}}}}")
    )
    assert outcome.state.ctx["all"] == list(range(8))
    assert outcome.state.ctx["stats"]["success"] == 8
    assert [item.step for item in outcome.of("command.issued")] == ["each", "after"]
    assert outcome.state.ctx["status"] == "complete"


async def test_a_local_loop_counts_chunks_and_shards_as_others_do(opened: LocalSystem) -> None:
    for spec in (
        "mode: chunked, chunk_size: 4, frame: {process: frame}",
        "mode: fanout, fanout: {shard_size: 4}, frame: {process: frame}",
    ):
        found = []
        for policy in ("", ", policy: {exec: local}"):
            playbook = a_loop(
                "{{ range(10) | list }}",
                f"{{{spec}{policy}}}",
                tool="{kind: noop, result: '{{ iter.it | sum }}'}",
            )
            outcome = await run(opened, playbook)
            ctx = outcome.state.ctx
            fanin = {key: item for key, item in ctx["fanin"].items() if key != "loop_id"}
            counted = {key: ctx["stats"][key] for key in ("total", "success", "failed")}
            found.append((ctx["all"], ctx["again"], counted, fanin))
        assert found[0] == found[1]
        assert found[0][0] == [6, 22, 17]


async def test_a_local_fan_out_tries_a_failed_shard_again_and_feeds_a_reduce(
    opened: LocalSystem,
) -> None:
    spec = "{mode: fanout, fanout: {shard_size: 5, max_shard_retries: 1}, policy: {exec: local}}"
    playbook = REDUCED.replace("SPEC", spec).replace("REDUCE", "{mode: tree, fan_in: 2}")
    task = """{kind: python, input: {n: "{{ iter._shard_attempt }}", i: "{{ iter.it }}"},
      code: "result = i if i != 7 or n > 1 else 1 / 0"}"""
    outcome = await run(
        opened, playbook.replace("tool: {kind: noop, result: '{{ iter.it }}'}", f"tool: {task}", 1)
    )
    results = (await value(opened, outcome, "each"))["results"]
    assert results == list(range(20)), outcome.types
    assert outcome.events[-1].event.__class__.__name__ == "PlaybookCompleted"
    (done,) = outcome.of("loop.done")
    assert done.stats.retried == 1
    parts = outcome.state.ctx["total"]
    assert [int(item) for item in re.findall(r"[0-9]+", parts)] == list(range(20))


async def test_a_local_loop_stops_when_too_many_chunks_failed(opened: LocalSystem) -> None:
    spec = "mode: chunked, chunk_size: 2, policy: {exec: local, failure: {mode: fail_fast}}"
    playbook = a_loop("{{ range(8) | list }}", f"{{{spec}}}", tool=BOOM).replace(
        "'loop.done'", "'loop.failed'"
    )
    outcome = await run(opened, playbook, bad=[3])
    kept = await value(opened, outcome, "each")
    shown = [
        result if not isinstance(result, dict) else result["status"] for result in kept["results"]
    ]
    assert shown == [0, 1, 2, "error", None, None, None, None]
    stats = kept["stats"]
    assert (stats["success"], stats["failed"], stats["cancelled"]) == (3, 1, 4)


async def test_a_local_loop_that_fails_fast_leaves_nulls_in_their_places(
    opened: LocalSystem,
) -> None:
    spec = "{mode: sequential, policy: {exec: local, failure: {mode: fail_fast}}}"
    playbook = a_loop("{{ range(5) | list }}", spec, tool=BOOM).replace(
        "'loop.done'", "'loop.failed'"
    )
    outcome = await run(opened, playbook, bad=[2])
    kept = await value(opened, outcome, "each")
    assert [
        result if not isinstance(result, dict) else result["status"] for result in kept["results"]
    ] == [
        0,
        1,
        "error",
        None,
        None,
    ]
    stats = kept["stats"]
    assert (stats["success"], stats["failed"], stats["cancelled"]) == (2, 1, 2)


async def test_results_that_take_long_to_gather_hold_up_nobody(
    opened: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, may_go_on = opened.adapters.ledger, asyncio.Event()
    asked: list[str] = []
    really = ledger.list_item_results

    async def slowly(execution_id: ExecutionId, *args: Any, **named: Any) -> Any:
        asked.append(execution_id)
        await may_go_on.wait()
        return await really(execution_id, *args, **named)

    monkeypatch.setattr(ledger, "list_item_results", slowly)
    spec = "{mode: parallel, max_in_flight: 2}"
    slow = await begin(opened, a_loop("{{ range(8) | list }}", spec))

    async def is_gathering() -> bool:
        return bool(asked)

    await eventually(is_gathering)
    quick = await run(opened, "\nworkflow:\n  - {step: only, tool: {kind: noop}}\n")
    assert quick.types[-1] == "playbook.completed"
    may_go_on.set()
    outcome = await ended(opened, slow)
    assert outcome.state.ctx["all"] == list(range(8))
    assert outcome.types.count("loop.done") == 1
    assert asked.count(slow) == len(asked)


PARTITIONED = """
workflow:
  - step: each
    loop:
      in: "{{ range(200) | list }}"
      iterator: part
      spec:
        mode: fanout
        max_in_flight: 64
        fanout: {partitions: "{{ workload.partitions }}"}
        frame: {process: frame}
    tool:
      kind: python
      input: {rows: "{{ iter.part }}", n: "{{ iter._shard_attempt }}", i: "{{ iter._shard_index }}"}
      code: "result = {'n': len(rows), 'sum': sum(rows), 'last': rows[-1]} if n > 1 or i % 3 else 1 / 0"
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: each, iterator: parts, spec: {mode: tree, fan_in: 5}}
    tool:
      kind: noop
      result:
        n: "{{ iter.parts | map(attribute='data.n') | sum }}"
        sum: "{{ iter.parts | map(attribute='data.sum') | sum }}"
        last: "{{ iter.parts | map(attribute='data.last') | list | last }}"
    set: {ctx.total: "{{ total.data }}"}
"""


async def test_a_reduce_gives_the_same_however_many_partitions_there_are(
    opened: LocalSystem,
) -> None:
    begun = [await begin(opened, PARTITIONED, partitions=many) for many in (1, 7, 64)]
    told = [await ended(opened, item) for item in begun]
    assert [item.state.failure for item in told] == [None] * 3
    sums = {codec.digest_hex(codec.encode_canonical(item.state.ctx["total"])) for item in told}
    assert len(sums) == 1, [item.state.ctx for item in told]
    assert told[0].state.ctx["total"] == {"n": 200, "sum": 19_900, "last": 199}
    assert [item.of("loop.fanin.completed")[0].retried for item in told] == [1, 3, 22]
    assert {item.of("loop.fanin.completed")[0].status for item in told} == {"complete"}
