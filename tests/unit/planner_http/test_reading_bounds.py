"""What one answer may hold, counted unpacked; and the loop that keeps leases goes on meanwhile."""

import threading
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from tests.support import hostile_tables as hostile
from tests.support.hostile_tables import watched
from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts import codec, locators, spread_table
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import payload_reader
from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE
from noetl_storage.payloads.memory import MemoryPayloads

MIB = 1024 * 1024
ABOUT = {
    b"noetl.kept": codec.encode_json({"rows": []}),
    b"noetl.path": codec.encode_json([]),
    b"noetl.shape": b"mappings",
}


@pytest.fixture
def payloads() -> MemoryPayloads:
    return MemoryPayloads()


async def put(payloads: MemoryPayloads, data: bytes, media_type: str) -> PayloadRef:
    return await payloads.put_payload(
        data, tenant_id=TENANT, organization_id=ORGANIZATION, media_type=media_type
    )


async def read(payloads: MemoryPayloads, reference: PayloadRef) -> Any:
    # The first segments of a reference say whose it is.
    _, tenant, _, organization, *_ = locators.parse_locator(reference.uri).segments
    services = SimpleNamespace(payloads=payloads, tenant_id=tenant, organization_id=organization)
    return await payload_reader.read_payload(cast("ApiServices", services), reference)


async def refused(payloads: MemoryPayloads, reference: PayloadRef) -> ApiError:
    with watched() as peak, pytest.raises(ApiError) as found:
        await read(payloads, reference)
    assert peak.bytes < 4 * payload_reader.RESOLVED_BYTES_MAX
    return found.value


def a_result(rows: int) -> bytes:
    texts = pa.repeat(pa.scalar("x" * 1000), rows)
    table = pa.table({"a": texts}).replace_schema_metadata(ABOUT)
    return hostile.parquet(table, compression="zstd")


async def test_a_small_result_that_unpacks_to_much_is_too_large(payloads: MemoryPayloads) -> None:
    data = a_result(500_000)
    assert len(data) < 100_000
    for item in (
        data,
        encoding.compress_bytes(data, "zstd"),
        encoding.compress_bytes(b" " * 17 * MIB, "gzip"),
    ):
        problem = await refused(payloads, await put(payloads, item, PARQUET_MEDIA_TYPE))
        assert problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        assert problem.code == "payload_too_large"
        assert "the limit is 16777216" in problem.detail


async def test_parts_that_unpack_to_much_together_are_too_large(payloads: MemoryPayloads) -> None:
    data = hostile.repeating_text(1000, 10_000, compression="zstd")
    part = await put(payloads, data, PARQUET_MEDIA_TYPE)

    async def of_parts(count: int) -> PayloadRef:
        rows = SpreadTable(
            row_count=10_000 * count,
            payload_bytes=part.payload_bytes * count,
            schema="",
            columns=["a"],
            parts=[part] * count,
            head=[],
        )
        task = {"kind": "spark", "raw": {"rows": spread_table.build_marker(rows)}}
        kept = codec.encode_json({"tasks": {"t": task}, "last": "t"})
        return await put(payloads, kept, SPREAD_MEDIA_TYPE)

    value = await read(payloads, await of_parts(1))
    assert value["tasks"]["t"]["raw"]["rows"] == [{"a": "x" * 1000}] * 10_000
    problem = await refused(payloads, await of_parts(2))
    assert problem.code == "payload_too_large"


async def test_a_table_that_is_no_result_is_refused_unread(payloads: MemoryPayloads) -> None:
    data = hostile.repeating_text(1000, 100_000)
    problem = await refused(payloads, await put(payloads, data, PARQUET_MEDIA_TYPE))
    assert problem.code == "payload_not_json"


@pytest.mark.parametrize("form", ["table", "packed", "long"])
async def test_what_may_take_long_is_decoded_beside_the_loop(
    payloads: MemoryPayloads, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    data = {
        "table": a_result(2),
        "packed": encoding.compress_bytes(b"{}", "gzip"),
        "long": codec.encode_json(["x" * 1000] * 100),
    }[form]
    threads: list[int] = []
    decode = encoding.decode_payload

    def seen(*args: Any, **named: Any) -> Any:
        threads.append(threading.get_ident())
        return decode(*args, **named)

    monkeypatch.setattr(encoding, "decode_payload", seen)
    await read(payloads, await put(payloads, data, PARQUET_MEDIA_TYPE))
    assert threads
    assert threading.get_ident() not in threads


async def test_results_are_read_as_they_were_written(payloads: MemoryPayloads) -> None:
    assert await read(payloads, await put(payloads, b'{"a":1}', "application/json")) == {"a": 1}
    found = await read(payloads, await put(payloads, a_result(2), PARQUET_MEDIA_TYPE))
    assert found == {"rows": [{"a": "x" * 1000}] * 2}
