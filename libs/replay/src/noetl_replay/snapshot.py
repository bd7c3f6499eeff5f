"""Snapshots of an execution's folded state, so that a load need not fold its whole history.

The projector writes them; planner and API restore them. A snapshot is used only when its checksum,
fold version and upcasters are those of this release.
"""

from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.ledger import upcasters
from noetl_contracts.ledger.records import Snapshot
from noetl_replay import payload_references
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.state import Changes, ExecutionState


def build_snapshot(state: ExecutionState) -> Snapshot:
    """Build the snapshot of a state, without its list of changes."""
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
    """Return the digest of the payload references in a state, their owner and their seal keys."""
    # Most states refer to no payload: a search for the word costs far less than decoding the state.
    reference_by_digest = (
        payload_references.collect_references(codec.decode_json(body))
        if b'"sha256"' in body
        else {}
    )
    return {
        "payload_digest": codec.compute_checksum(sorted(reference_by_digest)),
        "encryption": {
            "tenant_id": state.tenant_id,
            "organization_id": state.organization_id,
            "key_ids": sorted(
                {
                    reference["key_id"]
                    for reference in reference_by_digest.values()
                    if reference.get("key_id")
                }
            ),
        },
    }


def restore_state(snapshot: Snapshot | None) -> ExecutionState | None:
    """Return the state of a snapshot, or None when there is none or it cannot be used."""
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
