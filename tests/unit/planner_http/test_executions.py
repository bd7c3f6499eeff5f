"""Executions over HTTP."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, SHARD_COUNT, ApiWorld, beginning, ending
from tests.support.storage import an_execution

from noetl_contracts import codec, subjects
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.execution_events import PlaybookFailed
from noetl_contracts.ids import find_shard
from noetl_contracts.json_values import DEPTH_MAX
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import CancelRequested, ExecutionRequested
from noetl_planner.api.app import create_app
from noetl_planner.api.lookup import event_search

Api = AsyncTestClient[Litestar]


async def register(api: Api) -> None:
    answer = await api.post(
        "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
    )
    assert answer.status_code == 200, answer.text


async def execute(api: Api, **body: object) -> dict[str, object]:
    answer = await api.post("/api/execute", json={"path": "demo/hello", **body})
    assert answer.status_code == 202, answer.text
    accepted: dict[str, object] = answer.json()
    return accepted


@pytest.mark.parametrize("name", ["workload", "payload", "input", "args"])
async def test_an_accepted_execution_is_a_durable_request_with_its_message(
    api: Api, world: ApiWorld, name: str
) -> None:
    await register(api)
    accepted = await execute(api, **{name: {"who": "moon"}})
    execution_id = str(accepted["execution_id"])
    assert accepted["status"] == "PENDING"
    (message,) = world.store.message_by_id.values()
    batch = facts.decode_fact_batch(message.row.data)
    assert batch.facts == [
        ExecutionRequested(
            path="demo/hello", version=1, workload={"who": "moon"}, requested_by="api"
        )
    ]
    assert batch.request_id == batch.key == f"execute-{execution_id}"
    shard = subjects.parse_shard_subject(message.row.subject).shard
    assert shard == find_shard(batch.execution_id, SHARD_COUNT)
    assert world.hints.poked == [subjects.build_hint_subject("outbox")]


async def test_an_accepted_execution_is_pending_before_any_planner_has_seen_it(api: Api) -> None:
    await register(api)
    execution_id = (await execute(api))["execution_id"]
    for place in ("", "/status"):
        answer = await api.get(f"/api/executions/{execution_id}{place}")
        assert answer.json()["status"] == "PENDING"
        assert answer.json()["path"] == "demo/hello"


async def test_one_idempotency_key_is_one_execution(api: Api, world: ApiWorld) -> None:
    await register(api)
    headers = {"Idempotency-Key": "nightly-1"}
    body = {"path": "demo/hello", "workload": {"who": "moon"}}
    first = await api.post("/api/execute", json=body, headers=headers)
    again = await api.post("/api/execute", json={**body, "idempotency_key": "nightly-1"})
    assert first.json()["execution_id"] == again.json()["execution_id"]
    assert (first.json()["deduplicated"], again.json()["deduplicated"]) == (False, True)
    assert len(world.store.message_by_id) == 1


async def test_a_key_with_other_inputs_is_a_conflict(api: Api) -> None:
    await register(api)
    await execute(api, idempotency_key="k", workload={"who": "a"})
    answer = await api.post(
        "/api/execute",
        json={"path": "demo/hello", "workload": {"who": "b"}, "idempotency_key": "k"},
    )
    assert answer.status_code == 409
    assert answer.json()["code"] == "idempotency_key_reused"


async def test_a_key_stays_with_its_version_unless_the_latest_is_meant(api: Api) -> None:
    await register(api)
    await execute(api, idempotency_key="k")
    newer = PLAYBOOK.replace("says hello", "says more")
    await api.post("/api/catalog/register", content=newer, headers={"Content-Type": "text/yaml"})
    again = await execute(api, idempotency_key="k")
    assert (again["deduplicated"], again["version"]) == (True, 1)
    pinned = await api.post(
        "/api/execute", json={"path": "demo/hello", "version": 2, "idempotency_key": "k"}
    )
    assert pinned.status_code == 409


async def test_an_unknown_path_names_the_near_one(api: Api) -> None:
    await register(api)
    answer = await api.post("/api/execute", json={"path": "demo/helo"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["hint"] == "did you mean 'demo/hello'?"


async def test_an_unknown_version_names_those_that_exist(api: Api) -> None:
    await register(api)
    answer = await api.post("/api/execute", json={"path": "demo/hello", "version": 7})
    assert answer.status_code == 404
    assert answer.json()["hint"] == "its versions are 1 to 1"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"path": "demo/hello", "workload": {}, "input": {}}, "2 times"),
        ({"path": "demo/hello", "version": "newest"}, "newest"),
        ({"path": 7}, "path"),
        ({"paht": "demo/hello"}, "paht"),
        ({"path": "demo/hello", "parent_execution_id": "mother"}, "mother"),
    ],
)
async def test_a_wrong_body_is_named(api: Api, body: dict[str, object], word: str) -> None:
    await register(api)
    answer = await api.post("/api/execute", json=body)
    assert answer.status_code in {400, 404}
    assert word in answer.text
    assert "Traceback" not in answer.text


async def test_a_body_that_is_not_json_is_refused_in_words(api: Api) -> None:
    answer = await api.post(
        "/api/execute", content=b"{path", headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["title"] == "Bad Request"


async def test_large_inputs_are_stored_and_the_request_refers_to_them(
    api: Api, world: ApiWorld
) -> None:
    await register(api)
    inputs = {"who": "y" * 2_000_000}
    headers = {"Idempotency-Key": "large"}
    body = {"path": "demo/hello", "workload": inputs}
    first = await api.post("/api/execute", json=body, headers=headers)
    assert first.status_code == 202, first.text
    (message,) = world.store.message_by_id.values()
    (fact,) = facts.decode_fact_batch(message.row.data).facts
    assert isinstance(fact, ExecutionRequested)
    assert (fact.workload, len(message.row.data) < 2_000) == ({}, True)
    assert fact.workload_ref is not None
    assert codec.decode_json(await world.payloads.read_payload(fact.workload_ref)) == inputs
    again = await api.post("/api/execute", json=body, headers=headers)
    assert again.json()["execution_id"] == first.json()["execution_id"]
    other = await api.post(
        "/api/execute", json={**body, "workload": {"who": "z" * 2_000_000}}, headers=headers
    )
    assert other.status_code == 409


async def test_deeply_nested_inputs_are_stored_and_deeper_ones_are_refused(
    api: Api, world: ApiWorld
) -> None:
    await register(api)
    body = b'{"path": "demo/hello", "workload": {"who": %s}}'
    kind = {"Content-Type": "application/json"}
    deep = b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1)
    answer = await api.post("/api/execute", content=body % deep, headers=kind)
    assert answer.status_code == 202, answer.text
    (message,) = world.store.message_by_id.values()
    (fact,) = facts.decode_fact_batch(message.row.data).facts
    assert isinstance(fact, ExecutionRequested)
    assert (fact.workload, fact.workload_ref is None) == ({}, False)
    endless = b"[" * 20_000 + b"]" * 20_000
    answer = await api.post("/api/execute", content=body % endless, headers=kind)
    assert (answer.status_code, answer.json()["code"]) == (422, "nested_too_deep")


async def test_too_large_a_body_is_refused(api: Api) -> None:
    await register(api)
    whole = await api.post(
        "/api/execute", json={"path": "demo/hello", "workload": {"who": "y" * 5_000_000}}
    )
    assert whole.status_code == 413


async def test_a_running_execution_shows_its_status_and_events(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    status = (await api.get(f"/api/executions/{execution_id}/status")).json()
    assert status["status"] == "RUNNING"
    assert (status["completed"], status["failed"]) == (False, False)
    assert status["current_step"] == "start"
    await world.append(execution_id, ending())
    await world.project(execution_id)
    status = (await api.get(f"/api/executions/{execution_id}/status")).json()
    assert (status["status"], status["completed"]) == ("COMPLETED", True)
    assert status["completed_steps"] == ["start"]
    page = (await api.get(f"/api/executions/{execution_id}?page=2&page_size=3")).json()
    assert page["pagination"] == {"page": 2, "page_size": 3, "total": 4, "has_next": False}
    assert [event["event_type"] for event in page["events"]] == ["playbook.completed"]
    listed = (await api.get("/api/executions?status=COMPLETED")).json()
    assert [execution["execution_id"] for execution in listed["executions"]] == [execution_id]
    assert (await api.get("/api/executions?status=FAILED")).json()["executions"] == []
    started = status["started_at"].replace("+00:00", "Z")
    begun = (await api.get("/api/executions", params={"since": started})).json()["executions"]
    assert [item["execution_id"] for item in begun] == [execution_id]
    later = await api.get("/api/executions?since=2999-01-01T00:00:00Z")
    assert later.json()["executions"] == []
    refused = await api.get("/api/executions?since=2026-01-01T00:00:00")
    assert refused.status_code == 400, refused.text
    assert "since" in refused.text


@pytest.mark.parametrize("page_events", [1, 1000])
async def test_events_are_searched_for_by_what_a_list_shows(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch, page_events: int
) -> None:
    monkeypatch.setattr(event_search, "PAGE_EVENTS", page_events)
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    await world.project(execution_id)

    async def find(**asked: Any) -> tuple[list[str], int, bool]:
        answer = await api.get(f"/api/executions/{execution_id}/events", params=asked)
        page = answer.json()
        types = [event["event_type"] for event in page["events"]]
        return types, page["next_after"], page["has_more"]

    assert await find(text="STEP.") == (["step.enter", "step.exit"], 4, False)
    assert await find(text="step.", limit=1) == (["step.enter"], 2, True)
    assert await find(text="step.", limit=1, after=2) == (["step.exit"], 3, True)
    assert await find(text="enter", after=3) == ([], 4, False)
    assert await find(text="completed", limit=1000) == (
        ["step.exit", "playbook.completed"],
        4,
        False,
    )
    # What one answer looks at ends before the history does: the next one goes on.
    monkeypatch.setattr(event_search, "LOOKED_AT_MAX", page_events)
    last, found, has_more = 0, [], True
    while has_more:
        types, last, has_more = await find(text="exit", after=last)
        found += types
    assert (found, last) == (["step.exit"], 4)


async def test_events_are_read_in_pages_after_a_version(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning() + ending())
    await world.project(execution_id)
    page = (await api.get(f"/api/executions/{execution_id}/events?after=1&limit=2")).json()
    assert [event["version"] for event in page["events"]] == [2, 3]
    assert (page["next_after"], page["has_more"]) == (3, True)
    entered = page["events"][0]
    assert (entered["node_name"], entered["node_id"]) == ("start", "11")
    assert isinstance(entered["event_id"], str)


async def test_events_are_read_up_to_a_version(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    await world.project(execution_id)

    async def read(**query: int) -> tuple[list[int], bool]:
        answer = await api.get(f"/api/executions/{execution_id}/events", params=query)
        page = answer.json()
        return [event["version"] for event in page["events"]], page["has_more"]

    assert await read(version=2) == ([1, 2], False)
    assert await read(version=3, limit=2) == ([1, 2], True)
    assert await read(version=3, after=2) == ([3], False)
    assert await read(version=3, after=3) == ([], False)


@pytest.mark.parametrize("wrong", ["12", "hello", "99999999999999999999", "-1"])
async def test_an_unknown_execution_is_a_404_in_words(api: Api, wrong: str) -> None:
    for place in ("", "/status", "/events", "/stages", "/frames", "/stream"):
        answer = await api.get(f"/api/executions/{wrong}{place}")
        assert answer.status_code == 404
        assert wrong in answer.json()["detail"]


async def test_cancelling_is_a_durable_request(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    answer = await api.post(f"/api/executions/{execution_id}/cancel", json={"reason": "enough"})
    assert answer.status_code == 202
    assert answer.json() == {"execution_id": execution_id, "status": "RUNNING", "accepted": True}
    messages = [message.row for message in world.store.message_by_id.values()]
    assert facts.decode_fact_batch(messages[-1].data).facts == [
        CancelRequested(reason="enough", requested_by="api")
    ]


async def test_cancelling_what_has_ended_changes_nothing(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning() + ending())
    await world.project(execution_id)
    before = len(world.store.message_by_id)
    answer = await api.post(f"/api/executions/{execution_id}/cancel")
    assert answer.json()["accepted"] is False
    assert answer.json()["status"] == "COMPLETED"
    assert len(world.store.message_by_id) == before


async def test_another_tenants_execution_is_not_there(world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    stranger = create_app(world.services(tenant_id="other"))
    async with AsyncTestClient(stranger) as client:
        answer = await client.get(f"/api/executions/{execution_id}/status")
    assert answer.status_code == 404


async def test_a_failed_execution_names_the_step_that_failed(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    error = ErrorObject(kind="transform", message="boom", step="load")
    await world.append(execution_id, [*beginning(), PlaybookFailed(error=error, step="load")])
    await world.project(execution_id)
    status = (await api.get(f"/api/executions/{execution_id}/status")).json()
    assert (status["status"], status["current_step"]) == ("FAILED", "load")


async def test_a_text_of_several_documents_registers_each_or_none(api: Api) -> None:
    one = PLAYBOOK.strip().removeprefix("---").strip()
    two = one.replace("demo/hello", "demo/other")
    place = "/api/catalog/register"
    answer = (await api.post(place, content=f"{one}\n---\n# The second.\n{two}\n")).json()
    assert [answer["path"], *(each["path"] for each in answer["others"])] == [
        "demo/hello",
        "demo/other",
    ]
    source = (await api.get("/api/catalog/demo/other")).json()["source"]
    assert source.startswith("---\n# The second.\n")
    wrong = await api.post(place, content=f"{two}\n---\n{one}\nno_such_key: [\n")
    assert wrong.status_code == 422
    twice = await api.post(place, content=f"{two}\n---\n{two}\n")
    assert "two playbooks" in twice.json()["detail"]
    named = await api.post(place, json={"content": f"{one}\n---\n{two}\n", "path": "demo/hello"})
    assert named.status_code == 400
    assert (await api.get("/api/catalog/demo/other")).json()["versions"] == [1]
