"""What is archived is read back as it was, and what was changed in it is found."""

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from io import BytesIO

import pyarrow.parquet as pq
import pytest
from msgspec import structs
from tests.support.builders import History, a_cursor_loop, a_failed_run, stories

from noetl_contracts import archives, codec, stored, upcast
from noetl_contracts.archives import Manifest, Unit
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.stored import StoredEvent
from noetl_replay import replaying
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.replaying import Replay
from noetl_replay.state import empty
from noetl_storage.archive import checking, parquet, units
from noetl_storage.errors import PayloadCorrupt, PayloadMissing
from noetl_storage.payloads.memory import MemoryPayloads


def events_of(history: History) -> list[StoredEvent]:
    return [stored.of(one) for one in history.envelopes]


FAILED = events_of(a_failed_run())
TENANT, ORGANIZATION = TenantId(FAILED[0].tenant_id), OrganizationId(FAILED[0].organization_id)
DRAINED = [
    structs.replace(one, execution_id=str(int(FAILED[0].execution_id) + 1))
    for one in events_of(a_cursor_loop())
]


def resealed(events: Iterable[StoredEvent]) -> list[StoredEvent]:
    before, done = codec.CHECKSUM_NONE, []
    for one in events:
        before = codec.chained(before, stored.covered(one))
        done.append(structs.replace(one, envelope_checksum=before))
    return done


BOTH = [*FAILED, *resealed(DRAINED)]


def a_unit() -> Unit:
    return Unit(
        manifest_id="77",
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        month=archives.month_of(ExecutionId(FAILED[0].execution_id)),
        planned_at=datetime(2026, 3, 1, tzinfo=UTC),
        fold_version=FOLD_VERSION,
        upcaster_digest=upcast.digest(),
    )


async def paged(events: Iterable[StoredEvent]) -> AsyncIterator[StoredEvent]:
    for one in events:
        yield one


async def written(store: MemoryPayloads, events: Iterable[StoredEvent] = BOTH) -> Manifest:
    return await units.write(store, a_unit(), paged(events), part_events_max=10)


async def test_histories_come_back_as_they_were() -> None:
    store = MemoryPayloads()
    manifest = await written(store)
    assert await checking.verify(store, manifest) == manifest.events == len(BOTH)
    assert len(manifest.parts) > 1
    for whole in (FAILED, BOTH[len(FAILED) :]):
        execution = ExecutionId(whole[0].execution_id)
        assert [one async for one in units.read(store, manifest, execution)] == whole
        later = [one async for one in units.read(store, manifest, execution, after_version=4)]
        assert later == whole[4:]
        kept = manifest.find(execution)
        assert kept is not None
        assert (kept.events, kept.checksum) == (len(whole), whole[-1].envelope_checksum)
    assert [one async for one in units.read(store, manifest, ExecutionId("5"))] == []


@pytest.mark.parametrize(
    ("name", "history"), list(stories()), ids=lambda one: one if isinstance(one, str) else ""
)
async def test_every_story_folds_to_the_same_checksums(name: str, history: History) -> None:
    def report(envelopes: Iterable[StoredEvent]) -> object:
        first = history.envelopes[0]
        replay = Replay(empty(first.execution_id, first.tenant_id, first.organization_id))
        replay.feed(stored.read(one) for one in envelopes)
        return replaying.report(replay)

    whole = events_of(history)
    assert report(parquet.decode(parquet.encode(whole))) == report(whole), name


async def test_a_second_attempt_finds_what_the_first_one_wrote() -> None:
    store = MemoryPayloads()
    assert await units.find_manifest(store, a_unit()) is None
    first = parquet.encode(BOTH[:10])
    await store.put_named(
        archives.part_name(a_unit(), 0), first, tenant_id=TENANT, organization_id=ORGANIZATION
    )
    manifest = await written(store)
    assert await written(store) == manifest == await units.find_manifest(store, a_unit())
    with pytest.raises(PayloadCorrupt, match="holds other events"):
        await written(store, FAILED[:3])


async def test_part_of_a_history_follows_what_came_before() -> None:
    store = MemoryPayloads()
    execution = ExecutionId(FAILED[0].execution_id)
    manifest = await units.write(
        store,
        a_unit(),
        paged(FAILED[3:]),
        previous={execution: FAILED[2].envelope_checksum},
    )
    assert await checking.verify(store, manifest) == len(FAILED) - 3
    kept = manifest.find(execution)
    assert kept is not None
    assert (kept.first_version, kept.last_version) == (4, len(FAILED))


Damaging = Callable[[Manifest], Manifest]


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
        await checking.verify(store, damage(await written(store)))


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
        archives.decode_manifest(codec.encode(structs.replace(manifest, format_version=2)))


async def test_columns_say_what_an_auditor_asks_for() -> None:
    table = pq.read_table(BytesIO(parquet.encode(BOTH))).to_pylist()
    assert [row["stream_version"] for row in table[: len(FAILED)]] == [
        one.stream_version for one in FAILED
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
    assert archives.month_of(ExecutionId(str(began << 22))) == "2026-02"
    assert archives.month_of(ExecutionId(str((began + 60_000) << 22))) == "2026-03"
