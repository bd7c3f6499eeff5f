"""Whole segments of shared memory that were spoilt: the store is read, and nothing wrong is."""

import asyncio
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.spoiling import spoiled
from tests.support.storage import ORGANIZATION, TENANT
from tests.support.tiering import TierCounts, open_shared

from noetl_chassis.clock import SystemClock
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.tiers import segment_format
from noetl_storage.tiers.segment_format import HEADER_BYTES, TRAILER_BYTES
from noetl_storage.tiers.shared import SharedTier
from noetl_storage.tiers.tiered_payloads import TieredPayloads

TABLE = pa.table({"n": pa.array(range(200), pa.int64()), "t": ["x" * (n % 9) for n in range(200)]})
OTHER = pa.table({"n": pa.array(range(200, 400), pa.int64()), "t": ["y" * 4] * 200})
WORDS = st.one_of(
    st.sampled_from([0, 1, 2**16, 2**47, 2**48 - 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1)
)
# Where each field of header and trailer begins, and how long it is.
FIELDS = {"magic": (0, 8), "length": (8, 6), "version": (14, 2)}
TRAILER = {
    "digest": (0, 32),
    "pid": (32, 8),
    "started": (40, 8),
    "namespace": (48, 8),
    "until": (56, 8),
}


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return bytes(sink.getvalue())


DATA, LATER = arrow(TABLE), arrow(OTHER)


@st.composite
def a_field(draw: st.DrawFn, whole: bytes) -> bytes:
    """One field of the header or the trailer with any other value."""
    name = draw(st.sampled_from([*FIELDS, *TRAILER]))
    at, size = FIELDS.get(name) or TRAILER[name]
    start = at if name in FIELDS else len(whole) - TRAILER_BYTES + at
    value = draw(
        st.one_of(
            st.binary(min_size=size, max_size=size),
            WORDS.map(lambda n: struct.pack("<Q", n)[:size]),
        )
    )
    if name == "until":
        value = struct.pack("<d", draw(st.floats(allow_nan=True, allow_infinity=True)))
    return whole[:start] + value.ljust(size, b"\0") + whole[start + size :]


@st.composite
def a_spoilt(draw: st.DrawFn, whole: bytes) -> bytes:
    how: list[Callable[[], st.SearchStrategy[bytes]]] = [
        lambda: a_field(whole),
        lambda: spoiled(whole),
        lambda: st.binary(max_size=300),
        lambda: st.integers(0, len(whole) + 9).map(lambda size: whole[:size].ljust(size, b"\0")),
        # A sound segment of other content under this name.
        lambda: st.just(
            segment_format.pack_header(len(arrow(OTHER))) + arrow(OTHER) + whole[-TRAILER_BYTES:]
        ),
    ]
    return draw(draw(st.sampled_from(how))())


class World:
    """A store with one payload, and the node's copy of it."""

    def __init__(self, folder: Path) -> None:
        self.seen = TierCounts()
        self.tier: SharedTier = open_shared(folder, clock=SystemClock())
        self.store = TieredPayloads(MemoryPayloads(), watch=self.seen, shared=self.tier)

    async def put(self) -> tuple[PayloadRef, Path]:
        ref = await self.store.put_payload(
            DATA, tenant_id=TENANT, organization_id=ORGANIZATION, media_type=ARROW_MEDIA_TYPE
        )
        return ref, self.tier._place / segment_format.build_segment_name(ref)


def run(check: Callable[[World], Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="noetl-test-") as name:
        world = World(Path(name))
        asyncio.run(check(world))
        world.tier.close()


FEW = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@FEW
@given(draw=st.data())
def test_a_spoilt_segment_is_a_miss_or_what_it_should_be(draw: st.DataObject) -> None:
    async def check(world: World) -> None:
        ref, file = await world.put()
        whole = file.read_bytes()
        assert len(whole) == HEADER_BYTES + len(DATA) + TRAILER_BYTES
        file.write_bytes(draw.draw(a_spoilt(whole)))
        checked = await world.store.map_table(ref, is_verified=True)
        assert checked is None or checked.equals(TABLE)
        assert await world.store.read_payload(ref) == DATA
        assert await world.store.read_payload(ref) == DATA
        again = await world.store.map_table(ref, is_verified=True)
        assert again is None or again.equals(TABLE)
        world.tier.sweep_node()

    run(check)


@FEW
@given(draw=st.data())
def test_a_segment_that_is_replaced_while_it_is_mapped_changes_nothing_that_was_read(
    draw: st.DataObject,
) -> None:
    async def check(world: World) -> None:
        ref, file = await world.put()
        mapped = await world.store.map_table(ref, is_verified=True)
        assert mapped is not None
        spoilt = draw.draw(a_spoilt(file.read_bytes()))
        part = file.with_name("replaced")
        part.write_bytes(spoilt)
        part.replace(file)
        assert mapped.equals(TABLE)
        assert await world.store.read_payload(ref) == DATA
        file.unlink(missing_ok=True)
        assert mapped.equals(TABLE)
        assert await world.store.read_payload(ref) == DATA

    run(check)
