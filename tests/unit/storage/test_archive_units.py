"""What is archived is read back as it was, and what was changed in it is found."""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from io import BytesIO

import pyarrow.parquet as pq
import pytest
from msgspec import structs
from tests.support.builders import History, a_cursor_loop, a_failed_run, stories

from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import archive_format, stored_event, upcasters
from noetl_contracts.ledger.archive_format import ArchiveManifest, ManifestUnit
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay import history_replay
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state
from noetl_storage.archive import parquet, units
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import PayloadCorrupt, PayloadMissing


def events_of(history: History) -> list[StoredEvent]:
    return [stored_event.to_stored_event(envelope) for envelope in history.envelopes]


FAILED = events_of(a_failed_run())
TENANT, ORGANIZATION = TenantId(FAILED[0].tenant_id), OrganizationId(FAILED[0].organization_id)
DRAINED = [
    structs.replace(item, execution_id=str(int(FAILED[0].execution_id) + 1))
    for item in events_of(a_cursor_loop())
]


def resealed(events: Iterable[StoredEvent]) -> list[StoredEvent]:
    before, done = codec.CHECKSUM_NONE, []
    for event in events:
        before = codec.chain_checksum(before, stored_event.encode_covered_fields(event))
        done.append(structs.replace(event, envelope_checksum=before))
    return done


BOTH = [*FAILED, *resealed(DRAINED)]


def a_unit() -> ManifestUnit:
    return ManifestUnit(
        manifest_id="77",
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        month=archive_format.find_start_month(ExecutionId(FAILED[0].execution_id)),
        planned_at=datetime(2026, 3, 1, tzinfo=UTC),
        fold_version=FOLD_VERSION,
        upcaster_digest=upcasters.digest_registry(),
    )


async def paged(events: Iterable[StoredEvent]) -> AsyncIterator[StoredEvent]:
    for event in events:
        yield event


async def written(store: MemoryPayloads, events: Iterable[StoredEvent] = BOTH) -> ArchiveManifest:
    return await units.write_unit(store, a_unit(), paged(events), part_events_max=10)


async def archived(
    store: MemoryPayloads,
    manifest: ArchiveManifest,
    execution: ExecutionId,
    *,
    after_version: int = 0,
) -> list[StoredEvent]:
    history = manifest.find_history(execution)
    stored_events: list[StoredEvent] = []
    for part in manifest.parts:
        if history is not None and part.number in history.parts:
            data = await units.read_part(store, manifest.unit, part)
            stored_events += parquet.decode(
                data, execution_id=execution, after_version=after_version
            )
    return stored_events


async def test_histories_come_back_as_they_were() -> None:
    store = MemoryPayloads()
    manifest = await written(store)
    assert await units.verify_unit(store, manifest) == manifest.events == len(BOTH)
    assert len(manifest.parts) > 1
    for whole in (FAILED, BOTH[len(FAILED) :]):
        execution = ExecutionId(whole[0].execution_id)
        assert await archived(store, manifest, execution) == whole
        assert await archived(store, manifest, execution, after_version=4) == whole[4:]
        history = manifest.find_history(execution)
        assert history is not None
        assert (history.event_count, history.checksum) == (len(whole), whole[-1].envelope_checksum)
    assert await archived(store, manifest, ExecutionId("5")) == []


@pytest.mark.parametrize(
    ("name", "history"), list(stories()), ids=lambda one: one if isinstance(one, str) else ""
)
async def test_every_story_folds_to_the_same_checksums(name: str, history: History) -> None:
    def report(envelopes: Iterable[StoredEvent]) -> object:
        first = history.envelopes[0]
        replay = HistoryReplay(
            build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
        )
        replay.feed_events(stored_event.read_envelope(envelope) for envelope in envelopes)
        return history_replay.build_replay_report(replay)

    whole = events_of(history)
    assert report(parquet.decode(parquet.encode(whole))) == report(whole), name


async def test_a_second_attempt_finds_what_the_first_one_wrote() -> None:
    store = MemoryPayloads()
    assert await units.find_manifest(store, a_unit()) is None
    first = parquet.encode(BOTH[:10])
    await store.put_named(
        archive_format.build_part_name(a_unit(), 0),
        first,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
    )
    manifest = await written(store)
    assert await written(store) == manifest == await units.find_manifest(store, a_unit())
    with pytest.raises(PayloadCorrupt, match="holds other events"):
        await written(store, FAILED[:3])


async def test_part_of_a_history_follows_what_came_before() -> None:
    store = MemoryPayloads()
    execution = ExecutionId(FAILED[0].execution_id)
    manifest = await units.write_unit(
        store,
        a_unit(),
        paged(FAILED[3:]),
        previous={execution: FAILED[2].envelope_checksum},
    )
    assert await units.verify_unit(store, manifest) == len(FAILED) - 3
    history = manifest.find_history(execution)
    assert history is not None
    assert (history.first_version, history.last_version) == (4, len(FAILED))


Damaging = Callable[[ArchiveManifest], ArchiveManifest]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: structs.replace(m, parts=m.parts[1:]), "where the manifest names|sealed behind"),
        (lambda m: structs.replace(m, parts=m.parts[:-1]), "ends at version"),
        (lambda m: structs.replace(m, histories=m.histories[:1]), "names none"),
        (lambda m: structs.replace(m, histories=m.histories[1:]), "where the manifest names"),
        (lambda m: structs.replace(m, parts=m.parts[:2], histories=m.histories), "ends at|no part"),
    ],
)
async def test_a_manifest_that_says_something_else_is_found(damage: Damaging, message: str) -> None:
    store = MemoryPayloads()
    with pytest.raises(PayloadCorrupt, match=message):
        await units.verify_unit(store, damage(await written(store)))


async def test_a_part_that_was_changed_or_lost_is_named() -> None:
    store = MemoryPayloads()
    manifest = await written(store)
    lost = structs.replace(manifest.parts[0], name="archive/v1/elsewhere.parquet")
    with pytest.raises(PayloadMissing, match="elsewhere"):
        await units.read_part(store, manifest.unit, lost)
    other = structs.replace(manifest.parts[0], sha256="0" * 64)
    with pytest.raises(PayloadCorrupt, match="its digest is another"):
        await units.read_part(store, manifest.unit, other)
    with pytest.raises(MalformedMessage, match="no part of an archive"):
        list(parquet.decode(b"PAR1 no more"))
    with pytest.raises(MalformedMessage, match=r"this release reads noetl\.archive 1"):
        archive_format.decode_manifest(
            codec.encode_json(structs.replace(manifest, format_version=2))
        )


async def test_a_sealed_store_gives_back_what_was_archived() -> None:
    key = f"one:{b64encode(b'k' * 32).decode()}"
    store = MemoryPayloads(seals=read_payload_keys(key, file=""))
    manifest = await written(store)
    assert await units.verify_unit(store, manifest) == len(BOTH)
    execution = ExecutionId(FAILED[0].execution_id)
    assert await archived(store, manifest, execution) == FAILED


async def test_columns_say_what_an_auditor_asks_for() -> None:
    table = pq.read_table(BytesIO(parquet.encode(BOTH))).to_pylist()
    assert [row["stream_version"] for row in table[: len(FAILED)]] == [
        item.stream_version for item in FAILED
    ]
    assert {row["error_kind"] for row in table} - {None}
    assert {row["worker_id"] for row in table} - {None}
    assert {row["row_count"] for row in table} - {None}
    assert {row["path"] for row in table} - {None}
    assert all(row["event_type"] and row["checksum"] for row in table)


def test_a_month_is_that_of_the_start() -> None:
    began = int(
        (
            datetime(2026, 2, 28, 23, 59, tzinfo=UTC) - datetime(2024, 1, 1, tzinfo=UTC)
        ).total_seconds()
        * 1000
    )
    assert archive_format.find_start_month(ExecutionId(str(began << 22))) == "2026-02"
    assert archive_format.find_start_month(ExecutionId(str((began + 60_000) << 22))) == "2026-03"
