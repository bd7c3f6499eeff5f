"""`noetl.event_envelope` says of each event what the API says."""

from typing import Any

import asyncpg
from tests.support.builders import ORGANIZATION, STORIES, TENANT, History
from tests.support.storage import (
    a_fence,
    an_append,
    an_execution,
    make_reader,
    migrated,
    postgres_stores,
    sealed,
)

from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger.records import StreamAppend
from noetl_storage.ports import history_ports
from noetl_storage.ports.history_ports import ShownEvent

ODD = [
    "",
    ".",
    "a/b",
    "planner/p",
    "workerless",
    "noetl://x/y",
    "node/n7/worker/w",
    "é ü%",
    "a\x01b",
]
SHOWN = "select * from noetl.event_envelope where execution_id = $1 order by stream_version"


async def shown(database: str, execution_id: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(database)
    try:
        records: list[asyncpg.Record] = await connection.fetch(SHOWN, int(execution_id))
    finally:
        await connection.close()
    return records


def said(event: ShownEvent) -> dict[str, Any]:
    return {
        name: getattr(event, name)
        for name in (
            *("tenant_id", "organization_id", "stream_id", "aggregate_id", "aggregate_type"),
            *("event_type", "schema_name", "event_time", "ingest_time", "producer"),
            *("causation_id", "correlation_id", "idempotency_key", "payload_ref", "meta"),
        )
    }


def plain(record: asyncpg.Record, names: dict[str, Any]) -> dict[str, Any]:
    records = {name: record[name] for name in names}
    for name in ("payload_ref", "meta"):
        records[name] = None if records[name] is None else codec.decode_json(records[name])
    return records


async def test_every_kind_of_event_is_shown_alike(database: str) -> None:
    async with migrated(database) as opened:
        stores = postgres_stores(opened)
        fence = await a_fence(stores)
        references = 0
        for story in STORIES.values():
            history = History(an_execution())
            history.add(*(envelope.event for envelope in story().envelopes))
            await stores.ledger.append(an_append(fence, history.stream()))
            events = await stores.ledger_reader.read_events(history.execution_id)
            records = await shown(database, history.execution_id)
            for event, record in zip(
                map(history_ports.build_shown_event, events), records, strict=True
            ):
                assert plain(record, said(event)) == said(event)
                references += event.payload_ref is not None
        assert references > 0


async def test_producers_of_every_release_are_located_alike(database: str) -> None:
    execution = an_execution()
    owner = TenantId("t 1/é"), OrganizationId("o.2")
    event = next(iter(STORIES.values()))().envelopes[0].event
    envelopes = []
    checksum = codec.CHECKSUM_NONE
    for after, producer in enumerate(ODD):
        (item,) = sealed(
            execution,
            [event],
            after=after,
            checksum=checksum,
            producer=producer,
            tenant_id=owner[0],
            organization_id=owner[1],
        )
        envelopes.append(item)
        checksum = item.envelope_checksum
    stream = StreamAppend(
        execution_id=execution,
        tenant_id=owner[0],
        organization_id=owner[1],
        expected_version=0,
        envelopes=envelopes,
    )
    async with migrated(database) as opened:
        stores = postgres_stores(opened)
        await stores.ledger.append(an_append(await a_fence(stores), stream))
    records = await shown(database, execution)
    assert [record["producer"] for record in records] == [
        history_ports.build_shown_event(envelope).producer for envelope in envelopes
    ]


async def test_a_reader_sees_the_envelopes_of_its_tenant_alone(database: str) -> None:
    async with migrated(database) as opened:
        stores = postgres_stores(opened)
        history = next(iter(STORIES.values()))()
        await stores.ledger.append(an_append(await a_fence(stores), history.stream()))
    assert history.envelopes[0].organization_id == ORGANIZATION
    connection = await asyncpg.connect(database)
    try:
        counts = {}
        for tenant in (TENANT, "another"):
            await connection.execute(f"set role {await make_reader(database, tenant)}")
            counts[tenant] = await connection.fetchval("select count(*) from noetl.event_envelope")
    finally:
        await connection.close()
    assert counts == {TENANT: len(history.envelopes), "another": 0}
