"""Results whose rows lie in many objects: kept by what names them, read as one list."""

from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from tests.support.working import ORGANIZATION, TENANT

from noetl_contracts import codec, locators, spread
from noetl_contracts.ids import TenantId
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_contracts.spread import SPREAD_MEDIA_TYPE, Spread
from noetl_playbook import carried
from noetl_playbook.results import PipelineResult, TaskResult
from noetl_storage import loading
from noetl_storage.encoding import PayloadUnreadable
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.masking import Mask
from noetl_worker.keeping import Keeper
from noetl_worker.stores import Place, Remembered, TenantPayloads

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.date32())])


async def put(store: MemoryPayloads, rows: list[dict[str, Any]]) -> PayloadRef:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    return await store.put(
        sink.getvalue().to_pybytes(),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=ARROW_MEDIA_TYPE,
        row_count=len(rows),
    )


async def kept(store: MemoryPayloads) -> tuple[ResultEnvelope, Spread, TenantPayloads]:
    first = await put(store, [{"n": 1, "day": None}, {"n": 2, "day": None}])
    second = await put(store, [{"n": 3, "day": 20_000}])
    rows = Spread(
        row_count=3,
        payload_bytes=first.payload_bytes + second.payload_bytes,
        schema=b64encode(SCHEMA.serialize().to_pybytes()).decode(),
        columns=["n", "day"],
        parts=[first, second],
        head=[{"n": 1, "day": None}],
    )
    raw = {"rows": spread.marker(rows), "row_count": 3, "columns": ["n", "day"], "status": "ok"}
    result = PipelineResult(tasks={"t": TaskResult(kind="spark", raw=raw)}, last="t")
    place = Place(tenant_id=TENANT, organization_id=ORGANIZATION)
    payloads = TenantPayloads(store, place=place, remembered=Remembered(bytes_max=1_000_000))
    keeper = Keeper(payloads=payloads, mask=Mask())
    return await keeper.keep(result, status="ok"), rows, payloads


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
    value = await payloads.load(envelope.reference)
    assert value["tasks"]["t"]["raw"]["rows"] == wanted
    loaded = {envelope.reference.sha256: await loading.load(store.read, envelope.reference)}
    plain = carried.plain(envelope, carried.found_in(loaded))
    assert plain["rows"] == wanted


async def test_parts_of_another_organization_are_refused() -> None:
    store = MemoryPayloads()
    envelope, rows, _ = await kept(store)
    assert envelope.reference is not None
    other = TenantId("other")
    stolen = structs.replace(
        rows.parts[0], uri=locators.payload(other, ORGANIZATION, rows.parts[0].sha256)
    )
    forged = spread.marker(structs.replace(rows, parts=[stolen]))
    data = codec.encode({"tasks": {"t": {"kind": "spark", "raw": {"rows": forged}}}, "last": "t"})
    ref = await store.put(
        data, tenant_id=TENANT, organization_id=ORGANIZATION, media_type=SPREAD_MEDIA_TYPE
    )
    with pytest.raises(PayloadUnreadable, match="another organization"):
        await loading.load(store.read, ref)


async def test_what_only_looks_like_a_spread_stays_what_it_is() -> None:
    store = MemoryPayloads()
    value = {"tasks": {"t": {"raw": {"rows": {spread.KEY: {"parts": "none"}}}}}, "last": "t"}
    ref = await store.put(
        codec.encode(value),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )
    assert await loading.load(store.read, ref) == value
