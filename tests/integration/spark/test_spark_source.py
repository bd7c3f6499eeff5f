"""What executors do to read stored tables, on real stores and without a session."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.support.calls import site
from tests.support.servers import S3Server
from tests.support.working import ORGANIZATION, TENANT

from noetl_contracts import codec, spread_table
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE
from noetl_worker import settings
from noetl_worker.spark.grants import job_grant
from noetl_worker.spark.grants.job_grant import GrantRenewal, GrantUnusable, JobGrant
from noetl_worker.spark.grants.payload_scope import StoreLogin
from noetl_worker.spark.grants.renewal_place import ObjectPlace
from noetl_worker.spark.tables import part_writer, payload_source, store_access
from noetl_worker.spark.tables.payload_source import NoetlReader, NoetlSource
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress


@pytest.fixture(params=["file", "s3"])
def home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StoreAddress:
    """An organization's payloads in a store that other processes reach."""
    url = f"file://{tmp_path}"
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        url = server.payload_url
        monkeypatch.setenv("NOETL_WORKER_PAYLOAD_ACCESS_KEY", server.access_key)
        monkeypatch.setenv("NOETL_WORKER_PAYLOAD_SECRET_KEY", server.secret_key)
    return StoreAddress(url=url, tenant_id=TENANT, organization_id=ORGANIZATION)


def put(home: StoreAddress, data: bytes, media_type: str, rows: int | None = None) -> PayloadRef:
    return store_access.run_with_store(
        home,
        lambda payloads: payloads.put_payload(
            data,
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            media_type=media_type,
            row_count=rows,
        ),
    )


def kept(rows: list[dict[str, Any]]) -> dict[str, Any]:
    raw = {"rows": rows, "columns": list(rows[0])}
    return {"tasks": {"t": {"kind": "postgres", "raw": raw}}, "last": "t"}


def read(home: StoreAddress, refs: list[PayloadRef], *, is_union: bool = False) -> list[Any]:
    """Read as Spark would: the schema, the partitions, and each of them."""
    options = payload_source.build_options(home, refs, is_union=is_union, partitions=3)
    schema = NoetlSource(options).schema()
    reader = NoetlReader(options, schema)
    batches = [batch for item in reader.partitions() for batch in reader.read(item)]
    assert all(batch.schema.names == schema.names for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_results_read_the_same_in_every_form(home: StoreAddress) -> None:
    rows = [{"i": i, "name": f"n{i}" if i % 2 else None, "x": i / 2} for i in range(100)]
    refs = [put(home, codec.encode_json(kept(rows)), JSON_MEDIA_TYPE)]
    for format_, media_type in (("arrow", ARROW_MEDIA_TYPE), ("parquet", PARQUET_MEDIA_TYPE)):
        data = encoding.encode_table(kept(rows), ("tasks", "t", "raw"), format_=format_)  # type: ignore[arg-type]  # both are formats
        assert data is not None
        refs.append(put(home, data, media_type))
    for ref in refs:
        assert read(home, [ref]) == rows
    numbered = read(home, refs[:2], is_union=True)
    assert numbered == [{**row, "_part": part} for part in (0, 1) for row in rows]


def test_a_spread_table_tells_its_columns_unopened_and_is_read_in_groups(
    home: StoreAddress,
) -> None:
    tables = [pa.table({"i": [n, n + 1], "t": [f"a{n}", None]}) for n in (0, 2, 4, 6)]
    parts = [
        put(home, part_writer.encode_table(table, "parquet"), PARQUET_MEDIA_TYPE, 2)
        for table in tables
    ]
    rows = SpreadTable(
        row_count=8,
        payload_bytes=sum(part.payload_bytes for part in parts),
        schema=b64encode(tables[0].schema.serialize().to_pybytes()).decode(),
        columns=["i", "t"],
        parts=parts,
    )
    result = kept([{"i": 0}])
    result["tasks"]["t"]["raw"]["rows"] = spread_table.build_marker(rows)
    ref = put(home, codec.encode_json(result), SPREAD_MEDIA_TYPE, 8)
    assert [row["i"] for row in read(home, [ref])] == list(range(8))
    options = payload_source.build_options(home, [ref], is_union=False, partitions=3)
    reader = NoetlReader(options, NoetlSource(options).schema())
    assert 1 < len(reader.partitions()) <= 3


def test_a_large_object_is_decoded_in_slices(
    home: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_source, "_SLICE_BYTES", 1_000)
    table = pa.table({"i": list(range(1_000))})
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, row_group_size=100)
    for data, media_type in (
        (sink.getvalue().to_pybytes(), PARQUET_MEDIA_TYPE),
        (_arrow(table, 100), ARROW_MEDIA_TYPE),
    ):
        ref = put(home, data, media_type)
        options = payload_source.build_options(home, [ref], is_union=False, partitions=3)
        reader = NoetlReader(options, NoetlSource(options).schema())
        partitions = reader.partitions()
        assert len(partitions) == 3
        sizes = [sum(b.num_rows for b in reader.read(partition)) for partition in partitions]
        assert sum(sizes) == 1_000
        assert min(sizes) > 0
        assert [row["i"] for row in read(home, [ref])] == list(range(1_000))


def _arrow(table: pa.Table, size: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=size):
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_what_is_missing_or_no_table_is_refused_by_kind(home: StoreAddress) -> None:
    text = put(home, codec.encode_json(kept([{"i": 1}])), JSON_MEDIA_TYPE)
    scalar = put(home, b'"text"', JSON_MEDIA_TYPE)
    store_access.run_with_store(home, lambda payloads: payloads.delete_payload(text))
    for ref, kind in ((text, "reference_not_available"), (scalar, "validation")):
        with pytest.raises(SparkRefusal) as refused:
            read(home, [ref])
        about = store_access.find_refusal(f"a trace\n{refused.value}\n  more of it")
        assert about is not None
        assert about["kind"] == kind


def test_options_hold_nothing_secret(home: StoreAddress) -> None:
    ref = put(home, b"[]", JSON_MEDIA_TYPE)
    options = str(payload_source.build_options(home, [ref], is_union=False, partitions=1))
    keys = settings.read_executor_keys()
    for secret in (keys.payload_secret_key, keys.payload_access_key):
        assert not secret or secret not in options


def test_a_table_has_its_name_when_all_parts_are_there_and_keeps_it(home: StoreAddress) -> None:
    options = {"store": home.url, "tenant": TENANT, "organization": ORGANIZATION, "table": "t/1"}
    table = pa.table({"i": [1, 2, 3]})
    schema = from_arrow_schema(table.schema)
    writer = NoetlSource(options).writer(schema, overwrite=False)
    halves = (table.slice(0, 2), table.slice(2))
    messages = [writer.write(iter(half.to_batches())) for half in halves]
    with pytest.raises(SparkRefusal, match="no table named"):
        NoetlSource(options).schema()
    writer.commit([*messages, None])
    writer.commit([*messages, None])
    noetl_source = NoetlSource(options)
    reader = noetl_source.reader(noetl_source.schema())
    rows = [row for item in reader.partitions() for b in reader.read(item) for row in b.to_pylist()]
    assert rows == [{"i": 1}, {"i": 2}, {"i": 3}]
    with pytest.raises(SparkRefusal, match="there already"):
        writer.commit(messages[:1])
    with pytest.raises(SparkRefusal, match="written once"):
        NoetlSource(options).writer(schema, overwrite=True)


def test_executors_elsewhere_read_renewed_keys_by_a_signed_address(s3: S3Server) -> None:
    login = StoreLogin(url=s3.payload_url, access_key=s3.access_key, secret_key=s3.secret_key)
    place = ObjectPlace(login, site())
    renewal = GrantRenewal(place=place.address, key=b"k" * job_grant.KEY_BYTES)
    grant = JobGrant(renewal=renewal, renew_at=1.0, ends_at=2.0)
    with pytest.raises(GrantUnusable):
        job_grant.find_current_grant(grant, 3.0)
    later = JobGrant(renewal=renewal, renew_at=10.0, ends_at=20.0)
    place.write_data(job_grant.seal_grant(later, renewal.key))
    assert job_grant.find_current_grant(grant, 3.0).ends_at == 20.0
    place.remove_data()
    with pytest.raises(GrantUnusable):
        job_grant.find_current_grant(grant, 21.0)
