"""What somebody has left running ends with their role, their key or their groups."""

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.api import ApiWorld
from tests.support.guarded_shop import DEFAULT, Shop, open_shop
from tests.support.identities import Caller, make_caller

from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.administration import RecordFilter
from noetl_contracts.identity.role_bindings import PersonGroups, RoleBinding, SubjectKind
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import notifications, schedules
from noetl_contracts.requests.notifications import Cause, DueNotification, NotificationRule
from noetl_contracts.requests.schedules import Schedule
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.triggers import trigger_listener
from noetl_storage.ports.identity_ports import Identities

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: x, path: {path}}}
workflow:
  - step: start
    tool: {{kind: noop}}
"""
CALLER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: x, path: sales/caller}
workload: {who: sales/child}
workflow:
  - step: start
    tool: {kind: playbook, path: "{{ workload.who }}"}
"""
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


async def take_role_away(identities: Identities, name: str) -> None:
    for binding in await identities.list_bindings(
        tenant_id=DEFAULT[0], organization_id=DEFAULT[1], bindings_max=100
    ):
        if binding.subject == name:
            await identities.remove_binding(
                binding.binding_id, tenant_id=DEFAULT[0], organization_id=DEFAULT[1]
            )


async def revoke_key(shop: Shop, caller: Caller) -> None:
    prefix = str(caller.key)[: len("noetl_") + 12]
    assert await shop.opened.adapters.identities.revoke_key(
        prefix, tenant_id=DEFAULT[0], organization_id=DEFAULT[1]
    )


async def put_schedule(shop: Shop, caller: Caller) -> None:
    await shop.register(caller, PLAYBOOK.format(path="sales/load"))
    body = {"path": "sales/load", "cron": "0 3 * * *"}
    answer = await shop.ask(caller, "PUT", "/api/schedules/nightly", json=body)
    assert answer.status_code == HTTPStatus.OK, answer.text


async def fire_schedule(shop: Shop) -> ExecutionId:
    """Play the reaper: what it does at a nominal time."""
    adapters = shop.opened.adapters
    schedule = await adapters.schedules.find_schedule(
        "nightly", tenant_id=DEFAULT[0], organization_id=DEFAULT[1]
    )
    assert isinstance(schedule, Schedule)
    begun = await adapters.schedules.fire_schedule(
        schedule,
        nominal_at=NOON,
        next_at=NOON + timedelta(days=1),
        request=schedules.build_firing_request(
            schedule,
            NOON,
            execution_id=ExecutionId(adapters.snowflake.next_id()),
            routes=IngestRoutes(shard_count=shop.opened.services.shards.shard_count),
            producer="scheduler",
        ),
    )
    assert begun is not None
    return begun


async def find_error(shop: Shop, execution_id: ExecutionId) -> dict[str, Any]:
    rows = await shop.opened.adapters.projections.list_rows("execution", execution_id)
    error: dict[str, Any] = rows[0]["error"]
    return error


async def find_denials(shop: Shop) -> list[Any]:
    return await shop.opened.adapters.administration.list_records(
        RecordFilter(what="access.denied"),
        tenant_id=DEFAULT[0],
        organization_id=DEFAULT[1],
        after_version=0,
        records_max=100,
    )


@pytest.mark.parametrize("loss", ["role", "key"])
async def test_a_schedule_starts_nothing_for_an_author_without_the_role(
    tmp_path: Path, loss: str
) -> None:
    async with open_shop(tmp_path) as shop:
        ann = await shop.person("author", "ann")
        await put_schedule(shop, ann)
        if loss == "role":
            await take_role_away(shop.opened.adapters.identities, "ann")
        else:
            await revoke_key(shop, ann)
        refused = await fire_schedule(shop)
        assert await shop.wait_for_end(refused) == "FAILED"
        error = await find_error(shop, refused)
        assert (error["kind"], error["code"]) == ("auth", "FORBIDDEN")
        assert "sales/load" in error["message"]
        (record,) = await find_denials(shop)
        assert record.actor.on_behalf_of.id == "ann"
        root = await shop.person("admin", "root")
        shown = (await shop.ask(root, "GET", "/api/schedules")).json()["schedules"][0]
        assert shown["author"] == "ann"
        assert "noetl schedule resume nightly" in shown["suspended"]
        assert shown["last_execution_id"] == refused


async def test_who_resumes_a_suspended_schedule_takes_it_over(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ann, bob = await shop.person("author", "ann"), await shop.person("author", "bob")
        await put_schedule(shop, ann)
        await take_role_away(shop.opened.adapters.identities, "ann")
        taken = await shop.ask(bob, "POST", "/api/schedules/nightly/resume")
        assert (taken.json()["author"], taken.json()["suspended"]) == ("bob", None)
        assert await shop.wait_for_end(await fire_schedule(shop)) == "COMPLETED"


async def test_a_schedule_of_an_author_with_the_role_goes_on(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ann = await shop.person("author", "ann", path_prefix="sales")
        await put_schedule(shop, ann)
        assert await shop.wait_for_end(await fire_schedule(shop)) == "COMPLETED"
        assert not await find_denials(shop)


async def test_a_webhook_and_a_trigger_start_nothing_without_their_authors_role(
    tmp_path: Path,
) -> None:
    async with open_shop(tmp_path) as shop:
        ann, bob = await shop.person("author", "ann"), await shop.person("operator", "bob")
        await shop.register(ann, PLAYBOOK.format(path="sales/load"))
        hook = {"path": "sales/load", "unsigned": True}
        await shop.ask(ann, "PUT", "/api/webhooks/orders", json=hook)
        trigger = {"path": "sales/load", "subject": "orders.*"}
        await shop.ask(ann, "PUT", "/api/triggers/orders", json=trigger)
        await take_role_away(shop.opened.adapters.identities, "ann")
        called = await shop.ask(bob, "POST", "/api/webhooks/orders", json={})
        assert (called.status_code, called.json()["code"]) == (403, "author_refused")
        with pytest.raises(ApiError) as refusal:
            await deliver_message(shop.opened.services)
        assert refusal.value.code == "author_refused"
        for kind in ("webhooks", "triggers"):
            shown = (await shop.ask(bob, "GET", f"/api/{kind}/orders")).json()
            assert "ann may not write playbooks" in shown["suspended"]


async def deliver_message(services: ApiServices) -> None:
    subject = f"noetl.triggers.{DEFAULT[0]}.{DEFAULT[1]}.orders.eu"
    delivered: Any = SimpleNamespace(
        subject=subject, data=b"{}", message_id=None, stream_sequence=1
    )
    await trigger_listener.start_from_message(services, delivered)


async def test_a_rule_of_notifications_sends_nothing_without_its_authors_role(
    tmp_path: Path,
) -> None:
    async with open_shop(tmp_path) as shop:
        ann = await shop.person("author", "ann")
        await shop.register(ann, PLAYBOOK.format(path="sales/tell"))
        body = {"pattern": "*", "causes": ["failed"], "playbook": "sales/tell"}
        await shop.ask(ann, "PUT", "/api/notifications/all", json=body)
        await take_role_away(shop.opened.adapters.identities, "ann")
        execution_id = await send_notification(shop)
        assert await shop.wait_for_end(execution_id) == "FAILED"
        assert "ann may not" in (await find_error(shop, execution_id))["message"]


async def send_notification(shop: Shop) -> ExecutionId:
    adapters = shop.opened.adapters
    rule = await adapters.notifications.find_rule(
        "all", tenant_id=DEFAULT[0], organization_id=DEFAULT[1]
    )
    assert isinstance(rule, NotificationRule)
    request = notifications.build_notification_request(
        DueNotification(
            rule=rule,
            rule_id=1,
            cause=Cause.FAILED,
            execution_id=ExecutionId("7"),
            path="sales/load",
            status="FAILED",
            started_at=NOON,
            ended_at=NOON,
            seen_at=NOON,
        ),
        execution_id=ExecutionId(adapters.snowflake.next_id()),
        routes=IngestRoutes(shard_count=shop.opened.services.shards.shard_count),
        producer="notifier",
    )
    await adapters.requests.submit_request(request)
    return request.execution_id


@pytest.mark.parametrize(("child", "end"), [("sales/child", "COMPLETED"), ("hr/child", "FAILED")])
async def test_a_run_begins_no_child_outside_of_its_callers_folder(
    tmp_path: Path, child: str, end: str
) -> None:
    async with open_shop(tmp_path) as shop:
        ada = await shop.person("author", "ada")
        await shop.register(ada, CALLER, PLAYBOOK.format(path=child))
        eve = await shop.person("operator", "eve", path_prefix="sales")
        body = {"path": "sales/caller", "workload": {"who": child}}
        begun = await shop.ask(eve, "POST", "/api/execute", json=body)
        execution_id = ExecutionId(begun.json()["execution_id"])
        assert await shop.wait_for_end(execution_id) == end
        if end == "FAILED":
            message = (await find_error(shop, execution_id))["message"]
            assert "may not run playbooks for 'hr/child' (roles: operator:sales" in message
        else:
            assert not await find_denials(shop)


async def test_a_group_counts_as_it_was_at_the_latest_sign_in() -> None:
    world = ApiWorld()
    services = world.services()
    await make_caller(world, "viewer")
    place = {"tenant_id": services.tenant_id, "organization_id": services.organization_id}
    await world.identities.put_binding(
        RoleBinding(
            binding_id="77",
            **place,
            subject_kind=SubjectKind.GROUP,
            subject="data",
            role="author",
        )
    )
    ann = Actor(kind=ActorKind.PERSON, id="ann", name="Ann", issuer="https://id")
    tom = Actor(kind=ActorKind.PERSON, id="tom", name="Tom", issuer="https://id")
    for person, groups in (("ann", ("data",)), ("tom", ())):
        await world.identities.put_groups(
            PersonGroups(issuer="https://id", subject=person, groups=groups, seen_at=NOON)
        )
    assert await services.find_author_fault(ann, "sales/load") is None
    assert "2026-01-05 12:00 UTC" in str(await services.find_author_fault(tom, "sales/load"))
    unseen = Actor(kind=ActorKind.PERSON, id="zoe", name="Zoe", issuer="https://id")
    assert "none is known" in str(await services.find_author_fault(unseen, "sales/load"))


async def test_the_owner_and_what_nobody_is_known_for_go_on() -> None:
    services = ApiWorld().services()
    for kind in (ActorKind.OWNER, ActorKind.UNKNOWN, ActorKind.ANONYMOUS):
        assert await services.find_author_fault(Actor(kind=kind), "sales/load") is None
    assert await services.find_author_fault(None, "sales/load") is None
