"""Names that a request gives and a playbook lacks: inputs, and steps of playbooks and children."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld

Api = AsyncTestClient[Litestar]
TEXT = {"Content-Type": "text/yaml"}
OLDER = PLAYBOOK.replace("noetl.io/v2", "noetl.io/v1").replace("demo/hello", "demo/older")
PARENT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: parent, path: demo/parent}
workflow:
  - step: call
    tool: {kind: playbook, path: demo/hello, return_step: start, input: {who: moon}}
"""


@pytest.fixture
async def hello(api: Api) -> Api:
    answer = await api.post("/api/catalog/register", content=PLAYBOOK, headers=TEXT)
    assert answer.is_success, answer.text
    return api


def check_refusal(answer: Any) -> None:
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["code"] == "inputs_do_not_fit"
    assert problem["detail"].startswith("demo/hello: the playbook has no input 'woh'; ")
    assert problem["hint"].startswith("did you mean 'who'?")


async def test_a_run_with_an_unknown_input_is_refused_and_begins_nothing(
    hello: Api, world: ApiWorld
) -> None:
    for name in ("workload", "payload", "input", "args"):
        body = {"path": "demo/hello", name: {"woh": "moon"}}
        check_refusal(await hello.post("/api/execute", json=body))
    draft = {"content": PLAYBOOK, "workload": {"woh": "moon"}}
    check_refusal(await hello.post("/api/execute", json=draft))
    assert world.store.message_by_id == {}


async def test_schedules_webhooks_and_triggers_name_inputs_of_their_playbook(hello: Api) -> None:
    schedule = {"path": "demo/hello", "cron": "0 6 * * *", "workload": {"woh": "moon"}}
    check_refusal(await hello.put("/api/schedules/daily", json=schedule))
    mapping = {"path": "demo/hello", "inputs": {"woh": "{{ body.name }}"}}
    check_refusal(await hello.put("/api/webhooks/orders", json={**mapping, "unsigned": True}))
    check_refusal(await hello.put("/api/triggers/orders", json={**mapping, "subject": "orders"}))


async def test_a_body_that_is_the_workload_may_hold_more(hello: Api) -> None:
    free = {"path": "demo/hello", "unsigned": True}
    assert (await hello.put("/api/webhooks/orders", json=free)).is_success
    called = await hello.post("/api/webhooks/orders", json={"who": "moon", "woh": 1})
    assert called.status_code == 202, called.text


async def test_a_mapping_that_its_playbook_has_outgrown_is_refused(hello: Api) -> None:
    kept = {"path": "demo/hello", "unsigned": True, "inputs": {"who": "{{ body.of }}"}}
    assert (await hello.put("/api/webhooks/orders", json=kept)).is_success
    later = PLAYBOOK.replace("who: world", "whom: world").replace("workload.who", "workload.whom")
    assert (await hello.post("/api/catalog/register", content=later, headers=TEXT)).is_success
    called = await hello.post("/api/webhooks/orders", json={"of": "x"})
    assert (called.status_code, called.json()["code"]) == (422, "inputs_do_not_fit")


async def test_a_lenient_playbook_runs_and_the_answer_warns(api: Api) -> None:
    assert (await api.post("/api/catalog/register", content=OLDER, headers=TEXT)).is_success
    answer = await api.post("/api/execute", json={"path": "demo/older", "workload": {"woh": 1}})
    assert answer.status_code == 202, answer.text
    (warning,) = answer.json()["warnings"]
    assert "no input 'woh'" in warning
    fitting = await api.post("/api/execute", json={"path": "demo/older", "workload": {"who": 1}})
    assert "warnings" not in fitting.json()


async def test_a_playbook_without_inputs_runs_and_the_answer_warns(api: Api) -> None:
    text = PLAYBOOK.replace("demo/hello", "demo/bare")
    text = "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("workload")
    )
    assert (await api.post("/api/catalog/register", content=text, headers=TEXT)).is_success
    answer = await api.post("/api/execute", json={"path": "demo/bare", "workload": {"who": 1}})
    assert answer.status_code == 202, answer.text
    assert "it reads none" in answer.json()["warnings"][0]


@pytest.mark.parametrize(
    ("written", "changed", "detail", "hint"),
    [
        (
            "return_step: start",
            "return_step: strat",
            "task 'call_task', field 'return_step': playbook 'demo/hello' has no step 'strat'",
            "did you mean 'start'?",
        ),
        ("{who: moon}", "{woh: moon}", "no input 'woh'", "did you mean 'who'?"),
    ],
)
async def test_a_call_that_does_not_fit_a_registered_playbook_is_refused(
    hello: Api, written: str, changed: str, detail: str, hint: str
) -> None:
    assert (await hello.post("/api/catalog/register", content=PARENT, headers=TEXT)).is_success
    text = PARENT.replace(written, changed)
    assert text != PARENT
    answers = [
        await hello.post("/api/catalog/register", content=text, headers=TEXT),
        await hello.post("/api/execute", json={"content": text}),
    ]
    for answer in answers:
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "playbook_invalid"), problem
        assert detail in problem["detail"]
        assert problem["hint"].startswith(hint)


async def test_what_is_registered_together_is_judged_together(hello: Api) -> None:
    later = PLAYBOOK.replace("step: start", "step: final")
    parent = PARENT.replace("return_step: start", "return_step: final")
    files = [{"name": "parent.yaml", "content": parent}, {"name": "child.yaml", "content": later}]
    answer = await hello.post("/api/catalog/register/folder", json={"files": files})
    assert answer.is_success, answer.text


async def test_a_call_of_what_is_not_registered_yet_is_left_to_the_run(api: Api) -> None:
    assert (await api.post("/api/catalog/register", content=PARENT, headers=TEXT)).is_success


@pytest.mark.parametrize(
    "address", ["/api/executions/{id}/logs?step={step}", "/api/result/{id}/{step}"]
)
async def test_a_step_that_the_playbook_lacks_is_told_with_the_nearest(
    hello: Api, address: str
) -> None:
    begun = (await hello.post("/api/execute", json={"path": "demo/hello"})).json()
    answer = await hello.get(address.format(id=begun["execution_id"], step="strat"))
    assert answer.status_code == 404, answer.text
    problem = answer.json()
    assert problem["detail"].endswith("has no step 'strat'")
    assert problem["hint"] == "did you mean 'start'?"
