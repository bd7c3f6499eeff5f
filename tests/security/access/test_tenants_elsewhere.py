"""A tenant that another installation serves is nobody's to use, fill or look for here."""

from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from tests.support.api import ApiWorld
from tests.support.identities import (
    NOBODY,
    OTHER,
    OWN,
    OWNER,
    Caller,
    make_caller,
    make_guarded_app,
    open_client,
)
from tests.support.one_shard import TENANT, World

from noetl_chassis.settings import SettingsError
from noetl_cli.local import system
from noetl_contracts import codec, subjects
from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.identity.role_bindings import RoleBinding, SubjectKind
from noetl_contracts.ids import ExecutionId, TenantId
from noetl_contracts.requests import facts
from noetl_planner.identity import served_tenants
from noetl_planner.identity.served_tenants import ServedTenants, TenantKeptHere
from noetl_planner.settings import parse_served_tenants

GLOBEX, URL = TenantId("globex"), "https://globex.example.org"
ELSEWHERE = ServedTenants(url_by_tenant={GLOBEX: URL})
ALONE = ServedTenants(only=OWN[0])
OF_GLOBEX = {"X-NoETL-Tenant": GLOBEX}
PLAYBOOK = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\nworkflow: []\n"
ASKED = (
    ("GET", "/api/auth/whoami"),
    ("GET", "/api/executions"),
    ("POST", "/api/execute"),
    ("POST", "/api/catalog/register"),
    ("POST", "/api/roles"),
    ("POST", "/api/keys"),
    ("GET", "/api/audit"),
)


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def ask(
    world: ApiWorld, served: ServedTenants, caller: Caller, method: str, path: str, **headers: str
) -> httpx.Response:
    app = make_guarded_app(world, served_tenants=served)
    async with open_client(app, caller, **headers) as client:
        body = {"path": "p"} if method == "POST" else None
        return await client.request(method, path, json=body)


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_the_owner_is_sent_to_where_a_tenant_is_served(
    world: ApiWorld, method: str, path: str
) -> None:
    answer = await ask(world, ELSEWHERE, OWNER, method, path, **OF_GLOBEX)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (421, "tenant_elsewhere")
    assert problem["url"] == URL
    assert f"--server {URL} --tenant globex" in problem["hint"]
    assert not await world.identities.has_tenant(GLOBEX)


async def test_another_tenant_is_served_as_before(world: ApiWorld) -> None:
    viewer = await make_caller(world, "viewer")
    for caller in (viewer, OWNER):
        answer = await ask(world, ELSEWHERE, caller, "GET", "/api/executions")
        assert answer.status_code == HTTPStatus.OK


async def test_a_key_learns_nothing_of_a_tenant_but_its_own(world: ApiWorld) -> None:
    viewer = await make_caller(world, "viewer", place=OTHER)
    answer = await ask(world, ELSEWHERE, viewer, "GET", "/api/executions", **OF_GLOBEX)
    assert (answer.status_code, answer.json()["code"]) == (403, "no_role")
    assert URL not in answer.text


async def test_nobody_learns_an_address(world: ApiWorld) -> None:
    for path in ("/api/executions", "/api/health", "/api/auth/config"):
        answer = await ask(world, ELSEWHERE, NOBODY, "GET", path, **OF_GLOBEX)
        assert URL not in answer.text


async def test_a_role_that_is_left_here_opens_nothing(world: ApiWorld) -> None:
    place = (GLOBEX, OWN[1])
    viewer = await make_caller(world, "admin", place=place)
    answer = await ask(world, ELSEWHERE, viewer, "GET", "/api/executions")
    assert (answer.status_code, answer.json()["code"]) == (421, "tenant_elsewhere")


async def test_no_quota_of_a_tenant_elsewhere_is_set(world: ApiWorld) -> None:
    app = make_guarded_app(world, served_tenants=ELSEWHERE)
    async with open_client(app, OWNER) as client:
        answers = [
            await client.patch("/api/quotas/globex", json={"running_max": 1}),
            await client.post("/api/tenants/globex/suspend", json={}),
            await client.get("/api/quotas", params={"tenant": "globex"}),
        ]
    assert [answer.status_code for answer in answers] == [421] * 3
    assert not await world.identities.has_tenant(GLOBEX)


async def test_an_installation_of_one_tenant_serves_no_other(world: ApiWorld) -> None:
    answer = await ask(world, ALONE, OWNER, "POST", "/api/execute", **OF_GLOBEX)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (421, "tenant_elsewhere")
    assert "url" not in problem
    answer = await ask(world, ALONE, OWNER, "GET", "/api/executions")
    assert answer.status_code == HTTPStatus.OK
    assert await world.identities.find_other_tenant(OWN[0]) is None


@pytest.mark.parametrize("served", [ELSEWHERE, ServedTenants(only=TENANT)])
def test_forged_facts_of_a_tenant_elsewhere_are_buried(
    tmp_path: Path, served: ServedTenants
) -> None:
    world = World(tmp_path, {}, served=served)
    execution_id = ExecutionId(str(world.adapters.snowflake.next_id()))
    batch = world.batch(execution_id, facts.ExecutionRequested(path="good"), tenant_id=GLOBEX)
    subject = subjects.build_ingest_subject(0, GLOBEX, batch.organization_id)
    world.send(codec.encode_json(batch), subject=subject)
    world.begin("good")
    world.run(world.planner.run_turn())
    (dead_letter,) = world.buried()
    assert dead_letter.reason.startswith("TenantNotServed: tenant 'globex'")
    assert not world.run(world.adapters.identities.has_tenant(GLOBEX))
    world.close()


async def test_a_planner_does_not_start_on_what_is_left_of_a_tenant(world: ApiWorld) -> None:
    await served_tenants.check_database(ELSEWHERE, world.identities)
    await world.identities.put_binding(
        RoleBinding(
            binding_id="7",
            tenant_id=GLOBEX,
            organization_id=OWN[1],
            subject_kind=SubjectKind.SERVICE_ACCOUNT,
            subject="ann",
            role="viewer",
        )
    )
    with pytest.raises(TenantKeptHere, match="begin under a new name at https://globex"):
        await served_tenants.check_database(ELSEWHERE, world.identities)


async def test_a_planner_of_one_tenant_does_not_start_on_the_database_of_others(
    world: ApiWorld,
) -> None:
    await world.quotas.put_quota(TenantQuota(tenant_id=OWN[0], running_max=1))
    await served_tenants.check_database(ALONE, world.identities)
    await world.quotas.put_quota(TenantQuota(tenant_id=GLOBEX, running_max=1))
    with pytest.raises(TenantKeptHere, match="tenant 'globex' is in it"):
        await served_tenants.check_database(ALONE, world.identities)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"TENANTS_ELSEWHERE": "globex"}, "names no tenant with its address"),
        ({"TENANTS_ELSEWHERE": "a.b=https://x.example.org"}, "names no tenant"),
        ({"TENANTS_ELSEWHERE": "globex=http://x.example.org"}, "neither https"),
        ({"TENANTS_ELSEWHERE": f"globex={URL},globex={URL}"}, "named twice"),
        ({"TENANTS_ELSEWHERE": f"globex={URL}", "TENANTS": "globex"}, "are served here"),
        ({"TENANTS_ELSEWHERE": f"globex={URL}", "TENANT_ID": "globex"}, "are served here"),
        ({"TENANTS_ELSEWHERE": f"globex={URL}", "ONLY_TENANT": "true"}, "leave"),
    ],
)
def test_a_setting_that_says_two_things_is_refused(
    tmp_path: Path, environ: dict[str, str], problem: str
) -> None:
    config = system.load_settings(
        {f"NOETL_PLANNER_{name}": text for name, text in environ.items()}, tmp_path
    )
    with pytest.raises(SettingsError, match=problem):
        parse_served_tenants(config.planner)


def test_the_settings_say_which_tenants_are_served(tmp_path: Path) -> None:
    config = system.load_settings({"NOETL_PLANNER_TENANTS_ELSEWHERE": f"globex={URL}/"}, tmp_path)
    assert parse_served_tenants(config.planner) == ELSEWHERE
    alone = {"NOETL_PLANNER_ONLY_TENANT": "true", "NOETL_PLANNER_TENANT_ID": OWN[0]}
    config = system.load_settings(alone, tmp_path)
    assert parse_served_tenants(config.planner) == ALONE
