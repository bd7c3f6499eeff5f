"""The strict order of versions: what to drop, what to read from the ledger, what to fold."""

from collections.abc import Iterable

from msgspec import Struct

from noetl_contracts.ledger.envelope import Envelope, EventBatch


class VersionGap(Struct, frozen=True, kw_only=True):
    """Versions after `after` up to `until` did not come and stand in the ledger."""

    after: int
    until: int


class EventRun(Struct, frozen=True, kw_only=True):
    """Events that follow what came before them without a gap."""

    envelopes: list[Envelope]


class VersionOrder(Struct, frozen=True, kw_only=True):
    """How to go on from a version, and how many events were already there."""

    steps: list[VersionGap | EventRun]
    duplicates: int


def arrange_batches(version: int, batches: Iterable[EventBatch]) -> VersionOrder:
    """Order batches of one execution behind a version; they may have arrived in any order."""
    steps: list[VersionGap | EventRun] = []
    duplicates = 0
    for batch in sorted(batches, key=lambda batch: batch.first_version):
        fresh = [envelope for envelope in batch.events if envelope.stream_version > version]
        duplicates += len(batch.events) - len(fresh)
        if not fresh:
            continue
        first = fresh[0].stream_version
        if first > version + 1:
            steps.append(VersionGap(after=version, until=first - 1))
        steps.append(EventRun(envelopes=fresh))
        version = fresh[-1].stream_version
    return VersionOrder(steps=steps, duplicates=duplicates)


def find_disorder(batch: EventBatch) -> str | None:
    """Say why a batch is not the contiguous range of one execution that it claims to be."""
    versions = [envelope.stream_version for envelope in batch.events]
    if versions != list(range(batch.first_version, batch.last_version + 1)) or not versions:
        return f"a batch does not hold its versions {batch.first_version} to {batch.last_version}"
    execution_ids = {envelope.execution_id for envelope in batch.events} - {batch.execution_id}
    if execution_ids:
        return f"a batch of execution {batch.execution_id} holds events of {sorted(execution_ids)}"
    return None
