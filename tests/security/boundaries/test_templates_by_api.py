"""Hostile templates that come over the API: what checks a text or renders it runs nothing of it."""

from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from tests.support.api import PLAYBOOK, ApiWorld
from tests.support.attacks import BOMBS, INJECTIONS, playbook

from noetl_chassis import computation_deadline
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_planner.api.app import create_app
from noetl_playbook.templates import render_limits

YAML = {"Content-Type": "text/yaml"}
# What a template could only write if it had come to objects of Python.
TRACES = ("<class", "<function", "<module", "<built-in", "<bound method", "root:x:", "subclasses")


@pytest.fixture
async def world() -> ApiWorld:
    return ApiWorld()


@pytest.fixture(autouse=True)
def _guard() -> Iterator[None]:
    """Interrupt what takes longer than its limit, as the planner's process does."""
    with computation_deadline.own_deadline_timer() as guard, render_limits.install_guard(guard):
        yield


@pytest.fixture
async def api(world: ApiWorld) -> AsyncIterator[httpx.AsyncClient]:
    # In this thread, which is the one that the deadline interrupts.
    transport = httpx.ASGITransport(app=create_app(world.services()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post("/api/catalog/register", content=PLAYBOOK, headers=YAML)
        assert answer.is_success, answer.text
        yield client


def list_started_inputs(world: ApiWorld) -> list[dict[str, Any]]:
    return [
        fact.workload
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, ExecutionRequested)
    ]


def find_traces(value: object, template: str) -> list[str]:
    """Return what is shown of Python that does not stand in the template itself."""
    return [trace for trace in TRACES if trace in str(value) and trace not in template]


async def test_inputs_of_a_webhook_render_nothing_of_python(
    api: httpx.AsyncClient, world: ApiWorld
) -> None:
    rendered = 0
    for template in INJECTIONS:
        hook = {"path": "demo/hello", "unsigned": True, "inputs": {"who": template}}
        answer = await api.put("/api/webhooks/orders", json=hook)
        assert find_traces(answer.text, template) == []
        if answer.status_code == HTTPStatus.OK:
            call = await api.post("/api/webhooks/orders", json={"row": {"x": 1}, "rows": [1]})
            assert call.status_code in (HTTPStatus.ACCEPTED, HTTPStatus.UNPROCESSABLE_ENTITY)
            assert find_traces(call.text, template) == []
            rendered += 1
        else:
            assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, answer.text
            assert answer.json()["detail"]
    assert rendered
    for inputs in list_started_inputs(world):
        assert find_traces(inputs, "") == []


async def test_what_is_registered_drafted_or_listened_for_is_compiled_and_not_run(
    api: httpx.AsyncClient,
) -> None:
    trigger = {"path": "demo/hello", "subject": "orders.*"}
    for template in INJECTIONS:
        text = playbook({"tool": {"kind": "noop"}, "when": template, "set": {"ctx.x": template}})
        answers = [
            await api.post("/api/catalog/register", content=text, headers=YAML),
            await api.post("/api/execute", json={"content": text}),
            await api.put("/api/triggers/orders", json={**trigger, "filter": template}),
            await api.put("/api/triggers/orders", json={**trigger, "inputs": {"who": template}}),
        ]
        for answer in answers:
            assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, answer.text
            assert find_traces(answer.text, template) == []


async def test_what_is_data_stays_data(api: httpx.AsyncClient, world: ApiWorld) -> None:
    for template in INJECTIONS:
        answer = await api.post(
            "/api/execute", json={"path": "demo/hello", "workload": {"who": template}}
        )
        assert answer.status_code == HTTPStatus.ACCEPTED, answer.text
    assert [inputs["who"] for inputs in list_started_inputs(world)] == INJECTIONS


async def test_a_bomb_in_a_webhook_is_refused(api: httpx.AsyncClient, world: ApiWorld) -> None:
    for template in BOMBS[::12]:
        hook = {"path": "demo/hello", "unsigned": True, "inputs": {"who": template}}
        answer = await api.put("/api/webhooks/orders", json=hook)
        assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, answer.text
        if answer.status_code == HTTPStatus.OK:
            call = await api.post("/api/webhooks/orders", json={"rows": [1]})
            assert call.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, call.text
    assert list_started_inputs(world) == []
