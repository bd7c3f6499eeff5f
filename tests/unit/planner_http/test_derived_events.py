"""Events that the ledger does not have are shown beside those that they follow from."""

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning
from tests.support.storage import an_execution

from noetl_contracts.events.command_events import CommandStarted
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.ids import CommandId, RunId, WorkerId
from noetl_contracts.payloads import ResultEnvelope

Api = AsyncTestClient[Litestar]


async def test_a_claim_is_shown_as_an_event_of_its_own(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    begun = CommandStarted(
        step="start",
        run_id=RunId("11"),
        command_id=CommandId("21"),
        attempt=2,
        worker_id=WorkerId("w-1"),
    )
    await world.append(execution_id, [*beginning(), begun])
    page = (await api.get(f"/api/executions/{execution_id}?page_size=1000")).json()
    claimed, told = page["events"][-2:]
    assert (claimed["event_type"], told["event_type"]) == ("command.claimed", "command.started")
    assert claimed["context"] == told["context"]
    assert claimed["context"]["command_id"] == "21"
    assert claimed["event_id"] != told["event_id"]
    assert claimed["meta"]["derived_from"] == told["event_id"]
    assert page["pagination"]["total"] == len(page["events"]) - 1


async def test_the_end_of_an_item_is_shown_as_an_event_of_its_own(
    api: Api, world: ApiWorld
) -> None:
    execution_id = an_execution()
    call = CallDone(
        step="start",
        run_id=RunId("11"),
        command_id=CommandId("21"),
        result=ResultEnvelope(status="ok", context={}),
        item_index=4,
    )
    await world.append(execution_id, [*beginning(), call])
    await world.project(execution_id)
    events = (await api.get(f"/api/executions/{execution_id}/events")).json()["events"]
    told, item = events[-2:]
    assert (told["event_type"], item["event_type"]) == ("call.done", "loop.item")
    assert item["context"]["item_index"] == 4
    assert (item["version"], item["meta"]["derived_from"]) == (told["version"], told["event_id"])
    page = (await api.get(f"/api/executions/{execution_id}?page_size=1000")).json()
    assert page["pagination"]["total"] == len(page["events"]) - 1
