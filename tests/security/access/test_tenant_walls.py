"""Attacks of one tenant's principals on another's things, and on what all tenants share."""

from http import HTTPStatus
from typing import Any

import pytest
from msgspec import structs
from tests.security.access.test_folder_walls import send
from tests.security.access.test_folders_and_tenants import make_shop
from tests.support.api import ApiWorld
from tests.support.identities import (
    OTHER,
    OWN,
    OWNER,
    OWNER_TOKEN,
    Caller,
    make_caller,
    make_guarded_app,
    open_client,
)

from noetl_chassis.clock import SystemClock
from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.administration import RecordFilter
from noetl_contracts.identity.role_bindings import ALL_ORGANIZATIONS, RoleBinding, SubjectKind
from noetl_contracts.ids import OrganizationId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message
from noetl_planner.api.http.gate import Gate
from noetl_planner.api.http.limiters import CallRateLimiter
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.lookup import payload_reader
from noetl_planner.identity import authenticator, denials
from noetl_planner.identity.authenticator import Authenticator, digest_token
from noetl_planner.identity.denials import Denial, DenialLog
from noetl_planner.identity.permissions import Permission, Role
from noetl_planner.identity.principals import Access, Grant, Principal, build_system_access

WEST = (OWN[0], OrganizationId("west"))


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def test_an_administrator_of_one_organization_gives_no_role_in_all(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=WEST, name="eve")
    body = {"kind": "service_account", "subject": "eve", "role": "admin", "all_organizations": True}
    status, _ = await send(app, eve, "POST", "/api/roles", body)
    assert status == HTTPStatus.FORBIDDEN
    assert (await send(app, OWNER, "POST", "/api/roles", body))[0] == HTTPStatus.OK


async def test_an_administrator_of_one_organization_takes_no_role_in_all(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    await world.identities.put_binding(
        RoleBinding(
            binding_id="77",
            tenant_id=OWN[0],
            organization_id=ALL_ORGANIZATIONS,
            subject_kind=SubjectKind.SERVICE_ACCOUNT,
            subject="root",
            role="admin",
        )
    )
    eve = await make_caller(world, "admin", place=WEST, name="eve")
    status, _ = await send(app, eve, "DELETE", "/api/roles/77")
    bindings = await world.identities.list_bindings(
        tenant_id=OWN[0], organization_id=OWN[1], bindings_max=99
    )
    assert (status, "77" in {binding.binding_id for binding in bindings}) == (
        HTTPStatus.NOT_FOUND,
        True,
    )


async def test_accounts_of_one_name_do_not_use_up_each_others_calls(world: ApiWorld) -> None:
    app = make_guarded_app(world, rate_limiter=CallRateLimiter(1))
    eve = await make_caller(world, "viewer", place=OTHER, name="ci")
    ann = await make_caller(world, "viewer", name="ci")
    for _ in range(5):
        await send(app, eve, "GET", "/api/catalog")
    assert (await send(app, ann, "GET", "/api/catalog"))[0] == HTTPStatus.OK


async def test_accounts_of_one_name_do_not_hide_each_others_denials(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    for place in (OTHER, OWN):
        caller = await make_caller(world, "viewer", place=place, name="ci")
        assert (await send(app, caller, "GET", "/api/keys"))[0] == HTTPStatus.FORBIDDEN
    _, log = await send(app, OWNER, "GET", "/api/audit?who=ci")
    assert [record["target"] for record in log["records"]] == ["GET /api/keys"]


async def list_denied(world: ApiWorld, who: str) -> list[str]:
    records = await world.administration.list_records(
        RecordFilter(who=who), tenant_id=OWN[0], organization_id=OWN[1], after_version=0,
        records_max=999,
    )  # fmt: skip
    return [record.target for record in records]


@pytest.mark.parametrize("kind", [ActorKind.ANONYMOUS, ActorKind.SERVICE_ACCOUNT])
async def test_a_flood_of_denials_hides_nobody_elses(world: ApiWorld, kind: ActorKind) -> None:
    log = DenialLog(world.administration, SystemClock())

    async def deny(actor: Actor, route: str) -> None:
        await log.record_denial(
            Denial(tenant_id=OWN[0], organization_id=OWN[1], actor=actor, route=route, reason="r")
        )

    for number in range(2 * denials.RECORDS_A_MINUTE_MAX):
        # Nobody has many addresses, an account has many routes.
        identity = str(number) if kind is ActorKind.ANONYMOUS else "eve"
        await deny(Actor(kind=kind, id=identity), f"GET /{number}")
    await deny(Actor(kind=ActorKind.PERSON, id="mallory"), "DELETE /api/keys/x")
    assert await list_denied(world, "mallory") == ["DELETE /api/keys/x"]


async def test_floods_of_many_accounts_are_bounded_together(world: ApiWorld) -> None:
    log = DenialLog(world.administration, SystemClock())
    for number in range(3 * denials.RECORDS_A_MINUTE_MAX):
        actor = Actor(kind=ActorKind.PERSON, id=f"p{number}", name="p")
        await log.record_denial(
            Denial(tenant_id=OWN[0], organization_id=OWN[1], actor=actor, route="x", reason="r")
        )
    assert len(await list_denied(world, "p")) == denials.RECORDS_A_MINUTE_MAX


async def test_what_the_gate_remembers_is_bounded_in_bytes(world: ApiWorld) -> None:
    caller = await make_caller(world, "viewer")
    gate = Gate(
        world.services(
            authenticator=Authenticator(
                world.identities, SystemClock(), owner_digest=digest_token(OWNER_TOKEN)
            )
        )
    )

    async def admit(*headers: tuple[bytes, bytes]) -> None:
        scope: Any = {"method": "GET", "path_template": "/api/catalog", "headers": list(headers)}
        await gate.admit_request(scope)

    for number in range(8):
        padded = b"Bearer " + b" " * (number + 1) * 100_000 + (caller.key or "").encode()
        await admit((b"authorization", padded), (b"x-noetl-client", b"c" * 100_000))
    assert sum(len(str(key)) for key in gate._remembered._entries) < 8_000


async def test_a_key_is_not_found_in_what_the_gate_remembers(world: ApiWorld) -> None:
    caller = await make_caller(world, "viewer")
    services = world.services(authenticator=Authenticator(world.identities, SystemClock()))
    gate = Gate(services)
    scope: Any = {"method": "GET", "path_template": "/api/catalog", "headers": [
        (b"authorization", f"Bearer {caller.key}".encode())]}  # fmt: skip
    await gate.admit_request(scope)
    assert (caller.key or "x") not in str(list(gate._remembered._entries))


async def test_a_letter_that_is_nobodys_is_shown_to_the_installation_alone(
    world: ApiWorld,
) -> None:
    app = make_guarded_app(world)
    await world.broker.ensure_streams()
    world.broker.store_message(
        Message(subject="noetl.ingest.0.a.b.c.d", message_id="m", data=b'{"of": "own"}')
    )
    consumer = MemoryConsumer(world.broker, stream=topology.INGEST, name="planner-0")
    (delivery,) = await consumer.fetch_batch(messages_max=1, wait_s=1)
    await MemoryDeadLetters(world.broker).bury_delivery(
        delivery, stream=topology.INGEST, consumer="planner-0", reason="odd"
    )
    foreign = await make_caller(world, "admin", place=OTHER)
    assert (await send(app, foreign, "GET", "/api/dead-letters"))[1]["letters"] == []
    (dead_letter,) = (await send(app, OWNER, "GET", "/api/dead-letters"))[1]["letters"]
    drop = f"/api/dead-letters/{dead_letter['sequence']}/drop"
    assert (await send(app, foreign, "POST", drop, {"who": "x", "reason": "y"}))[0] == 404


async def test_content_of_another_tenant_is_not_read_whatever_refers_to_it(
    world: ApiWorld,
) -> None:
    reference = await world.payloads.put_payload(
        b'"theirs"', media_type=JSON_MEDIA_TYPE, tenant_id=OTHER[0], organization_id=OTHER[1]
    )
    services = world.services(access=build_system_access(*OWN))
    with pytest.raises(ApiError) as refused:
        await payload_reader.read_payload(services, reference)
    assert refused.value.status == HTTPStatus.NOT_FOUND


async def test_each_id_of_another_tenant_is_not_found(world: ApiWorld) -> None:
    app = await make_shop(world)
    _, begun = await send(app, OWNER, "POST", "/api/execute", {"path": "sales/load"})
    schedule = {"path": "sales/load", "cron": "0 3 * * *"}
    assert (await send(app, OWNER, "PUT", "/api/schedules/nightly", schedule))[0] == HTTPStatus.OK
    eve = await make_caller(world, "admin", place=OTHER)
    own = f"tenant_id={OWN[0]}&organization_id={OWN[1]}"
    execution_id = begun["execution_id"]
    asked = [
        ("GET", f"/api/executions/{execution_id}/stream"),
        ("GET", f"/api/executions/{execution_id}/events"),
        ("GET", f"/api/executions/{execution_id}/lineage"),
        ("GET", f"/api/executions/{execution_id}/trace/start"),
        ("POST", f"/api/executions/{execution_id}/rerun"),
        ("POST", f"/api/executions/{execution_id}/fork"),
        ("POST", f"/api/executions/{execution_id}/cancel"),
        ("GET", f"/api/vars/{execution_id}"),
        ("GET", f"/api/result/{execution_id}/list"),
        ("GET", f"/api/result/resolve?ref=noetl://execution/{execution_id}/result/start/latest"),
        ("GET", f"/api/objects?execution_id={execution_id}"),
        ("GET", f"/api/replay/state?execution_id={execution_id}&{own}"),
        ("GET", f"/api/audit/executions/{execution_id}?{own}"),
        ("GET", f"/api/audit/heads?{own}"),
        ("GET", f"/api/retention/policy?{own}"),
        ("GET", "/api/schedules/nightly"),
        ("POST", "/api/schedules/nightly/run"),
        ("DELETE", "/api/schedules/nightly"),
        ("GET", "/api/catalog/sales/load"),
        ("POST", f"/api/approvals/{execution_id}"),
    ]
    for method, path in asked:
        body = {"decision": "approve"} if "approvals" in path else None
        status, answer = await send(app, eve, method, path, body)
        assert status == HTTPStatus.NOT_FOUND, (method, path, answer)


async def test_an_idempotency_key_of_another_tenant_begins_a_run_of_ones_own(
    world: ApiWorld,
) -> None:
    app = await make_shop(world)
    body = {"path": "sales/load", "idempotency_key": "k"}
    _, first = await send(app, OWNER, "POST", "/api/execute", body)
    eve = await make_caller(world, "author", place=OTHER)
    async with open_client(app, eve) as client:
        text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: sales/load}\n"
        text += "workflow:\n  - step: start\n    tool: {kind: noop}\n"
        await client.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
    _, second = await send(app, eve, "POST", "/api/execute", body)
    assert first["execution_id"] != second["execution_id"]
    assert not second["deduplicated"]


@pytest.mark.parametrize(
    "path",
    [
        *("/api/executions/", "/api//executions", "/api/./executions", "/API/executions"),
        *("/api/%65xecutions", "/api/executions%2F", "//api/executions", "/api/executions;x=1"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "TRACE", "get", "X"])
async def test_no_spelling_of_a_route_comes_in_without_a_proof(
    world: ApiWorld, method: str, path: str
) -> None:
    app = await make_shop(world)
    async with open_client(app) as client:
        status = (await client.request(method, path)).status_code
    assert status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer wrong"), ("Authorization", "")],
        [("Authorization", ""), ("authorization", "Bearer wrong")],
        [("AUTHORIZATION", "Bearer wrong")],
        [("Cookie", "noetl_session=x; noetl_session=y")],
        [("X-NoETL-Tenant", "a\tb"), ("X-NoETL-Client", "console")],
        [("Proxy-Authorization", f"Bearer {OWNER_TOKEN}")],
        [("X-Forwarded-User", "owner"), ("X-Remote-User", "owner")],
    ],
)
async def test_the_fast_route_of_starts_asks_for_a_proof(
    world: ApiWorld, headers: list[tuple[str, str]]
) -> None:
    app = await make_shop(world)
    async with open_client(app) as client:
        for path in ("/api/execute", "/api/executions"):
            answer = await client.post(path, json={"path": "sales/load"}, headers=headers)
            assert answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def test_a_key_of_an_account_with_roles_everywhere_opens_one_organization() -> None:
    principal = Principal(kind=ActorKind.SERVICE_ACCOUNT, id="ci", name="ci")
    everywhere = (Grant(role=Role.ADMIN, is_everywhere=True),)
    for home, is_allowed in ((None, True), (OWN, False)):
        access = Access(
            principal=structs.replace(principal, home=home),
            tenant_id=OWN[0],
            organization_id=OWN[1],
            grants=everywhere,
        )
        assert access.has_permission_everywhere(Permission.ADMINISTER) == is_allowed


async def test_a_key_of_another_tenant_is_not_revoked(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    ann = await make_caller(world, "viewer", name="ann")
    prefix = authenticator.find_key_prefix(ann.key or "")
    eve = await make_caller(world, "admin", place=OTHER)
    assert (await send(app, eve, "DELETE", f"/api/keys/{prefix}"))[0] == HTTPStatus.NOT_FOUND
    assert (await send(app, Caller("ann", ann.key), "GET", "/api/catalog"))[0] == HTTPStatus.OK
