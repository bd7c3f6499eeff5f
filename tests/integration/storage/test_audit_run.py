"""An audit of many executions finds the same, and all of it, here and on Spark."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from msgspec import Struct
from tests.support.builders import ORGANIZATION, STORIES, TENANT, History
from tests.support.servers import PostgresServer
from tests.support.storage import a_fence, an_append, migrated, postgres_stores

from noetl_cli.audit import audit_sources, engines, report, shares
from noetl_cli.audit.engines import SparkTarget
from noetl_cli.audit.shares import AuditShare
from noetl_cli.settings import AuditAccess
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import archive_format, stored_event, upcasters
from noetl_contracts.ledger.archive_format import ManifestUnit
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay.audit.history_audit import AuditResult
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state
from noetl_storage.archive import units
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.postgres.database import Database

WHOLE = AuditShare(tenant_id=TENANT, organization_id=ORGANIZATION, audits=[])
DAMAGE = {
    "changed": "update noetl.event set producer = 'x' where stream_version = 2 and",
    "removed": "delete from noetl.event where stream_version = 3 and",
    "projection": "update noetl.execution set path = 'x' where",
    "unreadable": "update noetl.event set exact = '{' where stream_version = 2 and",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Site(Struct, frozen=True, kw_only=True):
    """A ledger and an archive with whole histories and some that are not."""

    access: AuditAccess
    damaged: dict[str, str]
    archived: list[str]
    folder: Path


def histories() -> list[History]:
    """Every story under an identity of its own."""
    found = []
    for place, make in enumerate(STORIES.values()):
        told = make()
        twin = History(ExecutionId(str(int(told.execution_id) + (place << 22))))
        twin.add(*(envelope.event for envelope in told.envelopes))
        found.append(twin)
    return found


async def project(stores: Any, history: History) -> None:
    replay = HistoryReplay(build_empty_state(history.execution_id, TENANT, ORGANIZATION))
    replay.feed_events(history.envelopes)
    rows = {surface: list(kept.values()) for surface, kept in replay.surfaces.items()}
    await stores.rebuilds.replace_rows(
        shard=0, execution_id=history.execution_id, rows=rows, version=len(history.envelopes)
    )


async def archive(url: str, whole: list[History]) -> None:
    async def events() -> AsyncIterator[StoredEvent]:
        for history in whole:
            for envelope in history.envelopes:
                yield stored_event.to_stored_event(envelope)

    unit = ManifestUnit(
        manifest_id="7",
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        month=archive_format.find_start_month(whole[0].execution_id),
        planned_at=whole[0].envelopes[0].event_time,
        fold_version=FOLD_VERSION,
        upcaster_digest=upcasters.digest_registry(),
    )
    async with open_payloads(url) as store:
        await units.write_unit(store, unit, events(), part_events_max=20)


async def spoil(database: Database, execution_id: ExecutionId, statement: str) -> None:
    async with database.open_transaction() as transaction:
        await transaction.execute_statement("set local session_replication_role = replica")
        await transaction.execute_statement(f"{statement} execution_id = $1", int(execution_id))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "store").mkdir()
    url = f"file://{folder}/store"
    dsn = await postgres.create_database("audit_run")
    told = histories()
    gone, cut, *rest = told
    async with migrated(dsn) as database:
        stores = postgres_stores(database)
        fence = await a_fence(stores)
        for history in (cut, *rest):
            await stores.ledger.append(an_append(fence, history.stream()))
            await project(stores, history)
        # The one has left the ledger as a whole, of the other only its beginning.
        await archive(url, [gone, cut])
        await spoil(
            database,
            cut.execution_id,
            "delete from noetl.event where stream_version < 5 and",
        )
        damaged = {kind: history.execution_id for kind, history in zip(DAMAGE, rest, strict=False)}
        for kind, execution_id in damaged.items():
            await spoil(database, execution_id, DAMAGE[kind])
    return Site(
        access=AuditAccess(dsn=dsn, payload_url=url),
        damaged=dict(damaged),
        archived=[gone.execution_id, cut.execution_id],
        folder=folder,
    )


async def planned(site: Site) -> list[shares.ExecutionAudit]:
    async with audit_sources.open_sources(site.access) as sources:
        assert sources.audit is not None
        heads = await sources.audit.list_histories(
            tenant_id=TENANT, organization_id=ORGANIZATION, heads_max=1000
        )
        return shares.plan_audits(heads, await audit_sources.list_manifests(sources, WHOLE))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(site: Site) -> list[AuditResult]:
    cut = shares.split_shares(await planned(site), WHOLE, processes=1)
    return await engines.audit_locally(site.access, cut, lambda _: None)


async def test_each_damage_is_named_and_nothing_else(site: Site, here: list[AuditResult]) -> None:
    assert [item.execution_id for item in here] == sorted(
        (item.execution_id for item in histories()), key=int
    )
    bad = {item.execution_id: item for item in here if not item.is_ok}
    assert bad.keys() == set(site.damaged.values())
    for kind, execution_id in site.damaged.items():
        assert any(said.startswith(kind) for said in bad[execution_id].damage), bad[execution_id]
    by_id = {item.execution_id: item for item in here}
    assert [by_id[key].source for key in site.archived] == ["archive", "archive+ledger"]
    assert [str(by_id[key].projected) for key in site.archived] == ["absent", "same"]


@pytest.mark.timeout(400)
async def test_spark_finds_the_same(site: Site, here: list[AuditResult]) -> None:
    environ = dict(os.environ)
    audits = await planned(site)
    spark = await engines.audit_on_spark(
        SparkTarget(master="local[2]", folder=site.folder / "spark", memory_bytes=512 * 1024**2),
        site.access,
        lambda processes: shares.split_shares(audits, WHOLE, processes=processes),
        lambda _: None,
    )
    os.environ.clear()
    os.environ.update(environ)
    assert sorted(spark, key=lambda one: int(one.execution_id)) == here


async def test_a_report_says_the_same_in_parquet_and_json(
    site: Site, here: list[AuditResult]
) -> None:
    summary = report.summarize_audit(here, engine="local", seconds=2.0)
    assert (summary.executions, summary.damaged) == (len(here), len(DAMAGE))
    assert summary.events_per_s == summary.events / 2
    table, plain = site.folder / "report.parquet", site.folder / "report.json"
    report.write_report(table, summary, here)
    report.write_report(plain, summary, here)
    decoded = codec.decode_json(plain.read_bytes())
    assert pq.read_table(table).to_pylist() == decoded["executions"]
    told = "\n".join(report.report_lines(summary, here))
    assert all(execution_id in told for execution_id in site.damaged.values())


async def test_an_archive_alone_can_be_audited(site: Site) -> None:
    access = AuditAccess(payload_url=site.access.payload_url)
    async with audit_sources.open_sources(access) as sources:
        audits = shares.plan_audits([], await audit_sources.list_manifests(sources, WHOLE))
    cut = shares.split_shares(audits, WHOLE, processes=1)
    found = await engines.audit_locally(access, cut, lambda _: None)
    assert [(item.execution_id, item.is_ok, item.source) for item in found] == [
        (key, True, "archive") for key in site.archived
    ]


async def test_a_part_that_was_changed_is_named(site: Site) -> None:
    store = site.folder / "store"
    (part,) = [item for item in store.rglob("*-0.parquet*") if item.is_file()]
    kept = part.read_bytes()
    part.chmod(0o600)
    part.write_bytes(kept[:-1])
    try:
        access = AuditAccess(payload_url=site.access.payload_url)
        async with audit_sources.open_sources(access) as sources:
            audits = shares.plan_audits([], await audit_sources.list_manifests(sources, WHOLE))
        cut = shares.split_shares(audits, WHOLE, processes=1)
        found = await engines.audit_locally(access, cut, lambda _: None)
    finally:
        part.write_bytes(kept)
    assert all(item.damage[0].startswith("archive: ") for item in found if not item.is_ok)
    assert not found[0].is_ok
