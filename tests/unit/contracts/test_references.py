"""A reference names stored content, or it is none."""

from typing import Any

import msgspec
import pytest

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId, WorkerId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts

# A place in shared memory, which no field of a reference names.
PLACE = {"node_id": "n", "shm_name": "/noetl-1"}
STORED: dict[str, Any] = {
    "uri": "noetl://tenant/t/org/o/payloads/sha256/" + "0" * 64,
    "sha256": "0" * 64,
    "media_type": "m",
    "payload_bytes": 1,
}


def test_a_reference_takes_nothing_besides_what_the_store_needs() -> None:
    ref = codec.decode_as(codec.encode_json({**STORED, "shared": PLACE}), PayloadRef)
    assert codec.to_builtins(ref) == STORED


@pytest.mark.parametrize(
    "reference",
    [
        {"shared": PLACE},
        {**STORED, "uri": ""},
        {**STORED, "uri": "shm://noetl-1"},
        {**STORED, "sha256": ""},
        {**STORED, "sha256": "0" * 64 + "/.."},
        {**STORED, "sha256": "A" * 64},
    ],
)
def test_what_names_no_stored_content_is_refused(reference: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        codec.convert_value({"status": "ok", "reference": reference}, ResultEnvelope)


def test_a_fact_with_a_reference_to_nothing_stored_is_malformed() -> None:
    completed = facts.CommandCompleted(
        command_id=CommandId("c"),
        attempt=1,
        worker_id=WorkerId("w"),
        result=ResultEnvelope(status="ok", reference=codec.convert_value(STORED, PayloadRef)),
    )
    batch = facts.FactBatch(
        key="k",
        execution_id=ExecutionId("1"),
        tenant_id=TenantId("t"),
        organization_id=OrganizationId("o"),
        producer="w",
        facts=[completed],
    )
    assert facts.decode_fact_batch(codec.encode_json(batch)) == batch
    told = codec.to_builtins(batch)
    told["facts"][0]["result"]["reference"] = {"shared": PLACE}
    with pytest.raises(MalformedMessage, match="uri"):
        facts.decode_fact_batch(codec.encode_json(told))
