"""What a rerun of failed items takes over, as the request that is kept says it."""

from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support import storage
from tests.support.api import ApiWorld
from tests.support.storage import an_execution

from noetl_contracts import codec, ids
from noetl_contracts.commands.loop_collections import TakenItem
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import Event
from noetl_contracts.events.execution_events import PlaybookFailed, PlaybookInitialized
from noetl_contracts.events.loop_events import LoopStarted
from noetl_contracts.events.step_events import CallDone, CallError, StepEnter
from noetl_contracts.ids import CatalogId, ExecutionId, RunId
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_planner.loops.taken_units import TakenResults
from noetl_storage.payloads import payload_references

Api = AsyncTestClient[Litestar]
RUN = RunId("11")
CAUSE = ErrorObject(kind="python", message="boom")
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: each, path: demo/each}
workflow:
  - step: each
    loop: {in: [a, b, c], iterator: name, spec: {mode: MODE}}
    tool: {kind: noop}
"""


async def put(world: ApiWorld, value: Any) -> PayloadRef:
    return await world.payloads.put_payload(
        codec.encode_json(value),
        media_type=JSON_MEDIA_TYPE,
        tenant_id=storage.TENANT,
        organization_id=storage.ORGANIZATION,
    )


def item(index: int, reference: PayloadRef, **patch: Any) -> CallDone:
    return CallDone(
        step="each",
        run_id=RUN,
        command_id=ids.derive_command_id(RUN, f"item-{index}"),
        result=ResultEnvelope(status="ok", reference=reference),
        item_index=index,
        patch=patch,
    )


async def failed(api: Api, world: ApiWorld, items: list[Event], *, mode: str) -> ExecutionId:
    text = PLAYBOOK.replace("MODE", mode)
    answer = await api.post(
        "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
    )
    assert answer.status_code == 200, answer.text
    execution = an_execution()
    loop = LoopStarted(
        step="each", run_id=RUN, mode=mode, max_in_flight=1, total=3, collection=["a", "b", "c"]
    )
    events: list[Event] = [
        PlaybookInitialized(
            path="demo/each",
            catalog_id=CatalogId("1"),
            catalog_version=1,
            playbook_digest="d",
            entry_step="each",
            workload={},
            ctx={"before": 1},
        ),
        StepEnter(step="each", run_id=RUN, activation=1),
        *(loop, *items),
        PlaybookFailed(error=CAUSE, step="each"),
    ]
    await world.append(execution, events, has_keys=True)
    await world.project(execution)
    return execution


def broken(index: int) -> CallError:
    return CallError(
        step="each",
        run_id=RUN,
        command_id=ids.derive_command_id(RUN, f"item-{index}"),
        error=CAUSE,
        item_index=index,
        patch={"wrote": "before it failed"},
    )


def asked(world: ApiWorld) -> facts.Rerun:
    (message,) = world.store.message_by_id.values()
    (fact,) = facts.decode_fact_batch(message.row.data).facts
    assert isinstance(fact, facts.ExecutionRequested)
    assert fact.rerun is not None
    return fact.rerun


async def test_a_step_that_is_not_there_is_refused_by_the_nearest_name(
    api: Api, world: ApiWorld
) -> None:
    known = await failed(api, world, [broken(1)], mode="parallel")
    answer = await api.post(
        f"/api/executions/{known}/rerun", json={"failed": True, "from_step": "eahc"}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_step")
    assert answer.json()["hint"] == "did you mean 'each'?"


async def is_mentioned(world: ApiWorld, digest: str, reference: PayloadRef) -> bool:
    async def pieces() -> AsyncIterator[bytes]:
        yield await world.payloads.read_payload(reference)

    return digest in await payload_references.find_mentioned(pieces(), {digest})


async def test_the_request_holds_what_the_completed_items_gave(api: Api, world: ApiWorld) -> None:
    first, last = await put(world, "A" * 100), await put(world, "C" * 100)
    items: list[Event] = [item(2, last, wrote="last"), broken(1), item(0, first, wrote="first")]
    known = await failed(api, world, items, mode="parallel")
    answer = await api.post(f"/api/executions/{known}/rerun", json={"failed": True})
    assert answer.status_code == 202, answer.text
    shown = answer.json()
    assert (shown["step"], shown["items_to_run"], shown["units_taken"]) == ("each", 1, 2)
    rerun = asked(world)
    taken = rerun.source.items
    assert taken is not None
    assert (taken.execution_id, taken.run_id) == (known, RUN)
    assert (taken.total, taken.completed, taken.todo) == (3, 2, 1)
    assert codec.decode_json(await world.payloads.read_payload(taken.todo_ref)) == [1]
    assert taken.collection_ref is not None
    assert codec.decode_json(await world.payloads.read_payload(taken.collection_ref)) == [
        "a",
        "b",
        "c",
    ]
    results = TakenResults(world.payloads, taken)
    assert [entry async for entry in results.read_items()] == [
        TakenItem(index=0, result=ResultEnvelope(status="ok", reference=first)),
        TakenItem(index=2, result=ResultEnvelope(status="ok", reference=last)),
    ]
    # From the request to each result there is a chain of mentions: none of them is collected.
    parts = codec.decode_json(await world.payloads.read_payload(taken.results_ref))["parts"]
    part = codec.convert_value(parts[0]["ref"], PayloadRef)
    assert await is_mentioned(world, part.sha256, taken.results_ref)
    assert await is_mentioned(world, first.sha256, part)
    assert await is_mentioned(world, last.sha256, part)
    # What a failed item wrote is left out, the rest is laid over `ctx` in item order.
    assert rerun.inherited is not None
    assert rerun.inherited.ctx == {"before": 1, "wrote": "last"}
    # Files are taken over as the completed items left them.
    assert rerun.source.files[-1].before_activation == 2


async def test_items_before_one_that_failed_in_a_sequential_loop_may_have_written(
    api: Api, world: ApiWorld
) -> None:
    kept = await put(world, "A")
    items: list[Event] = [item(0, kept, wrote="a"), item(1, kept, wrote="b"), broken(2)]
    known = await failed(api, world, items, mode="sequential")
    answer = await api.post(f"/api/executions/{known}/rerun", json={"failed": True})
    assert answer.status_code == 202, answer.text
    rerun = asked(world)
    assert rerun.inherited is not None
    assert rerun.inherited.ctx == {"before": 1, "wrote": "b"}


async def test_items_behind_it_may_not(api: Api, world: ApiWorld) -> None:
    kept = await put(world, "A")
    items: list[Event] = [item(0, kept), broken(1), item(2, kept, wrote="c")]
    known = await failed(api, world, items, mode="sequential")
    answer = await api.post(f"/api/executions/{known}/rerun", json={"failed": True})
    assert (answer.status_code, answer.json()["code"]) == (422, "items_depend")
    assert answer.json()["hint"] == "run all items again: --from each"
