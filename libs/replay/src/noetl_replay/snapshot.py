"""Folds remembered at a version: accelerators that are checked before they are believed."""

from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.ledger import upcasters
from noetl_contracts.ledger.records import Snapshot
from noetl_replay import payload_references
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.state import Changes, ExecutionState


def build_snapshot(state: ExecutionState) -> Snapshot:
    """Remember a state; what it has touched is not part of it."""
    body = codec.encode_json(msgspec.structs.replace(state, changes=Changes()))
    return Snapshot(
        execution_id=state.execution_id,
        version=state.version,
        fold_version=FOLD_VERSION,
        upcaster_digest=upcasters.digest_registry(),
        checksum=codec.digest_hex(body),
        state=body,
        event_id=state.last_event_id,
        **_describe_payloads(state, body),
    )


def _describe_payloads(state: ExecutionState, body: bytes) -> dict[str, Any]:
    """Say which payloads a state refers to, whose they are, and by which keys they are sealed."""
    # Most states refer to none: a look for the word costs far less than the whole value.
    found = (
        payload_references.collect_references(codec.decode_json(body))
        if b'"sha256"' in body
        else {}
    )
    return {
        "payload_digest": codec.compute_checksum(sorted(found)),
        "encryption": {
            "tenant_id": state.tenant_id,
            "organization_id": state.organization_id,
            "key_ids": sorted({one["key_id"] for one in found.values() if one.get("key_id")}),
        },
    }


def restore_state(snapshot: Snapshot | None) -> ExecutionState | None:
    """Return the remembered state, or None when anything about it is in doubt."""
    if snapshot is None or not is_snapshot_usable(snapshot):
        return None
    try:
        return codec.decode_as(snapshot.state, ExecutionState)
    except msgspec.DecodeError:
        return None


def is_snapshot_usable(snapshot: Snapshot) -> bool:
    """Tell whether this release wrote the snapshot with the same fold, and it is unchanged."""
    return (
        snapshot.fold_version == FOLD_VERSION
        and snapshot.upcaster_digest == upcasters.digest_registry()
        and codec.digest_hex(snapshot.state) == snapshot.checksum
    )
