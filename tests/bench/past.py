"""What looking back costs, in CPU time of one core: folding, rows, snapshots, chains."""

import time
from collections.abc import Callable
from typing import Any

from tests.support.builders import History, Slots

from noetl_contracts import stored
from noetl_contracts.envelope import Envelope
from noetl_contracts.ledger import Head
from noetl_replay import chain, fold, snapshot
from noetl_replay.replaying import Replay
from noetl_replay.state import ExecutionState, empty, take_changes

EVENTS = 100_000
PAGE_EVENTS = 1000
SLOTS = 8
# As far behind the end as a projector's snapshots are apart.
BEHIND = 1000


def measure() -> dict[str, Any]:
    """Fold one long history in every way that there is."""
    envelopes = _history()
    many = len(envelopes)
    head = Head(
        execution_id=envelopes[-1].execution_id,
        version=many,
        checksum=envelopes[-1].envelope_checksum,
    )
    kept = snapshot.take(_folded(envelopes[:-BEHIND]))
    plain = [stored.of(one) for one in envelopes]
    folding = _cpu_s(lambda: _folded(envelopes))
    replaying = _cpu_s(lambda: _replayed(envelopes))
    resuming = _cpu_s(lambda: fold.fold(_restored(kept), envelopes[-BEHIND:]))
    following = _cpu_s(lambda: chain.examine(plain, head=head))
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
    return empty(first.execution_id, first.tenant_id, first.organization_id)


def _folded(envelopes: list[Envelope]) -> ExecutionState:
    state = _begun(envelopes)
    for start in range(0, len(envelopes), PAGE_EVENTS):
        state = fold.fold(state, envelopes[start : start + PAGE_EVENTS])
        take_changes(state)
    return state


def _replayed(envelopes: list[Envelope]) -> Replay:
    replay = Replay(_begun(envelopes))
    for start in range(0, len(envelopes), PAGE_EVENTS):
        replay.feed(envelopes[start : start + PAGE_EVENTS])
    return replay


def _restored(kept: Any) -> ExecutionState:
    restored = snapshot.restore(kept)
    assert restored is not None
    return restored


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
