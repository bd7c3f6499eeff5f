# ruff: noqa: E501 - a playbook reads best with one line to an idea

"""Items of loops that fail are shown with their errors, and run alone in a new execution."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from tests.support.person import PATIENCE_S, Person
from tests.support.polling import eventually
from tests.support.scripted import Script

pytestmark = pytest.mark.timeout(120)

PLAYBOOK = """
workload: {url: URL}
workflow:
  - step: before
    tool: {kind: http, url: "{{ workload.url }}/before"}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ range(12) | map('string') | list }}", iterator: name, spec: SPEC}
    tool: {kind: http, url: "{{ workload.url }}/{{ iter.name }}"}
    set:
      ctx.all: "{{ each.results | map(attribute='body') | list }}"
      ctx.stats: "{{ each.stats }}"
      ctx.total: "{{ fanin.total }}"
    next: {arcs: [{step: after}]}
  - step: after
    tool: {kind: http, url: "{{ workload.url }}/after"}
"""
BAD = ("3", "4", "10")
ITEMS = [str(number) for number in range(12)]


def fails(names: tuple[str, ...]) -> Callable[[web.Request], Any]:
    """Answer each path with itself, but some with an error."""

    async def answer(request: web.Request) -> web.Response:
        name = request.path.removeprefix("/")
        if name in names:
            return web.json_response({"why": f"no {name}"}, status=422)
        return web.json_response({"name": name})

    return answer


def counted(server: Script) -> Counter[str]:
    return Counter(seen.path.removeprefix("/") for seen in server.seen)


async def items_of(person: Person, execution_id: str, **query: Any) -> Any:
    answer = await person.api.get(f"/api/executions/{execution_id}/items/each", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def variables_of(person: Person, execution_id: str) -> Any:
    return (await person.status(execution_id))["variables"]


SPECS = {
    "parallel": "{mode: parallel, max_in_flight: 5}",
    "sequential": "{mode: sequential}",
    "chunked": "{mode: chunked, chunk_size: 4, max_in_flight: 2}",
    "fan-out": "{mode: fanout, fanout: {shard_size: 3, max_shard_retries: 0}}",
    "local": "{mode: parallel, policy: {exec: local}}",
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
async def test_only_what_failed_runs_again_and_the_result_is_that_of_a_run_that_never_failed(
    person: Person, server: Script, spec: str
) -> None:
    text = PLAYBOOK.replace("SPEC", spec).replace("URL", server.url)
    server.answers(fails(()))
    smooth = await person.begin(text)
    await person.until(smooth, "COMPLETED")
    server.seen.clear()
    server.answers(fails(BAD))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    shown = await items_of(person, failed, state="failed")
    assert [item["input"] for item in shown["items"]] == list(BAD)
    assert [item["index"] for item in shown["items"]] == [int(name) for name in BAD]
    assert all(item["error"]["status"] == 422 for item in shown["items"])
    assert not shown["has_more"]
    assert shown["counts"]["failed"] == len(BAD)
    server.seen.clear()
    server.answers(fails(()))
    answer = await person.post(failed, "rerun", failed=True)
    assert (answer["step"], answer["items_to_run"], answer["units_taken"]) == ("each", 3, 9)
    again = answer["execution_id"]
    await person.until(again, "COMPLETED")
    assert counted(server) == Counter([*BAD, "after"])
    expected = await variables_of(person, smooth)
    assert expected["all"] == [{"name": name} for name in ITEMS]
    assert await variables_of(person, again) == expected
    listed = await items_of(person, again)
    assert [item["state"] for item in listed["items"]] == ["completed"] * 12
    assert [item["input"] for item in listed["items"]] == ITEMS
    indexes = [item["index"] for item in listed["items"] if item["taken_from"] == failed]
    assert indexes == [int(name) for name in ITEMS if name not in BAD]


GROUPED = """
workload: {url: URL}
workflow:
  - step: each
    loop: {in: "{{ range(12) | map('string') | list }}", iterator: name, spec: SPEC}
    tool: {kind: http, url: "{{ workload.url }}/{{ iter.name }}"}
    next: {arcs: [{step: join}]}
  - step: join
    reduce: {from: each, iterator: parts}
    tool: {kind: noop, result: "{{ iter.parts | map(attribute='data') | map('map', attribute='body') | map('list') | list }}"}
    set: {ctx.joined: "{{ join }}", ctx.keys: "{{ each.stats }}"}
"""


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: fanout, fanout: {partitions: 5, max_shard_retries: 0}}",
        "{mode: fanout, fanout: {shard_size: 5, max_shard_retries: 0}, frame: {row_concurrency: 2}}",
    ],
)
async def test_a_reduce_sees_the_parts_of_a_fan_out_that_never_failed(
    person: Person, server: Script, spec: str
) -> None:
    text = GROUPED.replace("SPEC", spec).replace("URL", server.url)
    server.answers(fails(()))
    smooth = await person.begin(text)
    await person.until(smooth, "COMPLETED")
    server.answers(fails(BAD))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    server.seen.clear()
    server.answers(fails(()))
    again = (await person.post(failed, "rerun", failed=True))["execution_id"]
    await person.until(again, "COMPLETED")
    assert counted(server) == Counter(BAD)
    assert await variables_of(person, again) == await variables_of(person, smooth)


HASHED = """
workload: {url: URL}
workflow:
  - step: make
    tool: {kind: noop, result: "{{ rows }}"}
    set: {ctx.rows: "{{ rows }}"}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ workload.rows }}", iterator: row, spec: {mode: fanout, fanout: {partitions: 4, partition_by: [key], max_shard_retries: 0}}}
    tool: {kind: http, url: "{{ workload.url }}/{{ iter.row.name }}"}
    set: {ctx.all: "{{ each.results | map(attribute='body') | list }}", ctx.stats: "{{ each.stats }}"}
"""


async def test_grouped_items_return_to_their_places(person: Person, server: Script) -> None:
    text = HASHED.replace("URL", server.url).replace('"{{ rows }}"', '"x"')
    rows = [{"key": int(name) % 3, "name": name} for name in ITEMS]
    server.answers(fails(BAD))
    failed = await person.begin(text, workload={"rows": rows})
    await person.until(failed, "FAILED")
    shown = await items_of(person, failed, state="failed")
    assert {item["input"]["name"] for item in shown["items"]} == set(BAD)
    assert {str(item["index"]) for item in shown["items"]} == set(BAD)
    server.seen.clear()
    server.answers(fails(("10",)))
    still = (await person.post(failed, "rerun", failed=True))["execution_id"]
    await person.until(still, "FAILED")
    assert counted(server) == Counter(BAD)
    server.seen.clear()
    server.answers(fails(()))
    again = (await person.post(still, "rerun", failed=True))["execution_id"]
    await person.until(again, "COMPLETED")
    assert counted(server) == Counter(["10"])
    found = await variables_of(person, again)
    assert found["all"] == [{"name": name} for name in ITEMS]
    assert found["stats"]["success"] == len(ITEMS)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
async def test_what_fails_again_runs_again_alone(person: Person, server: Script, spec: str) -> None:
    text = PLAYBOOK.replace("SPEC", spec).replace("URL", server.url)
    server.answers(fails(BAD))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    server.answers(fails(("4",)))
    still = (await person.post(failed, "rerun", failed=True))["execution_id"]
    await person.until(still, "FAILED")
    shown = await items_of(person, still, state="failed")
    assert [item["input"] for item in shown["items"]] == ["4"]
    server.seen.clear()
    server.answers(fails(()))
    answer = await person.post(still, "rerun", failed=True)
    assert answer["items_to_run"] == 1
    await person.until(answer["execution_id"], "COMPLETED")
    assert counted(server) == Counter(["4", "after"])
    found = await variables_of(person, answer["execution_id"])
    assert found["all"] == [{"name": name} for name in ITEMS]
    assert (found["stats"]["success"], found["stats"]["failed"]) == (12, 0)


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: chunked, chunk_size: 4, frame: {process: frame}, max_in_flight: 3}",
        "{mode: fanout, frame: {process: frame}, fanout: {shard_size: 4, max_shard_retries: 0}}",
    ],
)
async def test_a_body_for_a_whole_frame_runs_again_for_all_its_rows(
    person: Person, server: Script, spec: str
) -> None:
    text = (
        PLAYBOOK.replace("SPEC", spec)
        .replace("{{ iter.name }}", "{{ iter.name | join('-') }}")
        .replace("URL", server.url)
    )
    server.answers(fails(("4-5-6-7",)))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    shown = await items_of(person, failed, state="failed")
    assert [(item["record"], item["index"], item["count"]) for item in shown["items"]] == [
        ("frame", 4, 4)
    ]
    assert shown["notes"]
    server.seen.clear()
    server.answers(fails(()))
    again = (await person.post(failed, "rerun", failed=True))["execution_id"]
    await person.until(again, "COMPLETED")
    assert counted(server) == Counter(["4-5-6-7", "after"])
    found = await variables_of(person, again)
    assert found["all"] == [{"name": name} for name in ("0-1-2-3", "4-5-6-7", "8-9-10-11")]
    assert found["stats"]["success"] == 3


async def test_a_loop_that_completed_in_part_is_completed(person: Person, server: Script) -> None:
    spec = "{mode: parallel, max_in_flight: 12, policy: {failure: {mode: best_effort}}}"
    text = PLAYBOOK.replace("SPEC", spec).replace("URL", server.url)
    server.answers(fails(BAD))
    partial = await person.begin(text)
    await person.until(partial, "COMPLETED")
    server.seen.clear()
    server.answers(fails(()))
    again = (await person.post(partial, "rerun", failed=True))["execution_id"]
    await person.until(again, "COMPLETED")
    # What follows saw a part of the result, and runs again.
    assert counted(server) == Counter([*BAD, "after"])
    assert (await variables_of(person, again))["stats"]["failed"] == 0


async def test_items_that_were_called_off_or_never_began_run_too(
    person: Person, server: Script
) -> None:
    spec = "{mode: sequential, policy: {failure: {mode: fail_fast}}}"
    text = PLAYBOOK.replace("SPEC", spec).replace("URL", server.url)
    server.answers(fails(("3",)))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    states = [item["state"] for item in (await items_of(person, failed))["items"]]
    assert states == ["completed"] * 3 + ["failed"] + ["cancelled"] * 8
    server.seen.clear()
    server.answers(fails(()))
    again = (await person.post(failed, "rerun", failed=True))["execution_id"]
    await person.until(again, "COMPLETED")
    assert counted(server) == Counter([*ITEMS[3:], "after"])
    assert (await variables_of(person, again))["all"] == [{"name": name} for name in ITEMS]


async def refusal(person: Person, execution_id: str, **body: Any) -> tuple[int, str]:
    answer = await person.api.post(f"/api/executions/{execution_id}/rerun", json=body)
    assert answer.json()["hint"]
    return answer.status_code, answer.json()["code"]


async def test_nothing_failed_is_refused(person: Person, server: Script) -> None:
    text = PLAYBOOK.replace("SPEC", SPECS["parallel"]).replace("URL", server.url)
    server.answers(fails(()))
    known = await person.begin(text)
    await person.until(known, "COMPLETED")
    assert await refusal(person, known, failed=True) == (422, "no_failed_items")
    assert await refusal(person, known, failed=True, from_step="after") == (422, "no_failed_items")


async def test_a_key_makes_one_rerun(person: Person, server: Script) -> None:
    text = PLAYBOOK.replace("SPEC", SPECS["parallel"]).replace("URL", server.url)
    server.answers(fails(BAD))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    found = []
    for _ in range(2):
        answer = await person.api.post(
            f"/api/executions/{failed}/rerun",
            json={"failed": True},
            headers={"Idempotency-Key": "once"},
        )
        found.append(answer.json()["execution_id"])
    assert found[0] == found[1]


WRITES = """
workload: {url: URL}
workflow:
  - step: each
    loop: {in: "{{ range(4) | map('string') | list }}", iterator: name, spec: SPEC}
    tool: {kind: http, url: "{{ workload.url }}/{{ iter.name }}", spec: {policy: {rules: [{when: "{{ output.status == 'ok' }}", then: {do: continue, set: {ctx.latest: "{{ iter.name }}"}}}]}}}
"""


async def test_what_completed_items_wrote_to_ctx_stays(person: Person, server: Script) -> None:
    text = WRITES.replace("SPEC", "{mode: parallel}").replace("URL", server.url)
    server.answers(fails(("1",)))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    server.answers(fails(("1",)))
    again = (await person.post(failed, "rerun", failed=True))["execution_id"]
    await person.until(again, "FAILED")
    assert (await variables_of(person, again))["latest"] in {"0", "2", "3"}


async def test_items_that_saw_the_writes_of_others_are_not_run_alone(
    person: Person, server: Script
) -> None:
    text = WRITES.replace("SPEC", "{mode: sequential}").replace("URL", server.url)
    server.answers(fails(("1",)))
    failed = await person.begin(text)
    await person.until(failed, "FAILED")
    assert await refusal(person, failed, failed=True) == (422, "items_depend")


SEVERAL = """
workload: {url: URL}
workflow:
  - step: split
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right}]}
  - step: left
    loop: {in: [l0, l1], iterator: name, spec: {mode: parallel, policy: {failure: {mode: best_effort}}}}
    tool: {kind: http, url: "{{ workload.url }}/{{ iter.name }}"}
  - step: right
    loop: {in: [r0, r1], iterator: name, spec: {mode: parallel, policy: {failure: {mode: best_effort}}}}
    tool: {kind: http, url: "{{ workload.url }}/{{ iter.name }}"}
"""


async def test_of_several_loops_side_by_side_one_is_named(person: Person, server: Script) -> None:
    server.answers(fails(("l1", "r1")))
    known = await person.begin(SEVERAL.replace("URL", server.url))
    await person.until(known, "COMPLETED")
    assert await refusal(person, known, failed=True) == (422, "several_failed_loops")
    server.seen.clear()
    server.answers(fails(()))
    answer = await person.post(known, "rerun", failed=True, from_step="right")
    await person.until(answer["execution_id"], "COMPLETED")
    assert counted(server) == Counter(["r1"])


async def test_units_that_one_worker_cuts_are_shown_and_not_run_alone(
    person: Person, server: Script
) -> None:
    spec = "{mode: chunked, chunk_size: 4, policy: {exec: local}}"
    server.answers(fails(BAD))
    failed = await person.begin(PLAYBOOK.replace("SPEC", spec).replace("URL", server.url))
    await person.until(failed, "FAILED")
    shown = await items_of(person, failed)
    assert [(item["record"], item["index"], item["count"]) for item in shown["items"]] == [
        ("unit", 0, 4),
        ("unit", 4, 4),
        ("unit", 8, 4),
    ]
    assert [item["state"] for item in shown["items"]] == ["failed"] * 3
    assert shown["notes"]
    assert await refusal(person, failed, failed=True) == (422, "items_not_repeatable")
    # The way out that the refusal names.
    server.answers(fails(()))
    again = await person.post(failed, "rerun", from_step="each")
    await person.until(again["execution_id"], "COMPLETED")


@pytest.mark.parametrize("spec", [SPECS["parallel"], SPECS["chunked"]])
async def test_a_running_loop_shows_what_waits_and_runs(
    person: Person, server: Script, spec: str
) -> None:
    gate = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.path in ("/1", "/5", "/6"):
            await gate.wait()
        return web.json_response({})

    server.answers(answer)
    known = await person.begin(PLAYBOOK.replace("SPEC", spec).replace("URL", server.url))

    async def has_begun() -> bool:
        found = await person.api.get(f"/api/executions/{known}/items/each")
        return found.status_code == 200 and "running" in {
            item["state"] for item in found.json()["items"]
        }

    await eventually(has_begun, timeout_s=PATIENCE_S)
    states = {item["state"] for item in (await items_of(person, known))["items"]}
    assert "running" in states
    assert states <= {"completed", "running", "pending"}
    assert await refusal(person, known, failed=True) == (409, "execution_running")
    await person.post(known, "cancel")
    gate.set()
    await person.until(known, "CANCELLED")
    states = {item["state"] for item in (await items_of(person, known))["items"]}
    assert states <= {"completed", "cancelled"}
    server.seen.clear()
    answer_again = await person.post(known, "rerun", failed=True)
    await person.until(answer_again["execution_id"], "COMPLETED")
    assert len(set(counted(server)) - {"after"}) == answer_again["items_to_run"]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
async def test_pages_follow_each_other(person: Person, server: Script, spec: str) -> None:
    server.answers(fails(BAD))
    failed = await person.begin(PLAYBOOK.replace("SPEC", spec).replace("URL", server.url))
    await person.until(failed, "FAILED")
    for state, expected in ((None, ITEMS), ("failed", list(BAD))):
        found: list[str] = []
        after, has_more = "", True
        while has_more:
            query = {"limit": 2, "after": after} | ({} if state is None else {"state": state})
            page = await items_of(person, failed, **query)
            assert len(page["items"]) <= 2
            found += [item["input"] for item in page["items"]]
            after, has_more = page["next_after"], page["has_more"]
        assert found == expected
