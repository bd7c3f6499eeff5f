"""The serialization contract: one corpus, its digests, and readers that know nothing of each other.

The corpus is recorded by `python -m tests.corpus.record` and never rewritten.
"""

import shutil
import subprocess
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.corpus import record as corpus
from tests.replay import record as histories
from tests.support.storage import ORGANIZATION, TENANT
from tests.support.tiering import TierCounts, open_shared

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec
from noetl_contracts.payloads import ARROW_MEDIA_TYPE
from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PayloadUnreadable, digest_schema
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.tiers.tiered_payloads import TieredPayloads

DIGESTS: dict[str, Any] = codec.decode_json(corpus.DIGESTS.read_bytes())
NAMES = sorted(DIGESTS["tables"])
NODE = shutil.which("node")


def stored(name: str) -> bytes:
    return (corpus.TABLES / f"{name}.arrow").read_bytes()


def test_every_table_and_value_of_the_corpus_is_recorded() -> None:
    assert sorted(corpus.tables()) == NAMES
    assert len(DIGESTS["values"]) == len(corpus.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_table_says_what_it_said(name: str) -> None:
    data, known_names = stored(name), DIGESTS["tables"][name]
    table = encoding.read_table(data)
    assert codec.digest_hex(data) == known_names["sha256"]
    assert digest_schema(table.schema) == known_names["schema_digest"]
    assert table.num_rows == known_names["row_count"]
    assert corpus.checksum(table) == known_names["checksum"]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_today_is_the_recorded_one(name: str) -> None:
    table = corpus.tables()[name]
    found = encoding.read_table(stored(name))
    assert found.schema.equals(table.schema, check_metadata=True)
    assert found.combine_chunks().equals(table.combine_chunks())
    assert encoding.read_table(corpus.written(table)).equals(table)


@pytest.mark.parametrize("name", NAMES)
def test_duckdb_reads_the_same(name: str) -> None:
    """DuckDB scans the stream and writes a stream of its own: both are its code, not Arrow's."""
    stream = pa.ipc.open_stream(stored(name))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("stream", stream)
        arrow_table = connection.sql("SELECT * FROM stream").to_arrow_table()
    assert corpus.checksum(arrow_table) == DIGESTS["tables"][name]["checksum"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_table_is_mapped_as_it_was_stored(name: str, tmp_path: Any) -> None:
    shared = open_shared(tmp_path, clock=SystemClock())
    store = TieredPayloads(MemoryPayloads(), watch=TierCounts(), shared=shared)
    ref = await store.put_payload(
        stored(name),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=ARROW_MEDIA_TYPE,
        schema_digest=DIGESTS["tables"][name]["schema_digest"],
    )
    table = await store.map_table(ref)
    assert corpus.checksum(table) == DIGESTS["tables"][name]["checksum"]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_is_cut_off_is_refused_or_shorter_but_never_other(name: str) -> None:
    """The end of a stream is optional: its digest and its row count say whether it is whole."""
    data, whole = stored(name), encoding.read_table(stored(name))
    for cut in range(0, len(data), max(1, len(data) // 50)):
        try:
            table = encoding.read_table(data[:cut])
        except PayloadUnreadable:
            continue
        assert table.equals(whole.slice(0, table.num_rows))


def test_values_have_their_recorded_digests() -> None:
    lines = corpus.VALUES.read_bytes().splitlines()
    decoded = [codec.decode_json(line) for line in lines]
    assert [codec.digest_hex(codec.encode_canonical(value)) for value in decoded] == DIGESTS[
        "values"
    ]
    assert [
        codec.digest_hex(codec.encode_canonical(value)) for value in corpus.values()
    ] == DIGESTS["values"]


@pytest.mark.skipif(NODE is None, reason="there is no JavaScript on this machine")
def test_javascript_computes_the_same_digests_and_chains() -> None:
    names = histories.names()
    files = [histories.paths(name)[0] for name in names]
    assert NODE is not None
    output = subprocess.run(  # noqa: S603 - our own script
        [NODE, corpus.HERE / "canonical.mjs", corpus.VALUES, *files],
        capture_output=True,
        check=True,
    )
    found = codec.decode_json(output.stdout)
    assert found["values"] == DIGESTS["values"]
    assert found["chains"] == [histories.load(name)[-1].envelope_checksum for name in names]
