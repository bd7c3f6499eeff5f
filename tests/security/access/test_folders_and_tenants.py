"""A role for a folder reaches its playbooks alone; a key opens the organization it was made in."""

from http import HTTPStatus
from typing import Any

import httpx
import pytest
from tests.support.api import ApiWorld, beginning
from tests.support.identities import (
    OTHER,
    OWN,
    OWNER,
    Caller,
    make_caller,
    make_guarded_app,
    open_client,
)

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.limiters import CallRateLimiter

INSIDE, OUTSIDE = ExecutionId("72057594037927937"), ExecutionId("72057594037927938")
SOURCE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: x, path: {path}}}
workflow:
  - step: start
    tool: {{kind: noop}}
"""


async def register(app: Any, path: str, caller: Caller = OWNER) -> httpx.Response:
    async with open_client(app, caller) as client:
        return await client.post(
            "/api/catalog/register",
            content=SOURCE.format(path=path),
            headers={"Content-Type": "text/yaml"},
        )


async def make_shop(world: ApiWorld) -> Any:
    """Two folders with a playbook and an execution each."""
    app = make_guarded_app(world)
    for path, execution_id in (("sales/load", INSIDE), ("salesforce/load", OUTSIDE)):
        assert (await register(app, path)).status_code == HTTPStatus.OK
        await world.append(execution_id, beginning(path))
        await world.project(execution_id)
    return app


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def test_lists_show_what_lies_in_the_folder(world: ApiWorld) -> None:
    app = await make_shop(world)
    async with open_client(app, await make_caller(world, "author", path_prefix="sales")) as client:
        catalog = (await client.get("/api/catalog")).json()["playbooks"]
        executions = (await client.get("/api/executions")).json()["executions"]
    assert [entry["path"] for entry in catalog] == ["sales/load"]
    assert [row["execution_id"] for row in executions] == [INSIDE]


async def test_a_page_of_executions_goes_on_behind_what_is_left_out(world: ApiWorld) -> None:
    app = await make_shop(world)
    async with open_client(app, await make_caller(world, "viewer", path_prefix="sales")) as client:
        page = (await client.get("/api/executions", params={"limit": 1})).json()
    assert [row["execution_id"] for row in page["executions"]] == [INSIDE]


@pytest.mark.parametrize(
    "path",
    ["", "/status", "/events", "/stages", "/frames", "/steps", "/logs", "/items/start"],
)
async def test_an_execution_outside_is_not_there(world: ApiWorld, path: str) -> None:
    app = await make_shop(world)
    caller = await make_caller(world, "operator", path_prefix="sales")
    async with open_client(app, caller) as client:
        assert (await client.get(f"/api/executions/{OUTSIDE}{path}")).status_code == 404
        inside = await client.get(f"/api/executions/{INSIDE}{path}")
    assert inside.status_code in (HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


@pytest.mark.parametrize(
    "path", ["state", "events", "payloads", "contents", "log-chunks", "live", "density"]
)
async def test_a_history_outside_is_not_there(world: ApiWorld, path: str) -> None:
    app = await make_shop(world)
    caller = await make_caller(world, "auditor", path_prefix="sales")
    query = {"tenant_id": OWN[0], "organization_id": OWN[1]}
    async with open_client(app, caller) as client:
        outside = await client.get(f"/api/replay/{path}", params={**query, "execution_id": OUTSIDE})
        inside = await client.get(f"/api/replay/{path}", params={**query, "execution_id": INSIDE})
    assert (outside.status_code, inside.status_code) == (404, 200)


async def test_the_playbook_of_another_folder_is_neither_run_nor_written(world: ApiWorld) -> None:
    app = await make_shop(world)
    caller = await make_caller(world, "author", path_prefix="sales")
    async with open_client(app, caller) as client:
        run = await client.post("/api/execute", json={"path": "salesforce/load"})
        draft = await client.post(
            "/api/execute", json={"content": SOURCE.format(path="salesforce/load")}
        )
        allowed = await client.post("/api/execute", json={"path": "sales/load"})
    written = await register(app, "salesforce/other", caller)
    assert run.status_code == HTTPStatus.NOT_FOUND
    assert "salesforce" not in run.json().get("hint", "")
    assert draft.status_code == written.status_code == HTTPStatus.FORBIDDEN
    assert allowed.status_code == HTTPStatus.ACCEPTED


async def test_an_operator_runs_no_text_of_its_own(world: ApiWorld) -> None:
    app = await make_shop(world)
    async with open_client(app, await make_caller(world, "operator")) as client:
        answer = await client.post("/api/execute", json={"content": SOURCE.format(path="sales/x")})
    assert answer.status_code == HTTPStatus.FORBIDDEN


async def test_what_is_about_all_playbooks_needs_a_role_for_all(world: ApiWorld) -> None:
    app = await make_shop(world)
    async with open_client(app, await make_caller(world, "admin", path_prefix="sales")) as client:
        assert (await client.get("/api/roles")).status_code == HTTPStatus.FORBIDDEN
        assert (await client.get("/api/credentials")).status_code == HTTPStatus.FORBIDDEN


async def test_one_api_serves_two_tenants_and_mixes_nothing(world: ApiWorld) -> None:
    app = await make_shop(world)
    foreign = await make_caller(world, "author", place=OTHER)
    assert (await register(app, "sales/load", foreign)).json()["version"] == 1
    async with open_client(app, foreign) as client:
        started = await client.post("/api/execute", json={"path": "sales/load"})
        catalog = (await client.get("/api/catalog")).json()["playbooks"]
        whoami = (await client.get("/api/auth/whoami")).json()
    assert started.status_code == HTTPStatus.ACCEPTED
    assert [entry["path"] for entry in catalog] == ["sales/load"]
    assert (whoami["tenant"], whoami["organization"]) == OTHER
    async with open_client(app, OWNER) as client:
        mine = await client.get(f"/api/executions/{started.json()['execution_id']}")
    assert mine.status_code == HTTPStatus.NOT_FOUND


async def test_a_header_opens_no_other_tenant(world: ApiWorld) -> None:
    app = await make_shop(world)
    foreign = await make_caller(world, "admin", place=OTHER)
    headers = {"X-NoETL-Tenant": OWN[0], "X-NoETL-Organization": OWN[1]}
    async with open_client(app, foreign, **headers) as client:
        answer = await client.get("/api/catalog")
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert answer.json()["code"] == "no_role"


async def test_a_refusal_is_recorded_once_a_minute(world: ApiWorld) -> None:
    app = await make_shop(world)
    viewer = await make_caller(world, "viewer", name="eve")
    async with open_client(app, viewer) as client:
        for _ in range(5):
            assert (await client.get("/api/keys")).status_code == HTTPStatus.FORBIDDEN
    async with open_client(app, OWNER) as client:
        log = (await client.get("/api/audit", params={"who": "eve"})).json()["records"]
    (denial,) = log
    assert (denial["action"], denial["outcome"]) == ("access.denied", "refused")
    assert denial["target"] == "GET /api/keys"
    assert denial["details"]["reason"] == "administer"


async def test_what_is_changed_is_recorded_with_who_did_it(world: ApiWorld) -> None:
    app = await make_shop(world)
    admin = await make_caller(world, "admin", name="ada")
    async with open_client(app, admin) as client:
        made = (await client.post("/api/keys", json={"account": "ci", "role": "operator"})).json()
        await client.delete(f"/api/keys/{made['key_prefix']}")
        schedule = {"path": "sales/load", "cron": "0 3 * * *"}
        assert (await client.put("/api/schedules/nightly", json=schedule)).status_code == 200
        log = (await client.get("/api/audit", params={"who": "ada"})).json()["records"]
        checked = (await client.get("/api/audit/check")).json()
    assert [(record["action"], record["target"]) for record in log] == [
        ("key.created", made["key_prefix"]),
        ("key.revoked", made["key_prefix"]),
        ("schedule.written", "nightly"),
    ]
    assert made["key"] not in str(log)
    assert checked["is_whole"]
    assert checked["records"] >= 3


async def test_a_key_that_was_revoked_opens_nothing(world: ApiWorld) -> None:
    app = await make_shop(world)
    async with open_client(app, OWNER) as client:
        made = (await client.post("/api/keys", json={"account": "ci", "role": "operator"})).json()
        await client.delete(f"/api/keys/{made['key_prefix']}")
    for key in (made["key"], made["key"] + "x", made["key"][:-1], "noetl_" + "0" * 12 + "_0"):
        async with open_client(app, Caller("ci", key)) as client:
            answer = await client.get("/api/executions")
        assert answer.status_code == HTTPStatus.UNAUTHORIZED
        assert answer.json()["code"] == "key_refused"


async def test_too_many_calls_are_told_when_to_come_again(world: ApiWorld) -> None:
    caller = await make_caller(world, "viewer")
    app = make_guarded_app(world, rate_limiter=CallRateLimiter(2))
    async with open_client(app, caller) as client:
        answers = [await client.get("/api/executions") for _ in range(6)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    "authorization",
    ["Basic b3duZXI6eA==", "Bearer", "Bearer  ", "bearer wrong", "Bearer " + "x" * 20_000, "x"],
)
async def test_other_authorizations_open_nothing(world: ApiWorld, authorization: str) -> None:
    app = await make_shop(world)
    async with open_client(app, Authorization=authorization) as client:
        answer = await client.get("/api/executions")
    assert answer.status_code == HTTPStatus.UNAUTHORIZED


async def test_health_tells_those_without_a_token_no_reasons(world: ApiWorld) -> None:
    world.problems["nats"] = "cannot reach nats://planner:pw@10.0.0.7:4222"
    app = make_guarded_app(world)
    async with open_client(app) as client:
        answer = (await client.get("/api/health")).json()
    async with open_client(app, OWNER) as client:
        known = (await client.get("/api/health")).json()
    assert answer == {"status": "degraded", "problems": {"nats": "sign in to see why"}}
    assert "10.0.0.7" in known["problems"]["nats"]
