"""Attacks on a role for a folder: every way from it to what lies outside."""

from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.security.access.test_folders_and_tenants import (
    OUTSIDE,
    SOURCE,
    make_shop,
    register,
)
from tests.support.api import ApiWorld
from tests.support.guarded_shop import open_shop
from tests.support.identities import OWNER, Caller, make_caller, open_client

from noetl_contracts.ids import ExecutionId

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: %s}\nworkflow:\n"
GATE = HEAD % "salesforce/gate" + (
    "  - step: ask\n    tool: {kind: external, mode: approval, title: Go?, timeout: 60}\n"
)
CALL = HEAD % "sales/caller" + "  - step: start\n    tool: {kind: playbook, path: %s}\n"


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def send(
    app: Any, caller: Caller, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    async with open_client(app, caller) as client:
        answer = await client.request(method, path, json=body)
    return answer.status_code, answer.json()


async def test_an_approval_outside_is_not_there(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada, root = await shop.person("author", "ada"), await shop.person("operator", "root")
        await shop.register(ada, GATE)
        execution_id = await shop.run(ada, "salesforce/gate")
        address = await shop.wait_for_approval(root, execution_id)
        eve = await shop.person("operator", "eve", path_prefix="sales")
        refused = await shop.ask(eve, "POST", address, json={"decision": "approve"})
        assert refused.status_code == HTTPStatus.NOT_FOUND, refused.text
        sue = await shop.person("operator", "sue", path_prefix="salesforce")
        allowed = await shop.ask(sue, "POST", address, json={"decision": "approve"})
        assert allowed.status_code == HTTPStatus.ACCEPTED
        # What was decided is not told either.
        again = await shop.ask(eve, "POST", address, json={"decision": "reject"})
        assert again.status_code == HTTPStatus.NOT_FOUND, again.text


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("schedules", {"cron": "0 3 * * *"}),
        ("webhooks", {"unsigned": True}),
        ("triggers", {"subject": "orders.*"}),
    ],
)
async def test_what_another_folder_has_named_is_not_overwritten(
    world: ApiWorld, kind: str, body: dict[str, Any]
) -> None:
    app = await make_shop(world)
    address = f"/api/{kind}/nightly"
    assert (await send(app, OWNER, "PUT", address, {**body, "path": "salesforce/load"}))[0] == 200
    eve = await make_caller(world, "author", path_prefix="sales")
    status, answer = await send(app, eve, "PUT", address, {**body, "path": "sales/load"})
    _, kept = await send(app, OWNER, "GET", address)
    assert (status, kept["path"]) == (HTTPStatus.CONFLICT, "salesforce/load")
    assert answer["code"] == "name_taken"
    assert "salesforce" not in str(answer)


async def test_a_new_schedule_does_not_tell_whose_name_it_is(world: ApiWorld) -> None:
    app = await make_shop(world)
    body = {"cron": "0 3 * * *", "name": "nightly"}
    assert (await send(app, OWNER, "POST", "/api/schedules", {**body, "path": "salesforce/load"}))[
        0
    ] == HTTPStatus.OK
    eve = await make_caller(world, "author", path_prefix="sales")
    _, answer = await send(app, eve, "POST", "/api/schedules", {**body, "path": "sales/load"})
    assert answer["code"] == "name_taken"


async def test_a_subject_that_is_taken_does_not_tell_by_whom(world: ApiWorld) -> None:
    app = await make_shop(world)
    body = {"subject": "orders.*"}
    await send(app, OWNER, "PUT", "/api/triggers/secret", {**body, "path": "salesforce/load"})
    eve = await make_caller(world, "author", path_prefix="sales")
    status, answer = await send(
        app, eve, "PUT", "/api/triggers/mine", {**body, "path": "sales/load"}
    )
    assert status == HTTPStatus.CONFLICT
    assert "secret" not in str(answer)


async def test_a_run_outside_is_not_followed_although_it_began_here(world: ApiWorld) -> None:
    app = await make_shop(world)
    _, begun = await send(app, OWNER, "POST", "/api/execute", {"path": "salesforce/load"})
    eve = await make_caller(world, "viewer", path_prefix="sales")
    world.stop.set()
    async with open_client(app, eve) as client:
        followed = await client.get(f"/api/executions/{begun['execution_id']}/stream")
    assert followed.status_code == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(
    "path",
    ["salesforce/load", "/salesforce/load/", "'{{ workload.x }}'", "'sales{{ workload.x }}'"],
)
async def test_a_playbook_calls_none_outside_of_its_authors_folder(
    world: ApiWorld, path: str
) -> None:
    app = await make_shop(world)
    eve = await make_caller(world, "author", path_prefix="sales")
    async with open_client(app, eve) as client:
        answer = await client.post(
            "/api/catalog/register", content=CALL % path, headers={"Content-Type": "text/yaml"}
        )
        drafted = await client.post("/api/execute", json={"content": CALL % path})
    assert (answer.status_code, drafted.status_code) == (HTTPStatus.FORBIDDEN, HTTPStatus.FORBIDDEN)


@pytest.mark.parametrize("path", ["sales/load", "'sales/{{ workload.x }}'"])
async def test_a_playbook_calls_others_of_its_authors_folder(world: ApiWorld, path: str) -> None:
    app = await make_shop(world)
    eve = await make_caller(world, "author", path_prefix="sales")
    async with open_client(app, eve) as client:
        answer = await client.post(
            "/api/catalog/register", content=CALL % path, headers={"Content-Type": "text/yaml"}
        )
    assert answer.status_code == HTTPStatus.OK, answer.text


async def test_the_flow_of_a_run_outside_is_not_told(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada = await shop.person("author", "ada")
        await shop.register(ada, SOURCE.format(path="sales/load"), SOURCE.format(path="other/load"))
        body = {"path": "other/load"}
        flow = {"X-Correlation-ID": "flow-of-others"}
        begun = await shop.ask(ada, "POST", "/api/execute", json=body, headers=flow)
        parent = ExecutionId(begun.json()["execution_id"])
        await shop.wait_for_end(parent)
        eve = await shop.person("operator", "eve", path_prefix="sales")
        own = {"path": "sales/load", "parent_execution_id": parent}
        refused = await shop.ask(eve, "POST", "/api/execute", json=own)
        assert refused.status_code == HTTPStatus.NOT_FOUND
        assert "flow-of-others" not in refused.text


async def test_a_key_of_a_run_outside_does_not_name_it(world: ApiWorld) -> None:
    app = await make_shop(world)
    body = {"path": "salesforce/load", "idempotency_key": "k"}
    _, begun = await send(app, OWNER, "POST", "/api/execute", body)
    eve = await make_caller(world, "operator", path_prefix="sales")
    status, answer = await send(
        app, eve, "POST", "/api/execute", {"path": "sales/load", "idempotency_key": "k"}
    )
    assert status == HTTPStatus.CONFLICT
    assert begun["execution_id"] not in str(answer)


@pytest.mark.parametrize("action", ["rerun", "fork", "cancel", "pause", "resume"])
async def test_a_run_outside_is_not_touched(world: ApiWorld, action: str) -> None:
    app = await make_shop(world)
    eve = await make_caller(world, "author", path_prefix="sales")
    status, _ = await send(app, eve, "POST", f"/api/executions/{OUTSIDE}/{action}", {})
    assert status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(
    "path", ["sales/../salesforce/x", "sales//x", "Sales/x", "sales\\x", "salés/x", "sales"]
)
async def test_a_path_that_only_looks_inside_is_no_way_out(world: ApiWorld, path: str) -> None:
    app = await make_shop(world)
    eve = await make_caller(world, "author", path_prefix="sales/eu")
    assert (await register(app, path, eve)).status_code in (
        HTTPStatus.FORBIDDEN,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.BAD_REQUEST,
    )
