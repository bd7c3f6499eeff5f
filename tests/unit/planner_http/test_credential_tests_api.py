"""The test of a credential is an execution of one step, asked for over the API."""

from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld
from tests.unit.planner_http.conftest import Api

from noetl_contracts.commands.worker_pools import Pools
from noetl_planner.api.app import create_app
from noetl_planner.domain.decision.draft import Limits

PATH = "system/credential-test"
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: mine, path: {PATH}}}
workflow:
  - {{step: start, tool: {{kind: noop}}}}
"""


async def put(api: Api, kind: str, data: dict[str, Any]) -> None:
    body = {"name": "mine", "type": kind, "data": data}
    answer = await api.post("/api/credentials", json=body)
    assert answer.status_code == 200, answer.text


async def test_a_test_is_accepted_as_an_execution(api: Api) -> None:
    await put(api, "bearer", {"token": "s3cr3t"})
    answer = await api.post("/api/credentials/mine/test", json={"url": "https://example.org"})
    assert answer.status_code == 202, answer.text
    accepted = answer.json()
    assert accepted["path"] == PATH
    assert accepted["version"] < 0
    shown = await api.get(f"/api/executions/{accepted['execution_id']}/status")
    assert shown.json()["path"] == PATH
    assert "s3cr3t" not in answer.text + shown.text


async def test_two_tests_share_one_text(api: Api) -> None:
    await put(api, "bearer", {"token": "t"})
    first, second = [(await api.post("/api/credentials/mine/test")).json() for _ in range(2)]
    assert first["execution_id"] != second["execution_id"]
    assert first["version"] == second["version"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("generic", "nothing says what its fields open"),
        ("kubernetes", "no tool of this release opens it"),
        ("service_account", "no tool of this release opens it"),
    ],
)
async def test_a_type_that_cannot_be_tested_is_refused_with_the_reason(
    api: Api, kind: str, why: str
) -> None:
    await put(api, kind, {"anything": "s3cr3t"})
    answer = await api.post("/api/credentials/mine/test")
    assert answer.status_code == 400
    assert f"credential 'mine' of type {kind} cannot be tested: {why}" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("name", "body", "status", "detail"),
    [
        ("min", None, 404, "there is no credential 'min'"),
        ("mine", {"pool": "a b"}, 400, "pool"),
        ("mine", {"uri": "x"}, 400, "uri"),
    ],
)
async def test_what_cannot_be_asked_for_is_told(
    api: Api, name: str, body: dict[str, Any] | None, status: int, detail: str
) -> None:
    await put(api, "bearer", {"token": "t"})
    answer = await api.post(f"/api/credentials/{name}/test", json=body)
    assert answer.status_code == status, answer.text
    assert detail in answer.json()["detail"]


@pytest.mark.parametrize(
    ("pool", "status", "detail"),
    [
        ("nowhere", 422, "there is no pool 'nowhere' here"),
        ("edge", 400, "pool 'edge' is served over HTTP"),
        ("gpu", 202, None),
    ],
)
async def test_a_pool_is_chosen(
    world: ApiWorld, pool: str, status: int, detail: str | None
) -> None:
    pools = Pools(by_stream=("default", "gpu"), by_http=("edge",))
    app = create_app(world.services(limits=Limits(pools=pools)))
    async with AsyncTestClient(app) as api:
        await put(api, "bearer", {"token": "t"})
        answer = await api.post("/api/credentials/mine/test", json={"pool": pool})
    assert answer.status_code == status, answer.text
    assert detail is None or detail in answer.json()["detail"]


async def test_nobody_else_takes_the_path_of_tests(api: Api) -> None:
    for where, body in (
        ("/api/catalog/register", {"content": PLAYBOOK}),
        ("/api/execute", {"content": PLAYBOOK}),
    ):
        answer = await api.post(where, json=body)
        assert answer.status_code == 400, answer.text
        assert f"path '{PATH}' is reserved" in answer.json()["detail"]
