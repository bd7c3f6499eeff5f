"""Holds and policies over HTTP, and histories that have left the ledger."""

from datetime import UTC, datetime
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import ORGANIZATION, TENANT, an_execution
from tests.unit.planner_http.test_reruns import asked, failed

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import archive_format, stored_event, upcasters
from noetl_contracts.ledger.archive_format import ManifestUnit
from noetl_planner.api.app import create_app
from noetl_replay.fold import FOLD_VERSION
from noetl_storage.archive import units
from noetl_storage.archive.archive_reader import ArchivedAudit, ArchivedLedger, ArchiveReader
from noetl_storage.memory.ledger import MemoryLedgerAudit
from noetl_storage.ports.retention_ports import (
    ArchivedSpan,
    ArchiveUnit,
    RetentionAction,
    UnitStatus,
    VersionSpan,
)

Api = AsyncTestClient[Litestar]
PLACE = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
LATER = datetime(2026, 3, 1, tzinfo=UTC)


async def a_run(world: ApiWorld) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    await world.project(execution_id)
    return execution_id


async def test_a_hold_is_placed_listed_and_released(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    body = {**PLACE, "execution_id": execution_id, "reason": "case 7", "who": "ann"}
    first = await api.post("/api/retention/holds", json=body)
    again = await api.post("/api/retention/holds", json={**body, "who": "bob"})
    assert (first.status_code, again.json()) == (200, first.json())
    [held] = (await api.get("/api/retention/holds", params=PLACE)).json()["holds"]
    assert (held["execution_id"], held["reason"], held["held_by"]) == (
        execution_id,
        "case 7",
        "ann",
    )
    ended = await api.post("/api/retention/holds/release", json={**body, "reason": "closed"})
    assert ended.json() == first.json()
    assert (await api.get("/api/retention/holds", params=PLACE)).json()["holds"] == []
    [kept] = (await api.get("/api/retention/holds", params={**PLACE, "released": "true"})).json()[
        "holds"
    ]
    assert kept["release_reason"] == "closed"
    missing = await api.post("/api/retention/holds/release", json=body)
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_a_policy_is_set_and_shown(api: Api) -> None:
    assert (await api.get("/api/retention/policy", params=PLACE)).json() == {"policy": None}
    body = {**PLACE, "keep_days": 30, "action": "archive", "who": "ann"}
    set_to = await api.put("/api/retention/policy", json=body)
    assert set_to.json()["policy"]["keep_days"] == 30
    assert (await api.get("/api/retention/policy", params=PLACE)).json() == set_to.json()
    assert (await api.get("/api/retention/units", params=PLACE)).json() == {"units": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "burn"},
        {"keep_days": -1},
        {"who": ""},
        {"unknown": 1},
        {"tenant_id": "another"},
    ],
)
async def test_a_wrong_policy_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    body = {**PLACE, "keep_days": 30, "action": "archive", "who": "ann", **wrong}
    answer = await api.put("/api/retention/policy", json=body)
    assert answer.status_code in {400, 404}
    assert answer.json()["detail"]


async def test_a_hold_names_something(api: Api) -> None:
    body = {**PLACE, "execution_id": "12", "reason": "case 7", "who": "ann"}
    answer = await api.post("/api/retention/holds", json=body)
    assert (answer.status_code, "no history" in answer.json()["detail"]) == (404, True)


class OneUnit:
    """Says that a history has left for one unit."""

    def __init__(self, unit: ManifestUnit, span: VersionSpan, action: RetentionAction) -> None:
        self._archived = ArchivedSpan(
            span=span,
            unit=ArchiveUnit(
                manifest_id=unit.manifest_id,
                tenant_id=unit.tenant_id,
                organization_id=unit.organization_id,
                month=unit.month,
                action=action,
                status=UnitStatus.DROPPED,
                partition_name="event_default",
                histories=1,
                events=span.event_count,
                fold_version=unit.fold_version,
                upcaster_digest=unit.upcaster_digest,
                planned_at=unit.planned_at,
                dropped_at=LATER,
            ),
        )

    async def find_archived(self, execution_id: ExecutionId) -> list[ArchivedSpan]:
        return [self._archived] if execution_id == self._archived.span.execution_id else []


async def leave(world: ApiWorld, execution_id: ExecutionId, action: RetentionAction) -> Litestar:
    """Take a history out of the ledger, and serve what is left of it."""
    history = world.store.history_by_execution[execution_id]
    unit = ManifestUnit(
        manifest_id="7",
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        month=archive_format.find_start_month(execution_id),
        planned_at=LATER,
        fold_version=FOLD_VERSION,
        upcaster_digest=upcasters.digest_registry(),
    )

    async def events() -> Any:
        for item in history:
            yield stored_event.to_stored_event(item)

    await units.write_unit(world.payloads, unit, events())
    span = VersionSpan(
        execution_id=execution_id,
        first_version=1,
        last_version=len(history),
        previous="",
        checksum=history[-1].envelope_checksum,
        left_at=LATER,
    )
    world.store.history_by_execution[execution_id] = []
    archive = ArchiveReader(OneUnit(unit, span, action), world.payloads)
    return create_app(
        world.services(
            ledger=ArchivedLedger(world.ledger, world.ledger, archive),
            audit=ArchivedAudit(MemoryLedgerAudit(world.store), archive),
        )
    )


async def answers(api: Api, execution_id: ExecutionId) -> list[Any]:
    params = {"execution_id": execution_id, **PLACE}
    asked = [
        (f"/api/executions/{execution_id}", {}),
        (f"/api/executions/{execution_id}/events", {}),
        (f"/api/executions/{execution_id}/trace/start", {}),
        (f"/api/audit/executions/{execution_id}", PLACE),
        ("/api/replay/state", params),
        ("/api/replay/state", {**params, "as_of_position": 2}),
        ("/api/replay/diff", {**params, "before": 1}),
        ("/api/replay/events", params),
        ("/api/replay/density", params),
    ]
    return [
        (answer.status_code, answer.json())
        for path, query in asked
        if (answer := await api.get(path, params=query))
    ]


async def test_a_history_that_was_archived_answers_as_before(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    before = await answers(api, execution_id)
    app = await leave(world, execution_id, RetentionAction.ARCHIVE)
    async with AsyncTestClient(app) as client:
        assert await answers(client, execution_id) == before
    assert {status for status, _ in before} <= {200, 404}
    assert before[3][1]["is_whole"]


async def test_a_history_that_was_dropped_says_so(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    head = await world.ledger.find_head(execution_id)
    assert head is not None
    app = await leave(world, execution_id, RetentionAction.DROP)
    async with AsyncTestClient(app) as client:
        shown = await client.get(f"/api/executions/{execution_id}")
        answer = await client.get(
            "/api/replay/state", params={"execution_id": execution_id, **PLACE}
        )
        verdict = await client.get(f"/api/audit/executions/{execution_id}", params=PLACE)
        other = {**PLACE, "version": head.version, "checksum": "0" * 64}
        forged = await client.get(f"/api/audit/executions/{execution_id}", params=other)
    assert (shown.status_code, shown.json()["events"]) == (200, [])
    assert "removed by the retention policy" in shown.json()["dropped"]
    assert (answer.status_code, answer.json()["code"]) == (410, "history_dropped")
    assert verdict.json()["checksum"] == head.checksum
    assert "removed by the retention policy" in verdict.json()["dropped"]
    assert forged.json()["findings"][0]["damage"] == "head"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("fork", {"as_of_position": 5}),
        ("fork", {"as_of_position": 9, "from_step": "merge"}),
        ("rerun", {}),
        ("rerun", {"from_step": "merge"}),
    ],
)
async def test_an_archived_execution_is_forked_and_rerun_as_before(
    api: Api, world: ApiWorld, path: str, body: dict[str, Any]
) -> None:
    known = await failed(api, world)
    where = f"/api/executions/{known}/{path}"
    assert (await api.post(where, json=body)).status_code == 202
    before = asked(world)
    world.store.message_by_id.clear()
    app = await leave(world, known, RetentionAction.ARCHIVE)
    async with AsyncTestClient(app) as client:
        answer = await client.post(where, json=body)
    assert answer.status_code == 202, answer.text
    after = asked(world)
    assert (after.rerun, after.workload) == (before.rerun, before.workload)
    assert after.rerun is not None
