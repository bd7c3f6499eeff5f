# ruff: noqa: E501 - a playbook reads best with one line to an idea
"""Runs that are held, resumed, cancelled, bounded and repeated, with every service in one process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.person import PATIENCE_S, Person
from tests.support.polling import eventually
from tests.support.scripted import Script, says

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def closed_gate(server: Script) -> AsyncIterator[asyncio.Event]:
    """A server that answers nobody before the gate is opened."""
    gate = asyncio.Event()
    then = says({"ok": True})

    async def answer(request: Any) -> Any:
        await gate.wait()
        return await then(request)

    server.answers(answer)
    yield gate
    gate.set()


async def when(happened: Callable[[], bool]) -> None:
    async def has_happened() -> bool:
        return happened()

    await eventually(has_happened, timeout_s=PATIENCE_S)


async def test_a_loop_is_held_and_goes_on_exactly(person: Person, server: Script) -> None:
    async with closed_gate(server) as gate:
        known_names = await person.begin(
            f"""
workflow:
  - step: each
    loop: {{in: "{{{{ range(6) | list }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: 2}}}}
    tool: {{kind: http, url: "{server.url}/{{{{ iter.n }}}}"}}
"""
        )
        await when(lambda: len(server.seen) == 2)
        await person.post(known_names, "pause", reason="a look")
        await person.until(known_names, "PAUSED")
        gate.set()

        async def both_ended() -> bool:
            return (await person.types(known_names)).count("call.done") == 2

        await eventually(both_ended, timeout_s=PATIENCE_S)
        assert (await person.status(known_names))["status"] == "PAUSED"
        assert len(server.seen) == 2
        await person.post(known_names, "resume")
        await person.until(known_names, "COMPLETED")
    assert sorted(seen.path for seen in server.seen) == [f"/{n}" for n in range(6)]


async def test_a_slow_request_is_cancelled_in_the_middle(person: Person, server: Script) -> None:
    async with closed_gate(server):
        known_names = await person.begin(
            f"""
workflow:
  - step: slow
    tool: {{kind: http, url: "{server.url}", timeout: 600}}
    next: {{arcs: [{{step: never}}, {{step: never, on: call.error}}]}}
  - {{step: never, tool: {{kind: noop}}}}
"""
        )
        await when(server.arrived.is_set)
        await person.post(known_names, "cancel", reason="enough")
        found = await person.until(known_names, "CANCELLED")
    assert found["error"]["kind"] == "cancelled"
    types = await person.types(known_names)
    assert types[-3:] == ["command.cancelled", "step.exit", "execution.cancelled"]
    (called_off,) = [
        item
        for item in await person.events(known_names)
        if item["event_type"] == "command.cancelled"
    ]
    assert called_off["error"]["kind"] == "cancelled"
    assert isinstance(called_off["context"]["command_id"], str)
    again = await person.post(known_names, "cancel")
    assert (again["accepted"], again["status"]) == (False, "CANCELLED")


async def test_an_execution_ends_when_its_time_is_over(person: Person, server: Script) -> None:
    async with closed_gate(server):
        known_names = await person.begin(
            f"""
executor: {{spec: {{timeout: 500ms}}}}
workflow:
  - {{step: slow, tool: {{kind: http, url: "{server.url}", timeout: 600}}}}
"""
        )
        found = await person.until(known_names, "FAILED")
    assert found["error"]["kind"] == "timeout"
    assert "command.cancelled" in await person.types(known_names)


async def test_a_write_from_outside_reaches_the_next_step(person: Person, server: Script) -> None:
    async with closed_gate(server) as gate:
        known_names = await person.begin(
            f"""
workflow:
  - {{step: slow, tool: {{kind: http, url: "{server.url}"}}, next: {{arcs: [{{step: use}}]}}}}
  - {{step: use, tool: {{kind: noop, result: {{n: "{{{{ ctx.list | length + ctx.n }}}}"}}}}}}
"""
        )
        await when(server.arrived.is_set)
        for name, value in (("n", 1), ("list", ["x" * 100] * 1_000), ("gone", True)):
            answer = await person.api.put(f"/api/vars/{known_names}/{name}", json={"value": value})
            assert answer.status_code == 202, answer.text

        async def is_written() -> bool:
            answer = await person.api.get(f"/api/vars/{known_names}/list")
            return answer.status_code == 200 and len(answer.json()["value"]) == 1_000

        await eventually(is_written, timeout_s=PATIENCE_S)
        assert (await person.api.delete(f"/api/vars/{known_names}/gone")).status_code == 202
        gate.set()
        found = await person.until(known_names, "COMPLETED")
    assert found["variables"].keys() == {"n", "list"}
    shown = (await person.api.get(f"/api/result/{known_names}/use")).json()
    assert shown["data"] == {"n": 1_001}


async def test_a_failed_run_is_repeated_from_the_step_that_failed(
    person: Person, server: Script
) -> None:
    server.answers(says({"first": 1}), says({}, status=500), says({"second": 2}))
    text = f"""
workload: {{url: "{server.url}", factor: 3}}
workflow:
  - step: first
    tool: {{kind: http, url: "{{{{ workload.url }}}}/first"}}
    set: {{ctx.seen: "{{{{ first.body.first }}}}", ctx.big: "{{{{ ['x' * 100] * 1000 }}}}"}}
    next: {{arcs: [{{step: second}}]}}
  - step: second
    tool: {{kind: http, url: "{{{{ workload.url }}}}/second"}}
    next: {{arcs: [{{step: sum}}]}}
  - step: sum
    tool:
      kind: noop
      result:
        sum: "{{{{ (first.body.first + second.body.second + ctx.seen + ctx.big | length) * workload.factor }}}}"
"""
    known = await person.begin(text)
    await person.until(known, "FAILED")
    again = await person.post(known, "rerun", workload={"factor": 10})
    repeated = again["execution_id"]
    assert repeated != known
    await person.until(repeated, "COMPLETED")
    assert [seen.path for seen in server.seen] == ["/first", "/second", "/second"]
    shown = (await person.api.get(f"/api/result/{repeated}/sum")).json()
    assert shown["data"] == {"sum": (1 + 2 + 1 + 1_000) * 10}
    types = await person.types(repeated)
    assert types[:3] == ["playbook.initialized", "execution.inherited", "step.enter"]


async def test_large_inputs_and_a_large_ctx_go_the_whole_way(person: Person) -> None:
    known_names = await person.begin(
        """
workload: {rows: []}
workflow:
  - step: keep
    tool: {kind: noop, set: {ctx.rows: "{{ workload.rows }}", ctx.text: "{{ 'y' * 300000 }}"}}
    next: {arcs: [{step: count, when: "{{ ctx.rows | length == 20000 }}"}]}
  - step: count
    tool:
      kind: python
      input: {rows: "{{ ctx.rows }}", text: "{{ ctx.text }}"}
      code: "return {'n': len(rows), 'last': rows[-1]['i'], 'text': len(text)}"
""",
        workload={"rows": [{"i": n, "pad": "p" * 100} for n in range(20_000)]},
    )
    await person.until(known_names, "COMPLETED")
    shown = (await person.api.get(f"/api/result/{known_names}/count")).json()
    assert shown["data"] == {"n": 20_000, "last": 19_999, "text": 300_000}
    events = await person.events(known_names)
    assert max(len(str(event["context"])) for event in events) < 20_000
