"""Who administers the installation suspends a tenant: nothing new begins until it resumes."""

from http import HTTPStatus
from typing import Any

import pytest
from tests.security.access.test_folder_walls import send
from tests.security.access.test_tenant_quotas import START, bound, register
from tests.support.api import ApiWorld
from tests.support.identities import OTHER, OWNER, make_caller, make_guarded_app

from noetl_contracts.ids import OrganizationId, TenantId

TENANT = OTHER[0]


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def switch(app: Any, verb: str) -> None:
    status, answer = await send(app, OWNER, "POST", f"/api/tenants/{TENANT}/{verb}", {})
    assert status == HTTPStatus.OK, answer
    assert answer == {"tenant": TENANT, "suspended": verb == "suspend"}


async def test_nothing_of_a_suspended_tenant_begins_until_it_resumes(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    ann = await make_caller(world, "admin", name="ann")
    await register(app, eve, ann)
    await switch(app, "suspend")
    status, answer = await send(app, eve, *START)
    assert (status, answer["code"]) == (HTTPStatus.FORBIDDEN, "tenant_suspended")
    assert f"noetl tenant resume {TENANT}" in answer["hint"]
    assert (await send(app, ann, *START))[0] == HTTPStatus.ACCEPTED
    # What is there is seen, and what runs is steered.
    assert (await send(app, eve, "GET", "/api/executions"))[0] == HTTPStatus.OK
    await switch(app, "resume")
    assert (await send(app, eve, *START))[0] == HTTPStatus.ACCEPTED


async def test_a_schedule_of_a_suspended_tenant_is_not_run_by_hand(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    await register(app, eve)
    schedule = {"name": "hourly", "path": "one", "cron": "0 * * * *"}
    status, answer = await send(app, eve, "POST", "/api/schedules", schedule)
    assert status < HTTPStatus.BAD_REQUEST, answer
    await switch(app, "suspend")
    _, answer = await send(app, eve, "POST", "/api/schedules/hourly/run", {})
    assert answer["code"] == "tenant_suspended"


async def test_what_a_key_has_begun_before_is_named_all_the_same(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    await register(app, eve)
    start = ("POST", "/api/execute", {"path": "one", "idempotency_key": "once"})
    _, begun = await send(app, eve, *start)
    await switch(app, "suspend")
    _, again = await send(app, eve, *start)
    assert again["execution_id"] == begun["execution_id"]


async def test_bounds_and_suspension_leave_one_another_alone(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    await make_caller(world, "viewer", place=OTHER)
    await bound(app, TENANT, running_max=3)
    await switch(app, "suspend")
    await bound(app, TENANT, running_max=None, calls_per_s=2)
    _, seen = await send(app, OWNER, "GET", "/api/quotas")
    (quota,) = seen["quotas"]
    assert (quota["running_max"], quota["calls_per_s"], quota["suspended"]) == (None, 2, True)
    await switch(app, "resume")
    _, seen = await send(app, OWNER, "GET", "/api/quotas")
    assert [(quota["calls_per_s"], quota["suspended"]) for quota in seen["quotas"]] == [(2, False)]


async def test_only_who_administers_the_installation_may(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    third = await make_caller(world, "admin", place=(TENANT, OrganizationId("third")), name="wes")
    stranger = await make_caller(world, "admin", place=(TenantId("stranger"), OTHER[1]), name="sam")
    for verb in ("suspend", "resume"):
        path = f"/api/tenants/{TENANT}/{verb}"
        for caller in (eve, third):
            status, answer = await send(app, caller, "POST", path, {})
            assert (status, answer["code"]) == (HTTPStatus.FORBIDDEN, "forbidden")
        assert (await send(app, stranger, "POST", path, {}))[0] == HTTPStatus.NOT_FOUND
    status, answer = await send(app, OWNER, "POST", "/api/tenants/nobody/suspend", {})
    assert (status, answer["code"]) == (HTTPStatus.NOT_FOUND, "no_tenant")


async def test_both_are_recorded_with_who_did_it(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    await make_caller(world, "viewer", place=OTHER)
    await switch(app, "suspend")
    await switch(app, "resume")
    _, log = await send(app, OWNER, "GET", "/api/audit?what=tenant")
    assert [
        (record["action"], record["target"], record["actor"]["name"]) for record in log["records"]
    ] == [
        ("tenant.suspended", f"tenant {TENANT}", "owner"),
        ("tenant.resumed", f"tenant {TENANT}", "owner"),
    ]
