"""Whether there is a tenant is told to who owns the installation, and to nobody else."""

from http import HTTPStatus
from typing import Any

import pytest
from tests.security.access.test_folder_walls import send
from tests.security.access.test_folders_and_tenants import INSIDE, make_shop
from tests.support.api import ApiWorld
from tests.support.identities import (
    OTHER,
    OWN,
    OWNER,
    Caller,
    make_caller,
    make_guarded_app,
    open_client,
)

from noetl_contracts.identity.actors import ActorKind
from noetl_contracts.identity.role_bindings import RoleBinding, SubjectKind
from noetl_contracts.ids import TenantId
from noetl_planner.identity.access_resolver import AccessResolver, NoRole
from noetl_planner.identity.principals import Principal

MISSING = "nowhere"
# What an answer repeats of a request; all else of it must be the same for every tenant.
NAMES = (MISSING, *OTHER, "west")


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def ask_in(
    app: Any, caller: Caller, place: dict[str, str], method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    """Ask with the headers that choose a tenant and an organization."""
    headers = {f"X-NoETL-{name.capitalize()}": value for name, value in place.items()}
    async with open_client(app, caller, **headers) as client:
        answer = await client.request(method, path, json=body)
    return answer.status_code, answer.json()


def hide_names(answer: Any) -> str:
    """Write an answer without the names that its request brought."""
    text = str(answer)
    for name in NAMES:
        text = text.replace(name, "NAME")
    return text


async def make_stranger(world: ApiWorld) -> Caller:
    """Somebody with a key, and no role anywhere any more."""
    stranger = await make_caller(world, "viewer", place=(TenantId("left"), OTHER[1]), name="eve")
    for binding_id, binding in list(world.store.role_bindings.items()):
        if binding.subject == "eve":
            del world.store.role_bindings[binding_id]
    return stranger


@pytest.mark.parametrize("who", ["stranger", "member"])
@pytest.mark.parametrize("path", ["/api/catalog", "/api/auth/whoami", f"/api/executions/{INSIDE}"])
async def test_a_missing_tenant_is_answered_as_a_foreign_one(
    world: ApiWorld, who: str, path: str
) -> None:
    app = await make_shop(world)
    await make_caller(world, "admin", place=OTHER)
    caller = await (
        make_stranger(world) if who == "stranger" else make_caller(world, "admin", name="ann")
    )
    foreign = await ask_in(app, caller, {"tenant": OTHER[0]}, "GET", path)
    missing = await ask_in(app, caller, {"tenant": MISSING}, "GET", path)
    assert foreign[0] == HTTPStatus.FORBIDDEN
    assert foreign[1]["code"] == "no_role"
    assert (missing[0], hide_names(missing[1])) == (foreign[0], hide_names(foreign[1]))


@pytest.mark.parametrize("place", [{}, {"tenant": OTHER[0]}, {"organization": "west"}])
async def test_who_has_no_role_is_told_no_name_that_it_did_not_say(
    world: ApiWorld, place: dict[str, str]
) -> None:
    resolver = AccessResolver(world.identities, tenant_id=OWN[0], organization_id=OWN[1])
    eve = Principal(kind=ActorKind.PERSON, id="8f3c", name="eve", issuer="https://id")
    wanted = {"tenant": None, "organization": None, **place}
    with pytest.raises(NoRole) as refused:
        await resolver.resolve_access(eve, **wanted)
    said = refused.value.detail
    assert all(repr(str(name)) in said for name in place.values())
    assert not any(repr(str(name)) in said for name in OWN if name not in place.values())


async def test_the_owner_is_told_that_there_is_no_such_tenant(world: ApiWorld) -> None:
    app = await make_shop(world)
    for method, path in (
        ("GET", "/api/executions"),
        ("GET", "/api/catalog"),
        ("GET", f"/api/executions/{INSIDE}"),
        ("POST", "/api/execute"),
        ("PUT", "/api/webhooks/paid"),
        ("GET", "/api/auth/whoami"),
    ):
        body = None if method == "GET" else {"path": "sales/load", "unsigned": True}
        status, answer = await ask_in(app, OWNER, {"tenant": MISSING}, method, path, body)
        assert (status, answer.get("code")) == (HTTPStatus.NOT_FOUND, "no_tenant"), (path, answer)
        assert f"there is no tenant '{MISSING}'" in answer["detail"]
        assert "noetl role grant" in answer["hint"]


@pytest.mark.parametrize("tenant", OWN[:1] + OTHER[:1])
async def test_the_owner_is_told_that_there_is_no_such_organization(
    world: ApiWorld, tenant: str
) -> None:
    app = await make_shop(world)
    await make_caller(world, "viewer", place=OTHER)
    place = {"tenant": tenant, "organization": "wset"}
    for method, path in (("GET", "/api/catalog"), ("POST", "/api/execute")):
        status, answer = await ask_in(app, OWNER, place, method, path, {"path": "sales/load"})
        assert (status, answer["code"]) == (HTTPStatus.NOT_FOUND, "no_organization"), answer
        assert f"no organization 'wset' of tenant {tenant!r}" in answer["detail"]
    body = {"kind": "service_account", "subject": "ci", "role": "author"}
    status, answer = await ask_in(app, OWNER, place, "POST", "/api/roles", body)
    assert status == HTTPStatus.OK, answer
    assert (await ask_in(app, OWNER, place, "GET", "/api/catalog"))[0] == HTTPStatus.OK


async def test_who_has_no_role_is_told_who_they_are_and_nothing_else(world: ApiWorld) -> None:
    app = await make_shop(world)
    stranger = await make_stranger(world)
    status, who = await ask_in(app, stranger, {}, "GET", "/api/auth/whoami")
    assert (status, who["name"], who["tenant"]) == (HTTPStatus.OK, "eve", "left")
    assert (who["roles"], who["permissions"]) == ([], [])
    for path in ("/api/catalog", "/api/pools", "/api/audit"):
        status, answer = await ask_in(app, stranger, {}, "GET", path)
        assert (status, answer["code"]) == (HTTPStatus.FORBIDDEN, "no_role"), path


async def test_what_the_owner_gives_in_a_new_tenant_makes_it(world: ApiWorld) -> None:
    app = await make_shop(world)
    place = {"tenant": MISSING, "organization": "west"}
    assert (await ask_in(app, OWNER, place, "GET", "/api/catalog"))[0] == HTTPStatus.NOT_FOUND
    body = {"kind": "service_account", "subject": "ci", "role": "author"}
    status, answer = await ask_in(app, OWNER, place, "POST", "/api/roles", body)
    assert status == HTTPStatus.OK, answer
    # At once: that there was none is not remembered.
    assert (await ask_in(app, OWNER, place, "GET", "/api/catalog"))[0] == HTTPStatus.OK


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/keys", {"account": "ci", "role": "author"}),
        ("/api/credentials", {"name": "pg", "type": "generic", "data": {"secret": "x"}}),
        ("/api/catalog/register", None),
    ],
)
async def test_each_beginning_of_a_tenant_makes_it(
    world: ApiWorld, path: str, body: dict[str, Any] | None
) -> None:
    app = make_guarded_app(world)
    place = {"tenant": MISSING}
    if body is None:
        text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: a/b}\n"
        body = {"path": "a/b", "content": f"{text}workflow: [{{step: s, tool: {{kind: noop}}}}]\n"}
    status, answer = await ask_in(app, OWNER, place, "POST", path, body)
    assert status < HTTPStatus.BAD_REQUEST, answer
    assert (await ask_in(app, OWNER, place, "GET", "/api/catalog"))[0] == HTTPStatus.OK


async def test_each_trace_of_a_tenant_shows_that_it_is_there(world: ApiWorld) -> None:
    app = await make_shop(world)
    await world.identities.put_binding(
        RoleBinding(
            binding_id="88",
            tenant_id=OTHER[0],
            organization_id=OTHER[1],
            subject_kind=SubjectKind.SERVICE_ACCOUNT,
            subject="ci",
            role="viewer",
        )
    )
    assert (await ask_in(app, OWNER, {"tenant": OTHER[0]}, "GET", "/api/catalog"))[0] == 200
    # The tenant of the installation is there before anything is in it.
    empty = make_guarded_app(ApiWorld())
    assert (await send(empty, OWNER, "GET", "/api/catalog"))[0] == HTTPStatus.OK


async def test_no_quota_is_set_for_a_tenant_that_is_not_there(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    change = {"running_max": 3}
    status, answer = await send(app, OWNER, "PATCH", f"/api/quotas/{MISSING}", change)
    assert (status, answer["code"]) == (HTTPStatus.NOT_FOUND, "no_tenant")
    status, answer = await send(app, OWNER, "GET", f"/api/quotas?tenant={MISSING}")
    assert (status, answer["code"]) == (HTTPStatus.NOT_FOUND, "no_tenant")
    await make_caller(world, "admin", place=OTHER)
    assert (await send(app, OWNER, "PATCH", f"/api/quotas/{OTHER[0]}", change))[0] == 200
    _, seen = await send(app, OWNER, "GET", f"/api/quotas?tenant={OTHER[0]}")
    assert [quota["running_max"] for quota in seen["quotas"]] == [3]


async def test_of_quotas_others_are_told_the_same_of_every_tenant(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    for method, address in (("PATCH", "/api/quotas/{}"), ("GET", "/api/quotas?tenant={}")):
        body = {"running_max": 9} if method == "PATCH" else None
        foreign = await send(app, eve, method, address.format(OWN[0]), body)
        missing = await send(app, eve, method, address.format(MISSING), body)
        assert foreign[0] == missing[0] == HTTPStatus.NOT_FOUND
        assert foreign[1]["detail"].replace(OWN[0], MISSING) == missing[1]["detail"]
        assert foreign[1]["code"] == missing[1]["code"]
    # Of the own tenant nothing is hidden: who sets its quota is said.
    status, answer = await send(app, eve, "PATCH", f"/api/quotas/{OTHER[0]}", {"running_max": 9})
    assert (status, answer["code"]) == (HTTPStatus.FORBIDDEN, "forbidden")
    assert (await send(app, eve, "GET", f"/api/quotas?tenant={OTHER[0]}"))[0] == HTTPStatus.OK


@pytest.mark.parametrize(
    "path",
    [
        f"/api/replay/state?execution_id={INSIDE}&",
        f"/api/audit/executions/{INSIDE}?",
        "/api/audit/heads?",
        "/api/retention/policy?",
    ],
)
async def test_a_tenant_that_is_named_beside_the_own_is_not_called_missing(
    world: ApiWorld, path: str
) -> None:
    app = await make_shop(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    for caller in (eve, OWNER):
        place = OTHER if caller is OWNER else OWN
        answers = [
            await send(app, caller, "GET", f"{path}tenant_id={tenant}&organization_id={place[1]}")
            for tenant in (place[0], MISSING)
        ]
        assert {status for status, _ in answers} == {HTTPStatus.NOT_FOUND}
        details = [answer["detail"].replace(MISSING, place[0]) for _, answer in answers]
        assert details[0] == details[1]
        # It says where the request acts, and how to choose; nothing of what is there.
        acts_in = OWN if caller is OWNER else OTHER
        assert f"acts in tenant {acts_in[0]!r}, organization {acts_in[1]!r}" in details[0]
        assert "X-NoETL-Tenant" in answers[0][1]["hint"]


async def test_who_tries_tenants_is_recorded(world: ApiWorld) -> None:
    app = await make_shop(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    for tenant in (MISSING, OWN[0]):
        await ask_in(app, eve, {"tenant": tenant}, "GET", "/api/catalog")
    _, log = await ask_in(app, OWNER, {"tenant": OTHER[0], "organization": OTHER[1]},
                          "GET", "/api/audit?who=eve")  # fmt: skip
    assert [
        (record["action"], record["target"], record["details"]["reason"])
        for record in log["records"]
    ] == [("access.denied", "GET /api/catalog", "no_role")]
