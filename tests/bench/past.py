"""What looking back costs, in CPU time of one core: folding, rows, snapshots, chains."""

import time
from collections.abc import Callable
from typing import Any

from tests.support.builders import History, Slots

from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import HistoryHead
from noetl_replay import fold, snapshot
from noetl_replay.audit import chain
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import ExecutionState, build_empty_state, take_changes

EVENTS = 100_000
PAGE_EVENTS = 1000
SLOTS = 8
# As far behind the end as a projector's snapshots are apart.
BEHIND = 1000


def measure() -> dict[str, Any]:
    """Fold one long history in every way that there is."""
    envelopes = _history()
    many = len(envelopes)
    head = HistoryHead(
        execution_id=envelopes[-1].execution_id,
        version=many,
        checksum=envelopes[-1].envelope_checksum,
    )
    kept = snapshot.build_snapshot(_folded(envelopes[:-BEHIND]))
    plain = [stored_event.to_stored_event(envelope) for envelope in envelopes]
    folding = _cpu_s(lambda: _folded(envelopes))
    replaying = _cpu_s(lambda: _replayed(envelopes))
    resuming = _cpu_s(lambda: fold.fold_history(_restored(kept), envelopes[-BEHIND:]))
    following = _cpu_s(lambda: chain.examine_history(plain, head=head))
    return {
        "events": many,
        "fold_events_per_cpu_s": round(many / folding),
        "replay_events_per_cpu_s": round(many / replaying),
        "replay_cpu_s": round(replaying, 2),
        "snapshot_speed_up": round(folding / resuming, 1),
        "chain_events_per_cpu_s": round(many / following),
    }


def _history() -> list[Envelope]:
    history = History()
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=SLOTS)
    turn = 0
    while len(history.envelopes) < EVENTS:
        slots.take(turn % SLOTS, turn // SLOTS, rows=5)
        turn += 1
    slots.close()
    history.finish(last="drain")
    return history.envelopes


def _begun(envelopes: list[Envelope]) -> ExecutionState:
    first = envelopes[0]
    return build_empty_state(first.execution_id, first.tenant_id, first.organization_id)


def _folded(envelopes: list[Envelope]) -> ExecutionState:
    state = _begun(envelopes)
    for start in range(0, len(envelopes), PAGE_EVENTS):
        state = fold.fold_history(state, envelopes[start : start + PAGE_EVENTS])
        take_changes(state)
    return state


def _replayed(envelopes: list[Envelope]) -> HistoryReplay:
    replay = HistoryReplay(_begun(envelopes))
    for start in range(0, len(envelopes), PAGE_EVENTS):
        replay.feed_events(envelopes[start : start + PAGE_EVENTS])
    return replay


def _restored(kept: Any) -> ExecutionState:
    restored = snapshot.restore_state(kept)
    assert restored is not None
    return restored


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
