"""What a decision looks into is read once and stays until it is made; who comes to none is told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support import informers
from tests.support.one_shard import ORGANIZATION, TENANT, World, assert_sound

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.requests import facts
from noetl_planner.facts.fact_intake import DEFECTS_MAX
from noetl_planner.shards.caches import DecisionValues, PayloadCache
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import VersionConflict

# Each value takes more than 200 KiB.
WRITES = """\
  - step: write
    tool: {kind: noop}
    set:
      ctx.a: "{{ range(40000) | list }}"
      ctx.b: "{{ range(1, 40000) | list }}"
      ctx.c: "{{ range(2, 40000) | list }}"
"""
COMPARES = (
    WRITES
    + """\
    next: {arcs: [{step: wait}]}
  - step: wait
    tool: {kind: noop}
    next: {arcs: [{step: after, when: "{{ ctx.a[0] != ctx.b[0] }}"}]}
  - {step: after, tool: {kind: noop}}
"""
)
BRANCHES = (
    WRITES
    + """\
    next: {spec: {mode: inclusive}, arcs: [{step: x}, {step: y}, {step: z}]}
  - {step: x, tool: {kind: noop}, set: {ctx.x: "{{ ctx.a[0] }}"}}
  - {step: y, tool: {kind: noop}, set: {ctx.y: "{{ ctx.b[0] }}"}}
  - {step: z, tool: {kind: noop}, set: {ctx.z: "{{ ctx.c[0] }}"}}
"""
)
CACHE_BYTES = 300_000
Open = Callable[..., World]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    worlds: list[World] = []

    def build(text: str, **limits: int) -> World:
        worlds.append(World(tmp_path, {"it": text}, **limits))
        worlds[-1].loaded._bytes_max = CACHE_BYTES
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


def finish_all(world: World, execution_id: ExecutionId) -> None:
    """Report every live command as done, in one message."""
    told = [
        facts.CommandCompleted(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=informers.WORKER,
            result=informers.RESULT,
        )
        for command in world.state(execution_id).commands.values()
    ]
    world.send(codec.encode_json(world.batch(execution_id, *told)))
    world.settle()


def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is read for templates."""
    found: list[str] = []
    load = PayloadCache.load_payload

    async def noted(loaded: PayloadCache, ref: PayloadRef) -> None:
        found.append(ref.sha256)
        await load(loaded, ref)

    monkeypatch.setattr(PayloadCache, "load_payload", noted)
    return found


def error_of(world: World, execution_id: ExecutionId) -> ErrorObject:
    last: Any = world.history(execution_id)[-1].event
    assert get_event_type(last) == "playbook.failed"
    error: ErrorObject = last.error
    return error


def test_two_values_that_do_not_fit_the_cache_together_are_read_once_each(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(COMPARES)
    execution = world.begin("it")
    finish_all(world, execution)
    reads = counted(world, monkeypatch)
    finish_all(world, execution)
    assert [command.step for command in world.state(execution).commands.values()] == ["after"]
    assert len(reads) == len(set(reads)) == 2


def test_what_one_fact_leads_to_is_refused_by_an_error_of_the_playbook(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(COMPARES, read_bytes_max=400_000)
    execution = world.begin("it")
    finish_all(world, execution)
    reads = counted(world, monkeypatch)
    finish_all(world, execution)
    error = error_of(world, execution)
    assert (error.kind, error.code, error.step) == ("payload_too_large", "TOO_LARGE", "wait")
    assert "step 'wait', field 'next.arcs[0].when': what follows from one event" in error.message
    assert "400000 is the limit" in error.message
    assert error.message.endswith("in {{ ctx.a[0] != ctx.b[0] }}")
    assert len(reads) == 1
    assert world.buried() == []


@pytest.mark.parametrize("bound", [{"read_bytes_max": 400_000}, {"read_values_max": 1}])
def test_facts_that_need_too_much_together_are_decided_one_by_one(
    opened: Open, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int]
) -> None:
    world = opened(BRANCHES, **bound)
    execution = world.begin("it")
    finish_all(world, execution)
    reads = counted(world, monkeypatch)
    held = noted_sizes(monkeypatch)
    finish_all(world, execution)
    assert get_event_type(world.history(execution)[-1].event) == "playbook.completed"
    assert [world.state(execution).ctx[name] for name in "xyz"] == [0, 1, 2]
    assert max(held) == 1
    assert len(set(reads)) == 3
    assert world.buried() == []
    assert_sound(world, execution)


def noted_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many values are held whenever one more is read."""
    found: list[int] = []
    load = DecisionValues.load_payload

    async def noted(held: DecisionValues, ref: PayloadRef) -> bool:
        is_there = await load(held, ref)
        found.append(len(held))
        return is_there

    monkeypatch.setattr(DecisionValues, "load_payload", noted)
    return found


def test_a_part_of_a_message_that_cannot_be_kept_comes_again_with_all_of_it(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(BRANCHES, read_values_max=1)
    execution = world.begin("it")
    finish_all(world, execution)
    append, tries = world.adapters.ledger.append, iter(range(100))

    async def refused_once(batch: Any) -> list[int]:
        if next(tries) == 1:
            raise VersionConflict("another planner was here")
        return await append(batch)

    monkeypatch.setattr(world.adapters.ledger, "append", refused_once)
    finish_all(world, execution)
    assert get_event_type(world.history(execution)[-1].event) == "playbook.completed"
    assert [world.state(execution).ctx[name] for name in "xyz"] == [0, 1, 2]
    assert_sound(world, execution)


def test_a_decision_that_comes_no_further_is_logged_and_buried_and_others_go_on(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(COMPARES)
    execution = world.begin("it")
    finish_all(world, execution)

    async def forgetful(_loaded: PayloadCache, _ref: PayloadRef) -> None:
        """Read a value and keep nothing of it."""

    monkeypatch.setattr(PayloadCache, "load_payload", forgetful)
    with capture_logs() as logged:
        finish_all(world, execution)
    (dead_letter,) = world.buried()
    assert dead_letter.reason == "DecisionFailed: DecisionStuckError"
    told = [item for item in logged if item["event"] == "decision failed"]
    assert len(told) == DEFECTS_MAX
    assert {item["execution_id"] for item in told} == {execution}
    assert all("asks again for noetl://" in item["error"] for item in told)
    neighbour = world.begin("good")
    finish_all(world, neighbour)
    assert get_event_type(world.history(neighbour)[-1].event) == "playbook.completed"


async def stored(payloads: MemoryPayloads, value: Any) -> PayloadRef:
    return await payloads.put_payload(
        codec.encode_json(value),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=JSON_MEDIA_TYPE,
    )


async def test_what_a_decision_has_seen_outlives_the_cache() -> None:
    payloads = MemoryPayloads()
    loaded = PayloadCache(payloads, bytes_max=0)
    refs = [await stored(payloads, [number] * 10) for number in range(3)]
    held, other = DecisionValues(loaded), DecisionValues(loaded)
    assert [await held.load_payload(ref) for ref in refs] == [True, True, True]
    assert [held[ref.sha256] for ref in refs] == [[number] * 10 for number in range(3)]
    # Another decision finds the latest alone.
    assert [ref.sha256 in other for ref in refs] == [False, False, True]
    assert len(other) == 1


async def test_what_two_shards_read_at_once_takes_the_cache_s_room_once() -> None:
    payloads = MemoryPayloads()
    first, second = [await stored(payloads, [number] * 100) for number in range(2)]
    loaded = PayloadCache(payloads, bytes_max=first.payload_bytes + second.payload_bytes)
    for ref in (first, second, second, second):
        await loaded.load_payload(ref)
    assert {ref.sha256 for ref in (first, second)} == {
        ref.sha256 for ref in (first, second) if ref.sha256 in DecisionValues(loaded)
    }


async def test_what_was_looked_into_last_is_forgotten_last() -> None:
    payloads = MemoryPayloads()
    refs = [await stored(payloads, [number] * 100) for number in range(1, 4)]
    loaded = PayloadCache(payloads, bytes_max=2 * refs[0].payload_bytes)
    await loaded.load_payload(refs[0])
    await loaded.load_payload(refs[1])
    assert DecisionValues(loaded)[refs[0].sha256] == [1] * 100
    await loaded.load_payload(refs[2])
    assert [ref.sha256 in DecisionValues(loaded) for ref in refs] == [True, False, True]
