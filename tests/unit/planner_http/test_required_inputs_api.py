"""A start without an input that its playbook requires is refused by every door, by name."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning, ending
from tests.support.planning import PlannerHarness
from tests.support.storage import an_execution

from noetl_contracts.requests import facts

Api = AsyncTestClient[Litestar]
TEXT = {"Content-Type": "text/yaml"}
ORDER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: order, path: demo/order}
inputs: {customer: {required: true, description: who ordered}}
workload: {region: eu}
workflow:
  - {step: start, tool: {kind: noop, result: "{{ workload.customer }}"}}
"""
PARENT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: parent, path: demo/parent}
workflow:
  - step: call
    tool: {kind: playbook, path: demo/order, input: {region: us}}
"""


@pytest.fixture
async def order(api: Api) -> Api:
    answer = await api.post("/api/catalog/register", content=ORDER, headers=TEXT)
    assert answer.is_success, answer.text
    return api


def check_refusal(answer: Any) -> None:
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["code"] == "inputs_missing"
    assert problem["detail"] == (
        "demo/order: the playbook requires the input 'customer' (who ordered), which is not given"
    )
    assert "--set customer=VALUE" in problem["hint"]


async def test_a_run_without_it_begins_nothing(order: Api, world: ApiWorld) -> None:
    check_refusal(await order.post("/api/execute", json={"path": "demo/order"}))
    check_refusal(await order.post("/api/execute", json={"content": ORDER}))
    assert world.store.message_by_id == {}
    for value in ("Ada", None, ""):
        body = {"path": "demo/order", "workload": {"customer": value}}
        assert (await order.post("/api/execute", json=body)).status_code == 202


async def test_schedules_webhooks_and_triggers_give_it(order: Api) -> None:
    schedule = {"path": "demo/order", "cron": "0 6 * * *", "workload": {"region": "us"}}
    check_refusal(await order.put("/api/schedules/daily", json=schedule))
    mapping = {"path": "demo/order", "inputs": {"region": "{{ body.region }}"}}
    check_refusal(await order.put("/api/webhooks/orders", json={**mapping, "unsigned": True}))
    check_refusal(await order.put("/api/triggers/orders", json={**mapping, "subject": "orders"}))


async def test_a_call_whose_body_lacks_it_is_refused(order: Api) -> None:
    kept = {"path": "demo/order", "unsigned": True}
    assert (await order.put("/api/webhooks/orders", json=kept)).is_success
    check_refusal(await order.post("/api/webhooks/orders", json={"region": "us"}))
    called = await order.post("/api/webhooks/orders", json={"customer": None})
    assert called.status_code == 202, called.text


async def test_a_playbook_that_calls_it_gives_it(order: Api) -> None:
    refused = await order.post("/api/catalog/register", content=PARENT, headers=TEXT)
    assert (refused.status_code, refused.json()["code"]) == (422, "playbook_invalid")
    assert "requires the input 'customer'" in refused.json()["detail"]
    fitting = PARENT.replace("region: us", "customer: Ada")
    assert (await order.post("/api/catalog/register", content=fitting, headers=TEXT)).is_success


async def test_a_rerun_has_those_of_before(order: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning("demo/order") + ending())
    await world.project(execution_id)
    address = f"/api/executions/{execution_id}/rerun"
    check_refusal(await order.post(address, json={"from_step": "start"}))
    given = {"from_step": "start", "workload": {"customer": "Ada"}}
    assert (await order.post(address, json=given)).status_code == 202


@pytest.mark.parametrize("asked_by", ["schedule daily", "webhook orders", "trigger orders", "api"])
def test_an_execution_without_it_fails_before_its_first_step(asked_by: str) -> None:
    # A child, or a firing of what was changed since: nothing judged it before.
    harness = PlannerHarness(ORDER)
    request = facts.ExecutionRequested(path="demo/order", workload={}, requested_by=asked_by)
    harness.tell(request)
    assert harness.types() == ["playbook.initialized", "playbook.failed"]
    failure = harness.state.failure
    assert failure is not None
    assert (failure.kind, failure.step) == ("validation", "(workload)")
    assert "requires the input 'customer' (who ordered)" in failure.message
