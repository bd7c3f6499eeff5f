"""Bytes that were cut, flipped or doubled: each decoder reads them or names its refusal."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import builders
from tests.support.spoiling import spoiled
from tests.support.working import command_of

from noetl_contracts import codec
from noetl_contracts.commands import command_work
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId, WorkerId
from noetl_contracts.ledger import stored_event
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import FactBatch
from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PayloadUnreadable
from noetl_storage.tiers import segment_format, shared

REFUSALS = (MalformedMessage, UnknownEventType)
TABLE = pa.table(
    {
        "n": pa.array(range(300), pa.int64()),
        "text": pa.array([None if n % 7 == 0 else "t" * n for n in range(300)], pa.large_string()),
        "list": pa.array([[n] * (n % 3) for n in range(300)], pa.list_(pa.int32())),
        "kind": pa.array([str(n % 3) for n in range(300)]).dictionary_encode(),
    }
)


HISTORIES = [history.envelopes for _, history in builders.stories()]
FACTS = FactBatch(
    key="k",
    execution_id=ExecutionId("7"),
    tenant_id=TenantId("acme"),
    organization_id=OrganizationId("west"),
    producer="worker/w",
    facts=[
        facts.CommandStarted(command_id=CommandId("9"), attempt=1, worker_id=WorkerId("w")),
    ],
)
MESSAGES: dict[str, tuple[Callable[[bytes], Any], list[bytes]]] = {
    "event batch": (
        stored_event.decode_event_batch,
        [codec.encode_json(builders.a_batch(history[:9])) for history in HISTORIES],
    ),
    "event": (
        lambda data: stored_event.read_envelope(stored_event.decode_stored_event(data)),
        [codec.encode_json(item) for history in HISTORIES for item in history[:9]],
    ),
    "fact batch": (facts.decode_fact_batch, [codec.encode_json(FACTS)]),
    "command": (
        command_work.decode_command,
        [codec.encode_json(command_of("- {step: s, tool: {kind: noop, result: 1}}"))],
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
def test_a_message_is_read_or_refused(name: str, data: st.DataObject) -> None:
    decode, written = MESSAGES[name]
    whole = data.draw(st.sampled_from(range(len(written))))
    decode(written[whole])
    with suppress(*REFUSALS):
        decode(data.draw(spoiled(written[whole])))


def arrow() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)
    return bytes(sink.getvalue())


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(TABLE, sink, row_group_size=100)
    return bytes(sink.getvalue())


# The same bytes each time: a rare damage of a page ends the process inside of Arrow's reader of
# Parquet. Payloads of ours are read only when they have their digest.
@pytest.mark.parametrize("written", [arrow, parquet])
@settings(derandomize=True)
@given(data=st.data())
def test_a_table_is_read_or_refused(written: Callable[[], bytes], data: st.DataObject) -> None:
    spoilt = data.draw(spoiled(written()))
    with suppress(PayloadUnreadable):
        encoding.read_table(spoilt)
    with suppress(PayloadUnreadable):
        groups = encoding.RowGroups(spoilt)
        groups.read_groups(0, groups.count)
    shared.read_mapped_table(spoilt)


@given(data=st.binary(max_size=segment_format.TRAILER_BYTES + 1))
def test_a_segment_has_a_header_and_a_trailer_or_none(data: bytes) -> None:
    length = segment_format.unpack_length(data[: segment_format.HEADER_BYTES])
    assert length is None or data.startswith(segment_format.MAGIC)
    assert (segment_format.unpack_trailer(data) is None) == (
        len(data) != segment_format.TRAILER_BYTES
    )
