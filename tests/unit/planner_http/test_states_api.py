"""`state` over HTTP: listed, shown with its history, set by a person; and ranges of backfills."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld
from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts.commands.state_values import (
    IncrementRange,
    StateChange,
    StateType,
    StateValue,
)
from noetl_contracts.ids import ExecutionId, OrganizationId
from noetl_contracts.ledger.records import OwnedStateChange
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_storage.memory.states import MemoryStates

Api = AsyncTestClient[Litestar]
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: load, path: sales/load}
workflow:
  - step: load
    incremental: {cursor: at, from: state.orders, initial: "2024-01-01", lag: 2h}
    tool:
      kind: postgres
      auth: db
      query: SELECT 1 AS at WHERE :until::text IS NULL
      params: {until: "{{ increment.until }}"}
"""
BODY: dict[str, Any] = {
    "path": "sales/load",
    "name": "orders",
    "value": "2024-03-01",
    "who": "ann",
    "reason": "the source was repaired",
}
VALUE = "/api/state/value"
ADDRESS = {"path": "sales/load", "name": "orders"}


@pytest.fixture
async def known(api: Api) -> Api:
    await register(api, PLAYBOOK)
    return api


async def register(api: Api, text: str) -> None:
    answer = await api.post(
        "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
    )
    assert answer.is_success, answer.text


async def test_a_state_that_is_set_shows_who_did_it_and_why(known: Api) -> None:
    told = (await known.put(VALUE, json=BODY)).json()
    assert (told["type"], told["value"], told["revision"]) == (
        *("timestamp", "2024-03-01T00:00:00"),
        1,
    )
    shown = (await known.get(VALUE, params=ADDRESS)).json()
    assert shown == told
    assert (shown["changed_by"], shown["reason"]) == ("ann", "the source was repaired")
    (listed,) = (await known.get("/api/state")).json()["states"]
    assert listed == shown


async def test_the_history_has_runs_and_persons_the_latest_first(
    known: Api, world: ApiWorld
) -> None:
    change = StateChange(
        path="sales/load",
        name="orders",
        value=StateValue(type=StateType.TIMESTAMP, value="2024-02-01T00:00:00+00:00"),
        revision=1,
        execution_id=ExecutionId("77"),
        step="load",
    )
    owned = OwnedStateChange(tenant_id=TENANT, organization_id=ORGANIZATION, change=change)
    await MemoryStates(world.store).change_state(owned)
    await known.put(VALUE, json=BODY)
    page = (await known.get("/api/state/history", params={**ADDRESS, "limit": 1})).json()
    assert [item["changed_by"] for item in page["changes"]] == ["ann"]
    rest = await known.get("/api/state/history", params={**ADDRESS, "before": page["next_before"]})
    (first,) = rest.json()["changes"]
    assert (first["execution_id"], first["step"], first["changed_by"]) == ("77", "load", None)


async def test_a_page_of_states_says_that_there_are_more(known: Api, world: ApiWorld) -> None:
    await register(known, PLAYBOOK.replace("sales/load", "sales/other"))
    for path in ("sales/load", "sales/other"):
        assert (await known.put(VALUE, json={**BODY, "path": path})).is_success
    page = (await known.get("/api/state", params={"limit": 1})).json()
    assert (page["states"][0]["path"], page["has_more"]) == ("sales/load", True)
    after = {"after_path": "sales/load", "after_name": "orders"}
    page = (await known.get("/api/state", params=after)).json()
    assert ([state["path"] for state in page["states"]], page["has_more"]) == (
        ["sales/other"],
        False,
    )
    of_one = (await known.get("/api/state", params={"path": "/sales/load"})).json()
    assert len(of_one["states"]) == 1
    other = MemoryStates(world.store)
    owner: dict[str, Any] = {"tenant_id": TENANT, "organization_id": OrganizationId("east")}
    assert await other.list_states(**owner, states_max=9) == []


async def test_a_set_from_another_revision_than_the_present_one_is_a_conflict(known: Api) -> None:
    assert (await known.put(VALUE, json={**BODY, "revision": 0})).status_code == 200
    again = await known.put(VALUE, json={**BODY, "revision": 0})
    assert (again.status_code, again.json()["code"]) == (409, "state_moved")
    assert (await known.put(VALUE, json={**BODY, "revision": 1})).json()["revision"] == 2


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"value": "yesterday", "type": "timestamp"}, 422, "write a moment such as"),
        ({"name": "order"}, 404, "did you mean 'orders'?"),
        ({"path": "sales/lod"}, 404, "sales/lod"),
        ({"reason": " "}, 400, "reason"),
        ({"who": None}, 400, "who"),
        ({"value": 1.5}, 400, "value"),
        ({"vaule": 1}, 400, "vaule"),
    ],
)
async def test_a_wrong_set_is_refused_with_the_way_out(
    known: Api, change: dict[str, Any], status: int, says: str
) -> None:
    answer = await known.put(VALUE, json={**BODY, **change})
    assert answer.status_code == status, answer.text
    assert says in answer.text
    assert (await known.get("/api/state")).json()["states"] == []


async def test_a_state_without_a_value_is_not_found(known: Api) -> None:
    for address in (VALUE, "/api/state/history"):
        answer = await known.get(address, params=ADDRESS)
        assert answer.status_code == 404
        assert "has no value yet" in answer.json()["detail"]


async def requested(world: ApiWorld, execution_id: str) -> ExecutionRequested:
    stored = next(
        item
        for item in world.store.request_by_id.values()
        if item.request.execution_id == execution_id
    )
    fact = facts.decode_fact_batch(stored.request.data).facts[0]
    assert isinstance(fact, ExecutionRequested)
    return fact


async def test_a_backfill_carries_its_range_and_its_key_counts_once(
    known: Api, world: ApiWorld
) -> None:
    body = {"path": "sales/load", "backfill": {"since": "2024-01-01", "until": "2024-01-02"}}
    headers = {"Idempotency-Key": "b1"}
    begun = (await known.post("/api/execute", json=body, headers=headers)).json()
    fact = await requested(world, begun["execution_id"])
    assert fact.backfill == IncrementRange(since="2024-01-01", until="2024-01-02")
    again = (await known.post("/api/execute", json=body, headers=headers)).json()
    assert (again["execution_id"], again["deduplicated"]) == (begun["execution_id"], True)
    other = {**body, "backfill": {"since": "2024-01-02", "until": "2024-01-03"}}
    reused = await known.post("/api/execute", json=other, headers=headers)
    assert reused.json()["code"] == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("since", "until", "says"),
    [
        ("2024-01-02", "2024-01-02", "is empty"),
        (1, 2, "1 is not of type timestamp"),
        ("2024-01-01", "soon", "'soon' is not of type timestamp"),
    ],
)
async def test_a_wrong_range_is_refused(known: Api, since: Any, until: Any, says: str) -> None:
    body = {"path": "sales/load", "backfill": {"since": since, "until": until}}
    answer = await known.post("/api/execute", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_value")
    assert says in answer.json()["detail"]


async def test_a_step_that_does_not_look_at_the_end_of_a_range_has_no_backfill(api: Api) -> None:
    await register(
        api, PLAYBOOK.replace("increment.until", "increment.since").replace("until", "other")
    )
    body = {"path": "sales/load", "backfill": {"since": "2024-01-01", "until": "2024-01-02"}}
    answer = await api.post("/api/execute", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "range_not_read")
    assert "step 'load' of sales/load does not read increment.until" in answer.json()["detail"]


async def test_a_playbook_without_increments_has_no_backfill(api: Api) -> None:
    text = PLAYBOOK.split("    incremental", maxsplit=1)[0] + "    tool: {kind: noop}\n"
    await register(api, text)
    body = {"path": "sales/load", "backfill": {"since": 1, "until": 2}}
    answer = await api.post("/api/execute", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "no_increments")


async def test_a_state_that_is_removed_begins_anew_and_the_act_is_kept(
    known: Api, world: ApiWorld
) -> None:
    await known.put(VALUE, json=BODY)
    asked = {**ADDRESS, "who": "ann", "reason": "read it all again"}
    removed = (await known.delete(VALUE, params=asked)).json()
    assert (removed["value"], removed["revision"]) == ("2024-03-01T00:00:00", 1)
    assert (await known.get(VALUE, params=ADDRESS)).status_code == 404
    assert (await known.delete(VALUE, params=asked)).status_code == 404
    (record,) = [
        record
        for record in (await known.get("/api/audit")).json()["records"]
        if record["action"] == "state.removed"
    ]
    assert record["target"] == "sales/load orders"
    assert (record["details"]["value"], record["details"]["reason"]) == (
        *("2024-03-01T00:00:00", "read it all again"),
    )
    assert (await known.put(VALUE, json=BODY)).json()["revision"] == 1
    assert (await known.delete(VALUE, params={**ADDRESS, "who": "ann"})).status_code == 400


async def test_a_checkpoint_that_is_removed_leaves_nothing_and_the_act_is_kept(
    api: Api, world: ApiWorld
) -> None:
    scope: Any = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    for name in ("orders/head", "orders/s1/versions/000000000000", "orders2/head"):
        await world.payloads.put_named(f"streams/{name}", b"{}", **scope)
    asked = {"who": "ann", "reason": "read it all again"}
    unknown = await api.delete("/api/state/checkpoints/order", params=asked)
    assert (unknown.status_code, "orders" in unknown.text) == (404, True)
    assert (await api.delete("/api/state/checkpoints/a b", params=asked)).status_code == 422
    removed = await api.delete("/api/state/checkpoints/orders", params=asked)
    assert removed.json() == {"name": "orders", "object_count": 2}
    assert await world.payloads.list_names("streams/", **scope) == ["streams/orders2/head"]
    (record,) = [
        record
        for record in (await api.get("/api/audit")).json()["records"]
        if record["action"] == "checkpoint.removed"
    ]
    assert (record["target"], record["details"]["reason"]) == ("orders", "read it all again")
