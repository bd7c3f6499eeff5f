"""A reference names stored content, or it is none."""

from typing import Any

import msgspec
import pytest

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId, WorkerId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts

HINT = {
    "node_id": "n",
    "shm_name": "/noetl-1",
    "schema_digest": "0" * 64,
    "valid_until": "2026-01-01T00:00:00Z",
}
STORED: dict[str, Any] = {
    "uri": "noetl://tenant/t/org/o/payloads/sha256/" + "0" * 64,
    "sha256": "0" * 64,
    "media_type": "m",
    "payload_bytes": 1,
}


def test_a_hint_beside_a_stored_reference_is_kept() -> None:
    ref = codec.decode_as(codec.encode_json({**STORED, "shared": HINT}), PayloadRef)
    assert ref.shared is not None
    assert ref.shared.node_id == "n"
    assert codec.decode_as(codec.encode_json(ref), PayloadRef) == ref


@pytest.mark.parametrize(
    "reference",
    [
        {"shared": HINT},
        {**STORED, "uri": "", "shared": HINT},
        {**STORED, "uri": "shm://noetl-1", "shared": HINT},
        {**STORED, "sha256": "", "shared": HINT},
        {**STORED, "sha256": "0" * 64 + "/..", "shared": HINT},
        {**STORED, "sha256": "A" * 64},
    ],
)
def test_what_names_no_stored_content_is_refused(reference: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        codec.convert_value({"status": "ok", "reference": reference}, ResultEnvelope)


def test_a_fact_with_nothing_but_a_hint_is_malformed() -> None:
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
    told["facts"][0]["result"]["reference"] = {"shared": HINT}
    with pytest.raises(MalformedMessage, match="uri"):
        facts.decode_fact_batch(codec.encode_json(told))
