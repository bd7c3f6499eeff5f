"""Results whose rows lie in many objects: kept by what names them, read as one list."""

from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from tests.support.working import ORGANIZATION, TENANT

from noetl_contracts import codec, locators, spread_table
from noetl_contracts.ids import TenantId
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_storage.arrow import result_values
from noetl_storage.arrow.encoding import PayloadUnreadable
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.date32())])


async def put(store: MemoryPayloads, rows: list[dict[str, Any]]) -> PayloadRef:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    return await store.put_payload(
        sink.getvalue().to_pybytes(),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=ARROW_MEDIA_TYPE,
        row_count=len(rows),
    )


async def kept(store: MemoryPayloads) -> tuple[ResultEnvelope, SpreadTable, TenantPayloads]:
    first = await put(store, [{"n": 1, "day": None}, {"n": 2, "day": None}])
    second = await put(store, [{"n": 3, "day": 20_000}])
    rows = SpreadTable(
        row_count=3,
        payload_bytes=first.payload_bytes + second.payload_bytes,
        schema=b64encode(SCHEMA.serialize().to_pybytes()).decode(),
        columns=["n", "day"],
        parts=[first, second],
        head=[{"n": 1, "day": None}],
    )
    raw = {
        "rows": spread_table.build_marker(rows),
        "row_count": 3,
        "columns": ["n", "day"],
        "status": "ok",
    }
    result = PipelineResult(tasks={"t": TaskResult(kind="spark", raw=raw)}, last="t")
    place = PayloadOwner(tenant_id=TENANT, organization_id=ORGANIZATION)
    payloads = TenantPayloads(store, place=place, cache=PayloadCache(bytes_max=1_000_000))
    keeper = ResultStore(payloads=payloads, mask=SecretMask())
    return await keeper.store_result(result, status="ok"), rows, payloads


async def test_a_spread_result_reads_as_its_rows_and_says_what_it_holds_unread() -> None:
    store = MemoryPayloads()
    envelope, rows, payloads = await kept(store)
    assert envelope.reference is not None
    assert envelope.reference.media_type == SPREAD_MEDIA_TYPE
    assert envelope.reference.payload_bytes > rows.payload_bytes
    assert envelope.reference.row_count == 3
    assert envelope.reference.schema_digest is not None
    assert envelope.context["columns"] == ["n", "day"]
    assert envelope.context["fields"]["row_count"] == 3
    assert '"n":1' in envelope.context["preview"]
    wanted = [{"n": 1, "day": None}, {"n": 2, "day": None}, {"n": 3, "day": "2024-10-04"}]
    value = await payloads.load_value(envelope.reference)
    assert value["tasks"]["t"]["raw"]["rows"] == wanted
    loaded = {
        envelope.reference.sha256: await result_values.load_value(
            store.read_payload, envelope.reference
        )
    }
    plain = result_envelope.build_plain_result(
        envelope, result_envelope.make_payload_finder(loaded)
    )
    assert plain["rows"] == wanted


async def test_parts_of_another_organization_are_refused() -> None:
    store = MemoryPayloads()
    envelope, rows, _ = await kept(store)
    assert envelope.reference is not None
    other = TenantId("other")
    stolen = structs.replace(
        rows.parts[0], uri=locators.build_payload_locator(other, ORGANIZATION, rows.parts[0].sha256)
    )
    forged = spread_table.build_marker(structs.replace(rows, parts=[stolen]))
    data = codec.encode_json(
        {"tasks": {"t": {"kind": "spark", "raw": {"rows": forged}}}, "last": "t"}
    )
    ref = await store.put_payload(
        data, tenant_id=TENANT, organization_id=ORGANIZATION, media_type=SPREAD_MEDIA_TYPE
    )
    with pytest.raises(PayloadUnreadable, match="another organization"):
        await result_values.load_value(store.read_payload, ref)


async def test_what_only_looks_like_a_spread_stays_what_it_is() -> None:
    store = MemoryPayloads()
    value = {"tasks": {"t": {"raw": {"rows": {spread_table.KEY: {"parts": "none"}}}}}, "last": "t"}
    ref = await store.put_payload(
        codec.encode_json(value),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )
    assert await result_values.load_value(store.read_payload, ref) == value
