import io
import itertools
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.support import hostile_tables as hostile
from tests.support.hostile_tables import BYTE_ARRAY, INT64, ZSTD, Column, Page, watched

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PayloadTooLarge, PayloadUnreadable
from noetl_storage.memory.payload_references import MemoryPayloadReferences
from noetl_storage.memory.store import MemoryStore
from noetl_storage.payloads.garbage import GarbageAge, GarbageCollector
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.payloads.payload_references import find_mentioned
from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.size_limits import texts

DIGESTS = [codec.digest_hex(b"%d" % n) for n in range(50)]
MIB = 1024 * 1024
ROWS = {
    "tasks": {"t": {"raw": {"columns": ["a"], "rows": [{"a": f"x {item}"} for item in DIGESTS]}}}
}


async def in_pieces(data: bytes, sizes: list[int]) -> AsyncIterator[bytes]:
    place = 0
    for size in itertools.cycle(sizes):
        if place >= len(data):
            return
        yield data[place : place + size]
        place += size


def tables() -> dict[str, bytes]:
    """Write the digests into tables in every way in which a text may stand in one."""
    plain = pa.table({"a": DIGESTS})
    fixed = pa.table({"a": pa.array([item.encode() for item in DIGESTS], pa.binary(64))})
    lists = pa.table({"a": pa.array([DIGESTS[at : at + 7] for at in range(0, 50, 7)])})
    # Each begins as the one before did, in all of its digest but the end or in nothing.
    alike = pa.table(
        {"a": sorted(f"at {item}{end}" for item in DIGESTS for end in ("", ".a", ".b"))}
    )
    flat: dict[str, Any] = {"use_dictionary": False}
    shared = {"column_encoding": {"a": "DELTA_BYTE_ARRAY"}, **flat}
    in_lists = {"column_encoding": {"a.list.element": "DELTA_BYTE_ARRAY"}, **flat}
    lengths = {"column_encoding": {"a": "DELTA_LENGTH_BYTE_ARRAY"}, **flat}
    split = {"column_encoding": {"a": "BYTE_STREAM_SPLIT"}, **flat}
    found = {
        f"parquet packed as {how}": hostile.parquet(plain, compression=how)
        for how in ("snappy", "gzip", "brotli", "zstd", "lz4", "none")
    }
    for version in ("1.0", "2.0"):
        newer: dict[str, Any] = {"data_page_version": version, "data_page_size": 300}
        found |= {
            f"shared {version}": hostile.parquet(alike, **shared, **newer),
            f"shared in lists {version}": hostile.parquet(lists, **in_lists, **newer),
            f"lengths {version}": hostile.parquet(plain, **lengths, **newer),
            f"split {version}": hostile.parquet(fixed, **split, **newer),
            f"fixed {version}": hostile.parquet(fixed, **newer),
            f"plain {version}": hostile.parquet(lists, **flat, **newer),
        }
    return found | {
        "packed arrow": hostile.stream(lists, compression="zstd"),
        "arrow packed as lz4": hostile.stream(plain, compression="lz4"),
        "schema": hostile.stream(pa.table({"".join(DIGESTS): [1]}), compression="zstd"),
        "metadata": hostile.parquet(
            pa.table({"a": [1]}).replace_schema_metadata({"k": " ".join(DIGESTS)})
        ),
    }


def forms() -> dict[str, bytes]:
    plain = codec.encode_json(ROWS)
    arrow = encoding.encode_table(ROWS, ("tasks", "t", "raw"), format_="arrow")
    parquet = encoding.encode_table(ROWS, ("tasks", "t", "raw"), format_="parquet")
    assert arrow is not None
    assert parquet is not None
    words = pa.table({"a": pa.array(DIGESTS).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, words.schema) as writer:
        writer.write_table(words)
    return {
        "json": plain,
        "gzip": encoding.compress_bytes(plain, "gzip"),
        "zstd": encoding.compress_bytes(plain, "zstd"),
        "arrow": arrow,
        "parquet": parquet,
        "packed parquet": encoding.compress_bytes(parquet, "zstd"),
        "dictionary": sink.getvalue().to_pybytes(),
        **tables(),
        "glued": b"abcdef" + "".join(DIGESTS).encode(),
        "looks packed": b"PAR1" + plain,
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("sizes", [[1], [63, 64, 65], [1000], [10**6]])
async def test_every_digest_is_found_whatever_the_form_and_the_pieces(
    form: str, sizes: list[int]
) -> None:
    data = forms()[form]
    if sizes == [1] and len(data) > 4000:
        sizes = [random.Random(form).randrange(2, 200)]
    wanted = set(DIGESTS[::2])
    assert await find_mentioned(in_pieces(data, sizes), wanted) == wanted


async def test_nothing_is_found_in_nothing() -> None:
    assert await find_mentioned(in_pieces(b"", [1]), set(DIGESTS)) == set()
    assert await find_mentioned(in_pieces(b"ab", [1]), set(DIGESTS)) == set()


async def told(data: bytes) -> set[str]:
    return await find_mentioned(in_pieces(data, [MIB]), set(DIGESTS))


async def test_a_text_that_a_table_repeats_is_looked_at_once() -> None:
    text = "x" * 1000 + DIGESTS[7]
    table = pa.table({"a": pa.repeat(pa.scalar(text), 100_000)})
    data = hostile.parquet(table, groups=10, compression="zstd")
    assert len(data) < MIB
    with watched() as peak:
        assert await told(data) == {DIGESTS[7]}
    assert peak.bytes < 16 * MIB


async def test_what_a_stream_unpacks_to_is_never_held_at_once() -> None:
    numbers = pa.repeat(pa.scalar(0), 16 * MIB)
    words = pa.repeat(pa.scalar(DIGESTS[3]), 16 * MIB // 64)
    tall = pa.table({"n": numbers[: len(words)], "w": words})
    data = hostile.stream(tall, compression="zstd")
    with watched() as peak:
        assert await told(data) == {DIGESTS[3]}
    assert peak.bytes < 16 * MIB
    packed = encoding.compress_bytes(b" " * (256 * MIB) + DIGESTS[4].encode(), "zstd")
    with watched() as peak:
        assert await told(packed) == {DIGESTS[4]}
    assert peak.bytes < 32 * MIB


def a_page_of_nothing(kind: int) -> bytes:
    page = Page(body=bytes(256 * MIB), values=1)
    return hostile.a_parquet_file(Column(kind=kind), [page], rows=1, codec=ZSTD)


async def test_a_page_too_long_to_be_looked_through_is_refused_before_it_is_unpacked() -> None:
    data = a_page_of_nothing(BYTE_ARRAY)
    with watched() as peak, pytest.raises(PayloadTooLarge, match="a page of a Parquet file takes"):
        await told(data)
    assert peak.bytes < 16 * MIB
    with pytest.raises(PayloadTooLarge):
        await told(encoding.compress_bytes(data, "zstd"))


def many_empty_texts() -> bytes:
    """Write texts that share nothing with nothing: three bytes for eight thousand of them."""
    count = 2_000_000_000
    block = hostile.varint(8192) + b"\1" + hostile.varint(count) + b"\0"
    lengths = block + b"\0\0" * (count // 8192 + 1)
    page = Page(body=lengths + lengths, values=count, encoding=7)
    return hostile.a_parquet_file(Column(kind=BYTE_ARRAY), [page], rows=1, codec=ZSTD)


async def test_texts_are_not_rebuilt_without_end() -> None:
    data = many_empty_texts()
    assert len(data) < 1000
    with pytest.raises(PayloadTooLarge, match="DELTA_BYTE_ARRAY"):
        await told(data)


async def test_numbers_mention_nothing() -> None:
    assert await told(a_page_of_nothing(INT64)) == set()


async def test_a_schema_whose_parts_are_shared_is_not_built_to_be_looked_through() -> None:
    schema = hostile.schema_of_shared_fields(17, padding=MIB)
    assert await told(schema) == set()
    key_values = [hostile.as_parquet_schema(schema)]
    page = Page(body=bytes(8), values=1)
    data = hostile.a_parquet_file(Column(), [page], rows=1, key_values=key_values)
    with pytest.raises(PayloadTooLarge, match="schema of a table"):
        await told(data)


async def test_a_table_whose_pages_are_damaged_is_not_taken_for_one_that_mentions_nothing() -> None:
    data = bytearray(hostile.parquet(pa.table({"a": DIGESTS}), compression="zstd"))
    place = data.index(b"\x28\xb5\x2f\xfd")
    data[place : place + 4] = b"none"
    with pytest.raises(PayloadUnreadable, match="cannot be looked through"):
        await told(bytes(data))


async def test_what_packs_better_than_any_text_is_not_looked_through_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(texts, "_TEXT_BYTES_MIN", 16 * MIB)
    with pytest.raises(PayloadTooLarge, match="a payload's text takes"):
        await told(encoding.compress_bytes(b" " * (64 * MIB), "zstd"))


async def test_a_full_disk_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", lambda **_: Full())
    with pytest.raises(StorageUnavailable, match="TMPDIR"):
        await told(encoding.compress_bytes(b"{}", "gzip"))


async def test_an_owner_with_a_payload_that_cannot_be_told_is_not_collected_and_told_why() -> None:
    now = datetime.now(UTC)
    owner = Owner(tenant_id=TenantId("acme"), organization_id=OrganizationId("main"))
    other = Owner(tenant_id=TenantId("other"), organization_id=OrganizationId("main"))
    store = MemoryPayloads()
    for item in (owner, other):
        await store.put_payload(
            b"{}",
            tenant_id=item.tenant_id,
            organization_id=item.organization_id,
            media_type="application/json",
        )
    later = now + timedelta(days=9)
    collector = GarbageCollector(
        shelf=store,
        references=MemoryPayloadReferences(MemoryStore(clock=SystemClock())),
        garbage_age=GarbageAge(ttl=timedelta(days=7), shelf=timedelta(days=1)),
    )
    name = "artifacts/a/versions/0000000001"
    await store.put_named(
        name,
        a_page_of_nothing(BYTE_ARRAY),
        tenant_id=owner.tenant_id,
        organization_id=owner.organization_id,
    )
    with pytest.raises(PayloadUnreadable, match=f"{name} of acme/main.*remove it"):
        await collector.sweep_owner(owner, now=later, is_dry_run=False)
    assert (await collector.sweep_owner(other, now=later, is_dry_run=False)).shelved == 1
