"""One tenant uses no more of the installation than its quota, and nobody else pays for it."""

import asyncio
from http import HTTPStatus
from typing import Any

import pytest
from tests.security.access.test_folder_walls import send
from tests.support.api import ApiWorld
from tests.support.identities import OTHER, OWN, OWNER, Caller, make_caller, make_guarded_app
from tests.support.storage import NOON

from noetl_contracts.identity.quotas import RunningCount, StoredBytes, TenantQuota
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_planner.api.http.quota_board import QuotaBoard, QuotaExceededError
from noetl_planner.api.identity import quotas
from noetl_storage.memory.identities import MemoryQuotas

ONE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: one, path: one}
workflow: [{step: a, tool: {kind: noop}}]
"""
START = ("POST", "/api/execute", {"path": "one"})


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


async def bound(app: Any, tenant: str, **quota: float | None) -> None:
    status, answer = await send(app, OWNER, "PATCH", f"/api/quotas/{tenant}", quota)
    assert status == HTTPStatus.OK, answer
    assert answer["tenant"] == tenant


async def register(app: Any, *callers: Caller) -> None:
    for caller in callers:
        status, answer = await send(
            app, caller, "POST", "/api/catalog/register", {"path": "one", "content": ONE}
        )
        assert status < HTTPStatus.BAD_REQUEST, answer


async def test_a_tenant_has_no_more_executions_than_its_quota(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    ann = await make_caller(world, "admin", name="ann")
    await register(app, eve, ann)
    await bound(app, OTHER[0], running_max=2)
    answers = [await send(app, eve, *START) for _ in range(4)]
    assert [status for status, _ in answers] == [
        HTTPStatus.ACCEPTED,
        HTTPStatus.ACCEPTED,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.TOO_MANY_REQUESTS,
    ]
    refused = answers[-1][1]
    assert refused["code"] == "quota_exceeded"
    assert "its quota is 2" in refused["detail"]
    assert f"noetl tenant quota {OTHER[0]} --running" in refused["hint"]
    for _ in range(4):
        assert (await send(app, ann, *START))[0] == HTTPStatus.ACCEPTED
    await bound(app, OTHER[0], running_max=3)
    assert (await send(app, eve, *START))[0] == HTTPStatus.ACCEPTED


async def test_a_tenant_with_a_quota_of_none_begins_nothing(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    await register(app, eve)
    await bound(app, OTHER[0], running_max=0)
    assert (await send(app, eve, *START))[0] == HTTPStatus.TOO_MANY_REQUESTS
    await bound(app, OTHER[0], running_max=None)
    assert (await send(app, eve, *START))[0] == HTTPStatus.ACCEPTED


class SlowQuotas(MemoryQuotas):
    """Others begin while this one counts, as with a server."""

    async def count_running(self, *about: Any, **wanted: Any) -> RunningCount:
        running_count = await super().count_running(*about, **wanted)
        await asyncio.sleep(0.01)
        return running_count


async def test_starts_at_once_are_no_more_than_the_quota(world: ApiWorld) -> None:
    world.quotas = SlowQuotas(world.store)
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    await register(app, eve)
    await bound(app, OTHER[0], running_max=5)
    answers = await asyncio.gather(*(send(app, eve, *START) for _ in range(40)))
    assert [status for status, _ in answers].count(HTTPStatus.ACCEPTED) == 5


async def test_what_no_table_shows_yet_counts_all_the_same(world: ApiWorld) -> None:
    board = QuotaBoard(world.quotas)
    await world.quotas.put_quota(TenantQuota(tenant_id=OTHER[0], running_max=2))
    for number in ("1", "2"):
        async with board.admit_start(OTHER[0], ExecutionId(number)):
            pass
    # Nothing projects here: a count taken anew finds none of them.
    board._counts[OTHER[0]].running_until = 0.0
    with pytest.raises(QuotaExceededError):
        async with board.admit_start(OTHER[0], ExecutionId("3")):
            pass
    board.forget_start(OTHER[0], ExecutionId("2"))
    with pytest.raises(ConnectionError):
        async with board.admit_start(OTHER[0], ExecutionId("4")):
            raise ConnectionError
    async with board.admit_start(OTHER[0], ExecutionId("5")):
        pass


async def test_a_key_that_has_begun_an_execution_names_it_at_a_full_quota(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    await register(app, eve)
    await bound(app, OTHER[0], running_max=1)
    keyed = ("POST", "/api/execute", {"path": "one", "idempotency_key": "k"})
    _, first = await send(app, eve, *keyed)
    status, again = await send(app, eve, *keyed)
    assert (status, again["execution_id"]) == (HTTPStatus.ACCEPTED, first["execution_id"])
    assert again["deduplicated"] is True
    assert (await send(app, eve, *START))[0] == HTTPStatus.TOO_MANY_REQUESTS


async def test_a_tenant_that_has_stored_its_quota_begins_and_stores_nothing(
    world: ApiWorld,
) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    ann = await make_caller(world, "admin", name="ann")
    await register(app, eve, ann)
    large = ("POST", "/api/execute", {"path": "one", "workload": {"text": "x" * 100_000}})
    keyed = ("POST", "/api/execute", {"path": "one", "idempotency_key": "k"})
    _, first = await send(app, eve, *keyed)
    await bound(app, OTHER[0], stored_bytes_max=1000)
    # Nobody has counted yet: nothing is refused, and that is shown.
    assert (await send(app, eve, *START))[0] == HTTPStatus.ACCEPTED
    _, shown = await send(app, eve, "GET", "/api/quotas")
    assert shown["quotas"][0]["stored_bytes"] is None
    await world.quotas.put_stored(OTHER[0], StoredBytes(stored_bytes=1000, counted_at=NOON))
    await bound(app, OTHER[0], stored_bytes_max=1000)
    kept = len(world.payloads.bytes_by_key)
    for request in (START, large, ("POST", "/api/files/chunks", {"a": 1})):
        status, refused = await send(app, eve, *request)
        assert (status, refused["code"]) == (
            HTTPStatus.INSUFFICIENT_STORAGE,
            "storage_quota_exceeded",
        )
    assert "1,000 bytes" in refused["detail"]
    assert "counted at 2026-01-01 12:00 UTC" in refused["detail"]
    assert "its quota is 1,000" in refused["detail"]
    assert f"noetl tenant quota {OTHER[0]} --stored" in refused["hint"]
    assert len(world.payloads.bytes_by_key) == kept
    # What its key has begun is named; others go on.
    status, again = await send(app, eve, *keyed)
    assert (status, again["execution_id"]) == (HTTPStatus.ACCEPTED, first["execution_id"])
    assert (await send(app, ann, *large))[0] == HTTPStatus.ACCEPTED
    _, shown = await send(app, eve, "GET", "/api/quotas")
    assert (shown["quotas"][0]["stored_bytes_max"], shown["quotas"][0]["stored_bytes"]) == (
        1000,
        1000,
    )
    await bound(app, OTHER[0], stored_bytes_max=1001)
    assert (await send(app, eve, *large))[0] == HTTPStatus.ACCEPTED


async def test_a_bound_that_is_not_named_stays(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    await make_caller(world, "viewer", place=OTHER)
    await bound(app, OTHER[0], running_max=3)
    await bound(app, OTHER[0], calls_per_s=9.5)
    _, seen = await send(app, OWNER, "GET", "/api/quotas")
    assert seen["quotas"] == [
        {
            "tenant": OTHER[0],
            "running_max": 3,
            "calls_per_s": 9.5,
            "suspended": False,
            "running": 0,
            **dict.fromkeys(("stored_bytes_max", "stored_bytes", "counted_at")),
        }
    ]
    await bound(app, OTHER[0], running_max=None, calls_per_s=None)
    assert (await send(app, OWNER, "GET", "/api/quotas"))[1]["quotas"] == []


async def test_quotas_beyond_a_page_are_asked_for(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "QUOTAS_MAX", 2)
    app = make_guarded_app(world)
    for tenant in ("c", "a", "b"):
        await make_caller(world, "viewer", place=(TenantId(tenant), OTHER[1]))
        await bound(app, tenant, running_max=1)
    _, first = await send(app, OWNER, "GET", "/api/quotas")
    assert ([quota["tenant"] for quota in first["quotas"]], first["next_after"]) == (
        ["a", "b"],
        "b",
    )
    _, last = await send(app, OWNER, "GET", "/api/quotas?after=b")
    assert ([quota["tenant"] for quota in last["quotas"]], last["next_after"]) == (["c"], None)


async def test_all_callers_of_a_tenant_share_its_calls(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    flood = [await make_caller(world, "viewer", place=OTHER, name=f"e{n}") for n in range(3)]
    ann = await make_caller(world, "viewer", name="ann")
    await bound(app, OTHER[0], calls_per_s=1)
    answers = [await send(app, caller, "GET", "/api/catalog") for caller in flood * 2]
    assert [status for status, _ in answers].count(HTTPStatus.OK) == 2
    assert f"tenant {OTHER[0]} calls more often than 1 times" in answers[-1][1]["detail"]
    for _ in range(6):
        assert (await send(app, ann, "GET", "/api/catalog"))[0] == HTTPStatus.OK


async def test_no_tenant_raises_its_own_quota(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    eve = await make_caller(world, "admin", place=OTHER, name="eve")
    west = await make_caller(world, "admin", place=(OWN[0], OrganizationId("west")), name="wes")
    await bound(app, OTHER[0], running_max=1)
    await make_caller(world, "viewer", place=(TenantId("third"), OTHER[1]))
    await bound(app, "third", running_max=7)
    for caller, refusal in ((eve, HTTPStatus.FORBIDDEN), (west, HTTPStatus.NOT_FOUND)):
        status, answer = await send(
            app, caller, "PATCH", f"/api/quotas/{OTHER[0]}", {"running_max": 9}
        )
        assert status == refusal, answer
    _, seen = await send(app, eve, "GET", "/api/quotas")
    assert [quota["tenant"] for quota in seen["quotas"]] == [OTHER[0]]
    _, all_of_them = await send(app, OWNER, "GET", "/api/quotas")
    assert {quota["tenant"] for quota in all_of_them["quotas"]} == {OTHER[0], "third"}


@pytest.mark.parametrize("tenant", ["a.b", "a b", "*", "%00", "x" * 65])
async def test_a_name_that_no_tenant_has_is_refused(world: ApiWorld, tenant: str) -> None:
    status, _ = await send(
        make_guarded_app(world), OWNER, "PATCH", f"/api/quotas/{tenant}", {"running_max": 1}
    )
    assert status in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}


@pytest.mark.parametrize(
    "body", [{"running_max": -1}, {"calls_per_s": 0}, {"running": 1}, {"running_max": "many"}]
)
async def test_a_quota_that_makes_no_sense_is_refused(world: ApiWorld, body: Any) -> None:
    status, _ = await send(make_guarded_app(world), OWNER, "PATCH", "/api/quotas/other", body)
    assert status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}


async def test_who_changes_a_quota_is_recorded(world: ApiWorld) -> None:
    app = make_guarded_app(world)
    await make_caller(world, "viewer", place=OTHER)
    await bound(app, OTHER[0], running_max=5)
    _, log = await send(app, OWNER, "GET", "/api/audit?what=quota.changed")
    assert [(record["target"], record["details"]["running_max"]) for record in log["records"]] == [
        (f"tenant {OTHER[0]}", 5)
    ]
