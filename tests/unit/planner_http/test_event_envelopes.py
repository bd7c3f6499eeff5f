"""Events over the API have the whole envelope; a caller's flow reaches the request."""

from http import HTTPStatus

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld, beginning, ending
from tests.support.storage import ORGANIZATION, TENANT, an_execution

from noetl_contracts.ledger.envelope import CORRELATION_CHARACTERS_MAX
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested

Api = AsyncTestClient[Litestar]
ENVELOPE = {
    *("event_id", "tenant_id", "organization_id", "execution_id", "stream_id", "aggregate_id"),
    *("aggregate_type", "event_type", "schema_name", "schema_version", "event_time"),
    *("ingest_time", "producer", "causation_id", "correlation_id", "idempotency_key"),
    *("payload_ref", "meta"),
}


async def asked(api: Api, world: ApiWorld, *, flow: str | None = None, **body: str) -> str | None:
    """Ask for a run; return the flow that its request names."""
    await api.post("/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"})
    headers = {} if flow is None else {"X-Correlation-ID": flow}
    answer = await api.post("/api/execute", json={"path": "demo/hello", **body}, headers=headers)
    assert answer.status_code == 202, answer.text
    execution_id = answer.json()["execution_id"]
    rows = [item.row for item in world.store.message_by_id.values()]
    (batch,) = [
        fact_batch
        for row in rows
        if (fact_batch := facts.decode_fact_batch(row.data)).execution_id == execution_id
    ]
    (request,) = batch.facts
    assert isinstance(request, ExecutionRequested)
    return request.correlation_id


@pytest.mark.parametrize("place", ["/events", ""])
async def test_an_event_is_shown_with_its_envelope(api: Api, world: ApiWorld, place: str) -> None:
    execution = an_execution()
    await world.append(execution, [*beginning(), *ending()])
    await world.project(execution)
    answer = await api.get(f"/api/executions/{execution}{place}")
    events = answer.json()["events"]
    assert all(event.keys() >= ENVELOPE for event in events)
    first = events[0]
    assert (first["tenant_id"], first["organization_id"]) == (TENANT, ORGANIZATION)
    assert first["execution_id"] == first["correlation_id"] == execution
    assert first["producer"].startswith(f"noetl://tenant/{TENANT}/org/{ORGANIZATION}/planner/")
    assert first["created_at"] == first["ingest_time"] != first["event_time"]


async def test_a_caller_may_name_the_flow_of_a_run(api: Api, world: ApiWorld) -> None:
    assert await asked(api, world) is None
    assert await asked(api, world, flow="order-7") == "order-7"


@pytest.mark.parametrize("flow", ["", "x" * (CORRELATION_CHARACTERS_MAX + 1), "a\tb"])
async def test_a_flow_without_a_usable_name_is_refused(api: Api, flow: str) -> None:
    answer = await api.post(
        "/api/execute", json={"path": "demo/hello"}, headers={"X-Correlation-ID": flow}
    )
    assert answer.status_code == 400
    assert "printable characters" in answer.json()["hint"]


async def test_a_run_with_a_parent_is_of_the_flow_of_the_parent(api: Api, world: ApiWorld) -> None:
    parent = an_execution()
    await world.append(parent, beginning(), correlation_id="order-7")
    assert await asked(api, world, parent_execution_id=parent) == "order-7"
    assert await asked(api, world, parent_execution_id=parent, flow="other") == "other"


async def test_a_parent_that_is_not_there_is_refused(api: Api) -> None:
    body = {"path": "demo/hello", "parent_execution_id": "12345"}
    answer = await api.post("/api/execute", json=body)
    assert answer.status_code == HTTPStatus.NOT_FOUND
    assert answer.json()["detail"] == "parent_execution_id: there is no execution 12345"


async def test_a_repetition_under_one_key_may_name_another_flow(api: Api, world: ApiWorld) -> None:
    await asked(api, world, flow="first", idempotency_key="k")
    answer = await api.post(
        "/api/execute",
        json={"path": "demo/hello", "idempotency_key": "k"},
        headers={"X-Correlation-ID": "second"},
    )
    assert answer.json()["deduplicated"] is True
