"""What a client names is looked at: the parent of a run, and who waits for its end."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.security.access.test_folders_and_tenants import INSIDE, OUTSIDE, make_shop
from tests.support.api import ApiWorld
from tests.support.guarded_shop import DEFAULT, open_shop
from tests.support.identities import OTHER, Caller, make_caller, make_guarded_app, open_client
from tests.support.polling import eventually

from noetl_planner.api.http import gate
from noetl_planner.api.watch import stream_access

WAITS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gate, path: demo/gate}
workflow:
  - step: ask
    tool: {kind: external, mode: approval, title: Go?, timeout: 60}
"""


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def start_below(app: Any, caller: Caller, parent: str) -> tuple[int, dict[str, Any]]:
    body = {"path": "sales/load", "parent_execution_id": parent}
    async with open_client(app, caller) as client:
        answer = await client.post("/api/execute", json=body)
    return answer.status_code, answer.json()


async def test_a_run_is_begun_below_what_its_caller_sees(world: ApiWorld) -> None:
    app = await make_shop(world)
    eve = await make_caller(world, "operator", path_prefix="sales")
    refused, told = await start_below(app, eve, OUTSIDE)
    assert (refused, told["code"]) == (HTTPStatus.NOT_FOUND, "not_found")
    assert "parent_execution_id" in told["detail"]
    assert "noetl ls" in told["hint"]
    assert (await start_below(app, eve, INSIDE))[0] == HTTPStatus.ACCEPTED


@pytest.mark.parametrize("parent", [INSIDE, "72057594037999999", "no-number"])
async def test_a_run_of_another_tenant_is_no_parent(world: ApiWorld, parent: str) -> None:
    await make_shop(world)
    app = make_guarded_app(world)
    other = await make_caller(world, "author", place=OTHER)
    async with open_client(app, other) as client:
        text = WAITS.replace("demo/gate", "sales/load")
        answer = await client.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
    assert answer.status_code == HTTPStatus.OK, answer.text
    status, told = await start_below(app, other, parent)
    assert status == HTTPStatus.NOT_FOUND, told


async def test_who_lost_the_role_is_not_told_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Prefer: wait` holds an answer open as a stream does."""
    monkeypatch.setattr(gate, "REMEMBERED_S", 0.2)
    monkeypatch.setattr(stream_access, "REMEMBERED_S", 0.2)
    async with open_shop(tmp_path) as shop:
        ada, bob = await shop.person("author", "ada"), await shop.person("operator", "bob")
        await shop.register(ada, WAITS)
        waiting = asyncio.ensure_future(
            shop.ask(
                bob,
                "POST",
                "/api/execute",
                json={"path": "demo/gate"},
                headers={"Prefer": "wait=60"},
            )
        )
        root = await shop.person("operator", "root")
        address = await shop.wait_for_approval(root)
        identities = shop.opened.adapters.identities
        for binding in await identities.list_bindings(
            tenant_id=DEFAULT[0], organization_id=DEFAULT[1], bindings_max=99
        ):
            if binding.subject == "bob":
                await identities.remove_binding(
                    binding.binding_id, tenant_id=DEFAULT[0], organization_id=DEFAULT[1]
                )

        async def is_answered() -> bool:
            return waiting.done()

        await eventually(is_answered)
        await shop.ask(root, "POST", address, json={"decision": "approve"})
        answer = await waiting
        assert answer.status_code == HTTPStatus.ACCEPTED, answer.text
        assert "end" not in answer.json()
