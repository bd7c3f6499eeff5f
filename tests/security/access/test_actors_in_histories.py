"""Histories name who asked: for a start, an approval, a child, a webhook and a schedule."""

from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.guarded_shop import DEFAULT, open_shop
from tests.support.identities import Caller
from tests.support.polling import eventually

from noetl_contracts.identity.actors import ActorKind
from noetl_contracts.ids import ExecutionId
from noetl_replay.audit.chain import ChainExamination

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: %s}\nworkflow:\n"
GATE = HEAD % "demo/gate" + (
    "  - step: ask\n"
    "    tool: {kind: external, mode: approval, title: Go?, timeout: 60, four_eyes: true}\n"
)
CHILD = HEAD % "demo/child" + "  - step: start\n    tool: {kind: noop}\n"
PARENT = HEAD % "demo/parent" + "  - step: start\n    tool: {kind: playbook, path: demo/child}\n"
SECRET = HEAD % "other/secret" + (
    "  - step: start\n    tool: {kind: http, url: 'http://127.0.0.1:9/', auth: crm}\n"
)


async def test_nobody_approves_what_they_started(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        author = await shop.person("author", "ada")
        ann, bob = await shop.person("operator", "ann"), await shop.person("operator", "bob")
        await shop.register(author, GATE)
        execution_id = await shop.run(ann, "demo/gate")

        async def find_approval() -> dict[str, Any] | None:
            listed = (await shop.ask(ann, "GET", "/api/approvals")).json()["approvals"]
            return listed[0] if listed else None

        approval = await eventually(find_approval)
        assert approval is not None
        address = f"/api/approvals/{approval['approval_id']}"
        own = await shop.ask(ann, "POST", address, json={"decision": "approve", "by": "bob"})
        assert (own.status_code, own.json()["code"]) == (HTTPStatus.FORBIDDEN, "four_eyes")
        other = await shop.ask(bob, "POST", address, json={"decision": "approve", "by": "ann"})
        assert other.status_code == HTTPStatus.ACCEPTED
        assert await shop.wait_for_end(execution_id) == "COMPLETED"
        named = await shop.find_actors(execution_id)
        assert named["playbook.initialized"].name == "ann"
        assert named["command.resumed"].name == "bob"
        result = await shop.ask(ann, "GET", f"/api/result/{execution_id}/ask")
        # Not what the client said, but who it was.
        assert result.json()["data"]["by"] == "bob"


async def test_a_child_names_who_caused_it_first(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada = await shop.person("author", "ada")
        await shop.register(ada, CHILD, PARENT)
        parent = await shop.run(ada, "demo/parent")
        assert await shop.wait_for_end(parent) == "COMPLETED"
        listed = (await shop.ask(ada, "GET", "/api/executions")).json()["executions"]
        (child,) = [row for row in listed if row["path"] == "demo/child"]
        actor = (await shop.find_actors(ExecutionId(child["execution_id"])))["playbook.initialized"]
        assert (actor.kind, actor.id) == (ActorKind.EXECUTION, parent)
        assert actor.on_behalf_of is not None
        assert actor.on_behalf_of.name == "ada"


async def test_a_webhook_and_a_schedule_name_who_put_them(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada, ann = await shop.person("author", "ada"), await shop.person("operator", "ann")
        await shop.register(ada, CHILD)
        hook = {"path": "demo/child", "unsigned": True}
        kept = await shop.ask(ada, "PUT", "/api/webhooks/orders", json=hook)
        assert kept.status_code == HTTPStatus.OK, kept.text
        nobody = await shop.ask(Caller("nobody", None), "POST", "/api/webhooks/orders", json={})
        assert nobody.status_code == HTTPStatus.UNAUTHORIZED
        called = await shop.ask(ann, "POST", "/api/webhooks/orders", json={})
        by_hook = (await shop.find_actors(ExecutionId(called.json()["execution_id"])))[
            "playbook.initialized"
        ]
        assert (by_hook.kind, by_hook.name) == (ActorKind.WEBHOOK, "orders")
        assert by_hook.on_behalf_of is not None
        assert by_hook.on_behalf_of.name == "ann"
        schedule = {"path": "demo/child", "cron": "0 3 * * *"}
        await shop.ask(ada, "PUT", "/api/schedules/nightly", json=schedule)
        stored = await shop.opened.adapters.schedules.find_schedule(
            "nightly", tenant_id=DEFAULT[0], organization_id=DEFAULT[1]
        )
        assert stored is not None
        assert stored.actor is not None
        assert stored.actor.name == "ada"


async def test_a_changed_actor_breaks_the_chain(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada = await shop.person("author", "ada")
        await shop.register(ada, CHILD)
        execution_id = await shop.run(ada, "demo/child")
        await shop.wait_for_end(execution_id)
        stored = await shop.opened.adapters.audit.read_stored_events(execution_id, events_max=99)
        forged = structs.replace(
            stored[0], meta={**stored[0].meta, "actor": {"kind": "person", "id": "eve"}}
        )
        examination = ChainExamination(exported=None)
        examination.feed_events([forged, *stored[1:]])
        assert examination.finish_examination(
            await shop.opened.adapters.ledger.find_head(execution_id)
        )


@pytest.mark.parametrize(
    ("allowed", "kind"), [(["demo"], "config"), (["other"], "connection"), ([], "connection")]
)
async def test_a_credential_is_used_by_playbooks_of_its_paths_alone(
    tmp_path: Path, allowed: list[str], kind: str
) -> None:
    async with open_shop(tmp_path) as shop:
        ada, root = await shop.person("author", "ada"), await shop.person("admin", "root")
        body = {"name": "crm", "type": "bearer", "data": {"token": "t0ken-of-crm"}}
        kept = await shop.ask(
            root, "POST", "/api/credentials", json={**body, "allowed_paths": allowed}
        )
        assert kept.json()["allowed_paths"] == allowed
        await shop.register(ada, SECRET)
        execution_id = await shop.run(ada, "other/secret")
        assert await shop.wait_for_end(execution_id) == "FAILED"
        status = (await shop.ask(ada, "GET", f"/api/executions/{execution_id}/status")).json()
        assert ("is not for playbook 'other/secret'" in str(status)) == (kind == "config")
