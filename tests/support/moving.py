"""Histories that are told again of other executions, and their projections."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs
from tests.support.builders import History
from tests.support.storage import Stores

from noetl_contracts import codec
from noetl_contracts.ids import EventId, ExecutionId
from noetl_contracts.ledger import envelope
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state


def moved(history: History, execution_id: ExecutionId, **owner: Any) -> History:
    """Tell the same of another execution; `owner` names the tenant and the organization."""
    other, before = History(execution_id), codec.CHECKSUM_NONE
    for item in history.envelopes:
        sealed = envelope.seal_envelope(
            structs.replace(
                item,
                execution_id=execution_id,
                event_id=EventId(str(int(execution_id) + item.stream_version)),
                stream_id=f"execution/{execution_id}",
                **owner,
            ),
            before,
        )
        other.envelopes.append(sealed)
        before = sealed.envelope_checksum
    return other


async def project(
    stores: Stores, histories: Sequence[History], *, shard: int = 0, after: int = 0
) -> None:
    """Keep the rows that histories of one shard come to, as a projector does."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for history in histories:
        first = history.envelopes[0]
        replay = HistoryReplay(
            build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
        )
        replay.feed_events(history.envelopes)
        for surface, found in replay.surfaces.items():
            rows.setdefault(surface, []).extend(found.values())
    positions = {str(item.execution_id): (after, len(item.envelopes)) for item in histories}
    assert await stores.projections.apply_rows(shard=shard, rows=rows, positions=positions) == []
