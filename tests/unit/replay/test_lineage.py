"""Stored results are linked to what led to them, as the ledger's own trace tells it."""

import pytest
from tests.replay import record
from tests.support.lineage import stored_history
from tests.support.storage import ORGANIZATION, TENANT, a_stream, an_execution

from noetl_chassis.clock import SystemClock
from noetl_contracts.events.step_events import StepEnter
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay import fold, rows
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.snapshot import build_snapshot, restore_state
from noetl_replay.state import build_empty_state, take_changes
from noetl_storage.ledger import histories
from noetl_storage.memory.ledger import MemoryLedger
from noetl_storage.memory.store import MemoryStore


def results_of(history: list[Envelope]) -> dict[str, rows.Row]:
    first = history[0]
    replay = HistoryReplay(
        build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    )
    replay.feed_events(history)
    return replay.results


def chain(results: dict[str, rows.Row], ref_id: str | None) -> list[str]:
    found: list[str] = []
    while ref_id is not None:
        found.append(ref_id)
        ref_id = results[ref_id]["parent_ref_id"]
    return found


def test_a_result_is_linked_to_the_nearest_stored_one_before_it() -> None:
    history = list(a_stream(an_execution(), stored_history()).envelopes)
    results = results_of(history)
    assert [(row["step_name"], row["run_id"]) for row in results.values()] == [
        ("fetch", "1"),
        ("clean", "2"),
        ("last", "6"),
    ]
    last = list(results)[-1]
    # The loop and the report before it are inline; `clean` has run again meanwhile.
    assert [results[ref]["step_name"] for ref in chain(results, last)] == ["last", "clean", "fetch"]
    assert results[last]["entered_version"] == 15
    assert results[last]["reference"]["uri"].startswith("noetl://")


@pytest.mark.parametrize("name", record.names())
async def test_lineage_says_what_the_trace_of_the_ledger_says(name: str) -> None:
    history = record.load(name)
    results = results_of(history)
    store = MemoryStore(clock=SystemClock())
    execution = history[0].execution_id
    store.history_by_execution[execution] = history
    ledger = MemoryLedger(store)
    for step in {e.event.step for e in history if isinstance(e.event, StepEnter)}:
        entered = histories.find_latest_entry(history, step)
        assert entered is not None
        links = await ledger.trace_runs(execution, step, links_max=1000)
        kept = [
            str(link.ref_id)
            for link in links
            if link.result is not None and link.result.reference is not None
        ]
        if links[0].ref_id in results:
            assert chain(results, links[0].ref_id) == kept
        assert set(kept) <= results.keys()


def test_a_snapshot_in_the_middle_changes_no_lineage() -> None:
    history = list(a_stream(an_execution(), stored_history()).envelopes)
    whole = results_of(history)
    for cut in range(1, len(history)):
        before = fold.fold_history(
            build_empty_state(history[0].execution_id, TENANT, ORGANIZATION), history[:cut]
        )
        first = rows.build_result_rows(before, take_changes(before))
        after = restore_state(build_snapshot(before))
        assert after is not None
        fold.fold_history(after, history[cut:])
        found = [*first, *rows.build_result_rows(after, take_changes(after))]
        assert {row["ref_id"]: row for row in found} == whole
