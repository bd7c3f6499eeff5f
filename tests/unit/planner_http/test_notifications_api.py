"""Rules of notifications over HTTP: kept, refused, tested, removed, recorded."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld

from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested

Api = AsyncTestClient[Litestar]
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: mail, path: ops/mail}
workload: {notification: {}}
workflow: [{step: a, tool: {kind: noop}}]
"""
RULE: dict[str, Any] = {"pattern": "demo/*", "causes": ["failed"], "playbook": "ops/mail"}
LOUD: dict[str, Any] = {"quiet": None, "urgent": []}
NIGHT = {"from": "22:00", "to": "07:00", "zone": "Europe/Berlin", "days": ["fri"]}
ADDRESS = "/api/notifications/ops"


@pytest.fixture
async def mail(api: Api) -> Api:
    answer = await api.post(
        "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
    )
    assert answer.is_success, answer.text
    return api


async def test_a_rule_is_kept_listed_and_removed(mail: Api) -> None:
    kept = await mail.put(ADDRESS, json=RULE)
    assert kept.is_success, kept.text
    listed = (await mail.get("/api/notifications")).json()["rules"]
    assert (
        listed
        == [kept.json()]
        == [{"name": "ops", "longer_than_s": 0.0, "suspended": None, "tests": [], **RULE, **LOUD}]
    )
    assert (await mail.delete(ADDRESS)).json() == {"name": "ops", "removed": True}
    assert (await mail.delete(ADDRESS)).status_code == 404
    assert (await mail.get("/api/notifications/log")).json() == {"notifications": []}
    records = (await mail.get("/api/audit?what=notification")).json()["records"]
    assert [record["action"] for record in records] == [
        "notification.written",
        "notification.removed",
    ]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"pattern": "a*b"}, 400, "pattern"),
        ({"pattern": "/*"}, 400, "pattern"),
        ({"pattern": ""}, 400, "pattern"),
        ({"causes": []}, 400, "causes"),
        ({"causes": ["lost"]}, 400, "causes"),
        ({"playbook": "ops/none"}, 404, "ops/none"),
        ({"longer_than_s": -1}, 400, "longer_than_s"),
        ({"to": "me"}, 400, "to"),
        ({"urgent": ["lost"]}, 400, "urgent"),
        ({"quiet": {**NIGHT, "from": "25:00"}}, 400, "quiet.from"),
        ({"quiet": {**NIGHT, "days": ["friday"]}}, 400, "quiet.days"),
        ({"quiet": {**NIGHT, "zone": "Mars"}}, 400, "quiet.zone"),
        ({"quiet": {**NIGHT, "until": "07:00"}}, 400, "until"),
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused(
    mail: Api, change: dict[str, Any], status: int, says: str
) -> None:
    answer = await mail.put(ADDRESS, json={**RULE, **change})
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert (await mail.get("/api/notifications")).json() == {"rules": []}


async def test_quiet_hours_of_a_rule_are_kept(mail: Api) -> None:
    rule = {**RULE, "quiet": NIGHT, "urgent": ["failed"]}
    assert (await mail.put(ADDRESS, json=rule)).is_success
    (listed,) = (await mail.get("/api/notifications")).json()["rules"]
    assert (listed["quiet"], listed["urgent"]) == (NIGHT, ["failed"])


async def test_a_test_starts_the_playbook_with_a_sample(mail: Api, world: ApiWorld) -> None:
    await mail.put(ADDRESS, json=RULE)
    begun = await mail.post(f"{ADDRESS}/test", json={})
    assert begun.status_code == 202, begun.text
    (stored,) = world.store.request_by_id.values()
    (fact,) = facts.decode_fact_batch(stored.request.data).facts
    assert isinstance(fact, ExecutionRequested)
    assert fact.workload["notification"]["error"] == "This is a test."
    assert (await mail.post("/api/notifications/none/test", json={})).status_code == 404


async def test_the_latest_tests_of_a_rule_are_shown_with_who_sent_them(
    mail: Api, world: ApiWorld
) -> None:
    await mail.put(ADDRESS, json=RULE)
    begun = [(await mail.post(f"{ADDRESS}/test", json={})).json() for _ in range(6)]
    (rule,) = (await mail.get("/api/notifications")).json()["rules"]
    started = [test["execution_id"] for test in rule["tests"]]
    assert started == [item["execution_id"] for item in begun[:0:-1]]
    assert {test["status"] for test in rule["tests"]} == {None}, "no table shows them yet"
    (record, *_) = (await mail.get("/api/audit?what=notification.tested")).json()["records"]
    assert record["details"] == {"execution_id": begun[0]["execution_id"]}
    assert {test["actor"] for test in rule["tests"]} == {record["actor"]["name"]}
    await mail.delete(ADDRESS)
    await mail.put(ADDRESS, json=RULE)
    (rule,) = (await mail.get("/api/notifications")).json()["rules"]
    assert rule["tests"] == [], "those were tests of a rule that was removed"
