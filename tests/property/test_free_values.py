"""Whatever JSON stands where a fact is free to say anything: it is refused, or decided on.

A fact that no decision can be made on goes to the dead letters at once, for a reason with a name;
what travelled with it is decided. None of them fails a decision.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support import informers
from tests.support.one_shard import ORGANIZATION, TENANT, World, tell
from tests.support.spoiling import HOSTILE, places

from noetl_contracts import codec
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId
from noetl_contracts.json_values import DEPTH_MAX
from noetl_contracts.payloads import JSON_MEDIA_TYPE, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import CommandCompleted, CtxWriteRequested, Fact, FrameClosed
from noetl_contracts.status import ExecutionStatus
from noetl_playbook.views.result_envelope import LOOP, PIPELINE

EXAMPLES_SHARE = 8
# Everything that an arc, a `set` or a loop can ask of a result and of `ctx`.
_READ = (
    "{{ s.n == 1 and s.status == 'ok' and s.data is defined and s.error is defined and "
    "s.t.n is defined and s.results is defined and s.rows is defined and s.fanin is defined }}"
)
_ARCS = (
    f'next: {{arcs: [{{step: u, when: "{_READ}"}}, {{step: u, when: "{{{{ s | string }}}}"}}, '
    '{step: u, when: "{{ ctx.k.a.b[0] == 1 }}"}, '
    '{step: u, set: {"ctx.m": "{{ s }}", "ctx.n.o": "{{ ctx.k }}"}}]}'
)
_NEXT = (
    '  - {step: u, loop: {in: "{{ s }}", iterator: i}, tool: {kind: python, code: "return 1",'
    ' input: {a: "{{ s }}", b: "{{ ctx }}", c: "{{ i }}"}}}\n'
)
_LOOP = "iterator: i, spec: {mode: %s}}, tool: {kind: noop}, " + _ARCS + "}\n" + _NEXT
VICTIMS = {
    "step": "  - {step: s, tool: {kind: python, code: 'return 1'}, " + _ARCS + "}\n" + _NEXT,
    "items": "  - {step: s, loop: {in: [1, 2], " + _LOOP % "parallel",
    "frames": "  - {step: s, loop: {in: '{{ range(4) | list }}', "
    + _LOOP % "chunked, chunk_size: 2, max_in_flight: 2",
    "shards": "  - {step: s, loop: {in: '{{ range(4) | list }}', "
    + _LOOP % "fanout, fanout: {partitions: 2}",
    "slots": "  - {step: s, loop: {cursor: {kind: postgres, auth: db, claim: select 1}, "
    + _LOOP % "cursor, max_in_flight: 2",
    "chunks": "  - {step: s, tool: {kind: python, code: 'return []', stream: {}},"
    " next: {arcs: [{step: u}]}}\n  - {step: u, tool: {kind: noop}}\n",
}
# What facts are free to fill, and what readers look for inside.
FREE = frozenset(
    {
        *("context", "data", "tasks", "raw", "names", "fields", "stats", "fanin", "patch"),
        *("metrics", "locality", "workload", "details", "schema", "timeout_s", "notes"),
    }
)
NAMES = (
    *("status", "data", "results", "n", "t", "error", "raw", "kind", "tasks", "last", "names"),
    *("shape", "fields", "stats", "fanin", "_parts", "ref", "inline", "failed", "index", "key"),
    *("__noetl_kept__", "__noetl_rows__", "length", "preview", "columns", "store", "is_inline"),
    *("rows", "commands", "k", "a"),
)
LEAVES = st.sampled_from([*HOSTILE, PIPELINE, LOOP, "ok", "python", "s", "t", 0.5])
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=4) | st.lists(inner, max_size=3)
    ),
    max_leaves=8,
)
FEW = settings(
    max_examples=max(settings().max_examples // EXAMPLES_SHARE, 8),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    opened = World(tmp_path_factory.mktemp("payloads"), VICTIMS)
    yield opened
    opened.close()


def told_of(world: World, victim: ExecutionId) -> list[Fact]:
    """List what may be said, without what is the planner's own to say."""
    own = facts.ItemsCollected | facts.PartsCollected
    return [fact for fact in informers.all_facts(world.state(victim)) if not isinstance(fact, own)]


def ends(world: World, victim: ExecutionId) -> Iterator[bytes]:
    """Say of every live command that it has ended well, so that what follows is read."""
    for item in told_of(world, victim):
        if isinstance(item, CommandCompleted | FrameClosed):
            yield codec.encode_json(world.batch(victim, item))


def with_free_values(world: World, data: st.DataObject, fact: Fact) -> bytes:
    """Put anything at a free place of a fact, and perhaps anything behind a reference."""
    value = codec.decode_json(codec.encode_json(fact))
    free = [(holder, key) for holder, key in places(value) if key in FREE]
    if free:
        holder, key = data.draw(st.sampled_from(free))
        anything = data.draw(ANYTHING)
        is_beside = isinstance(anything, dict) and isinstance(holder[key], dict)
        holder[key] = {**holder[key], **anything} if is_beside else anything
    result = value.get("result")
    if isinstance(result, dict) and data.draw(st.booleans()):
        result["reference"] = stored(world, data.draw(ANYTHING))
        context = result.get("context")
        if isinstance(context, dict):
            context.pop("data", None)
    return codec.encode_json(value)


def stored(world: World, content: Any) -> Any:
    put = world.adapters.payloads.put_payload
    reference = world.run(
        put(
            codec.encode_json(content),
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            media_type=JSON_MEDIA_TYPE,
        )
    )
    return codec.to_builtins(reference)


@pytest.mark.parametrize("name", VICTIMS)
@FEW
@given(data=st.data())
def test_anything_at_a_free_place_is_refused_or_decided(
    world: World, name: str, data: st.DataObject
) -> None:
    victim = world.begin(name)
    told = data.draw(st.sampled_from(told_of(world, victim)))
    spoilt = with_free_values(world, data, told)
    tell(world, victim, facts.encode_fact_batch(world.batch(victim), [spoilt]), is_any=True)
    for _ in range(2):
        tell(world, victim, *ends(world, victim), is_any=True)


def a_completed(world: World, victim: ExecutionId, **changes: Any) -> CommandCompleted:
    (live,) = world.state(victim).commands.values()
    told = CommandCompleted(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=informers.WORKER,
        result=informers.RESULT,
    )
    return structs.replace(told, **changes)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


NO_RESULTS = {
    "tasks that are none": {"shape": PIPELINE, "data": {"tasks": {"t": "x"}}},
    "data that is a list": {"shape": PIPELINE, "data": [1]},
    "results that are no list": {"shape": LOOP, "data": {"results": 7}},
    "an unknown shape": {"shape": "circle", "data": {}},
    "fields that are none": {"shape": PIPELINE, "data": {}, "fields": "x"},
    "parts that are none": {"shape": LOOP, "data": {"fanin": {"_parts": {"inline": [1]}}}},
}


@pytest.mark.parametrize("context", NO_RESULTS.values(), ids=NO_RESULTS)
def test_what_is_no_result_is_buried_at_once_and_what_came_with_it_is_decided(
    world: World, context: dict[str, Any]
) -> None:
    victim = world.begin("step")
    bad = a_completed(world, victim, result=ResultEnvelope(status="ok", context=context))
    before = CtxWriteRequested(request_id="r-1", patch={"before": 1})
    after = CtxWriteRequested(request_id="r-2", patch={"after": 2})
    batch = codec.encode_json(world.batch(victim, before, bad, after))
    (dead_letter,) = tell(world, victim, batch)
    assert dead_letter.reason.startswith("ResultMalformed: CommandCompleted.result: ")
    assert dead_letter.delivered == 1
    assert world.state(victim).ctx == {"before": 1, "after": 2}
    assert bad.command_id in world.state(victim).commands


def test_a_fact_of_no_schema_is_buried_and_what_came_with_it_is_decided(world: World) -> None:
    victim = world.begin("step")
    write = CtxWriteRequested(request_id="r-1", patch={"kept": 1})
    told = [b'{"fact":"command_lost","command_id":7}', codec.encode_json(write), b'{"fact":"none"}']
    (dead_letter,) = tell(world, victim, facts.encode_fact_batch(world.batch(victim), told))
    assert dead_letter.reason.startswith("MalformedMessage: fact 0 does not fit its schema")
    assert world.state(victim).ctx == {"kept": 1}


@pytest.mark.parametrize("levels", [DEPTH_MAX + 20, 5_000])
def test_what_is_nested_too_deep_is_buried(world: World, levels: int) -> None:
    victim = world.begin("step")
    told = codec.encode_json(a_completed(world, victim, patch={"k": "here"}))
    deep = told.replace(b'"here"', b"[" * levels + b"]" * levels)
    (dead_letter,) = tell(world, victim, facts.encode_fact_batch(world.batch(victim), [deep]))
    assert dead_letter.reason.startswith("MalformedMessage: ")
    assert "nested" in dead_letter.reason
    assert world.state(victim).ctx == {}


def test_what_is_nested_as_deep_as_results_may_be_is_decided(world: World) -> None:
    victim = world.begin("step")
    patch = {"k": nested(DEPTH_MAX)}
    tell(
        world,
        victim,
        codec.encode_json(world.batch(victim, a_completed(world, victim, patch=patch))),
    )
    assert world.state(victim).ctx["k"] == patch["k"]


def test_a_stored_payload_that_is_no_result_fails_who_reads_it(world: World) -> None:
    victim = world.begin("step")
    reference = stored(world, {"tasks": 7})
    answer = codec.decode_json(codec.encode_json(a_completed(world, victim)))
    answer["result"] = {
        "status": "ok",
        "reference": reference,
        "context": {"shape": PIPELINE, "fields": {}},
    }
    batch = facts.encode_fact_batch(world.batch(victim), [codec.encode_json(answer)])
    assert tell(world, victim, batch) == []
    assert world.state(victim).status is ExecutionStatus.FAILED


@pytest.mark.parametrize("name", ["frames", "shards", "slots"])
def test_who_says_of_a_frame_what_is_said_of_a_step_ends_nothing(world: World, name: str) -> None:
    victim = world.begin(name)
    for command in list(world.state(victim).commands.values()):
        told = CommandCompleted(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=informers.WORKER,
            result=informers.RESULT,
        )
        assert tell(world, victim, codec.encode_json(world.batch(victim, told))) == []
    ended = [get_event_type(item.event) for item in world.history(victim)]
    assert "command.completed" not in ended
