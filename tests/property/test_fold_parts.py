"""The fold over any history that a planner could write."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import History, Slots, run_items, run_step
from tests.support.surface_comparison import compare_surfaces

from noetl_contracts import codec
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.envelope import Envelope
from noetl_projector.domain import version_order
from noetl_projector.domain.version_order import VersionGap
from noetl_replay import comparison, fold, rows, snapshot, state
from noetl_replay.state import ExecutionState, take_changes

FEW = settings(max_examples=60)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Some steps, loops and cursors in a row, cut off anywhere."""
    history = History()
    history.start(entry="s0")
    for place in range(draw(st.integers(1, 4))):
        tell(draw, history, f"s{place}", f"s{place + 1}")
    history.finish()
    cut = draw(st.integers(1, len(history.envelopes)))
    history.envelopes = history.envelopes[:cut]
    return history


def tell(draw: st.DrawFn, history: History, name: str, then: str) -> None:
    match draw(st.sampled_from(["step", "items", "cursor"])):
        case "step":
            run_step(history, name, then, attempts=draw(st.integers(1, 3)))
        case "items":
            items = draw(st.integers(0, 5))
            run_items(history, name, then, items=items, failing=draw(st.integers(0, items)))
        case _:
            slots = Slots(history, name, slots=draw(st.integers(1, 3)))
            for slot in range(slots.slots):
                for index in range(draw(st.integers(0, 3))):
                    rows_count = draw(st.integers(1, 5))
                    bad = draw(st.integers(0, rows_count))
                    slots.take(
                        slot, index, rows=rows_count, losses=draw(st.integers(0, 2)), bad=bad
                    )
            slots.close(then)


def empty(history: History) -> ExecutionState:
    first = history.envelopes[0]
    return state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)


def same(execution_state: ExecutionState, other: ExecutionState) -> bool:
    return codec.encode_canonical(execution_state) == codec.encode_canonical(other)


@FEW
@given(histories(), st.data())
def test_folding_in_two_parts_is_folding_at_once(history: History, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history.envelopes)))
    first, second = history.envelopes[:cut], history.envelopes[cut:]
    parts = fold.fold_history(fold.fold_history(empty(history), first), second)
    assert same(parts, fold.fold_history(empty(history), history.envelopes))


@FEW
@given(histories(), st.data())
def test_folding_on_from_a_snapshot_is_folding_from_the_start(
    history: History, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history.envelopes)))
    restored = snapshot.restore_state(
        snapshot.build_snapshot(fold.fold_history(empty(history), history.envelopes[:cut]))
    )
    assert restored is not None
    resumed = fold.fold_history(restored, history.envelopes[cut:])
    whole = fold.fold_history(empty(history), history.envelopes)
    take_changes(resumed)
    take_changes(whole)
    assert same(resumed, whole)


@FEW
@given(histories(), st.integers(1, 9))
def test_rows_written_batch_by_batch_are_the_rows_of_the_replay(
    history: History, size: int
) -> None:
    live: dict[str, dict[str, rows.Row]] = {surface: {} for surface in rows.SURFACES}
    current = empty(history)
    for batch in history.batches(size=size):
        fold.fold_history(current, batch.events)
        for surface, found in rows.build_changed_rows(current, take_changes(current)).items():
            live[surface].update({row[rows.KEY_BY_SURFACE[surface]]: row for row in found})
    _, replayed = comparison.replay_surfaces(empty(history), history.envelopes)
    assert compare_surfaces(live, replayed) == []


@FEW
@given(histories(), st.integers(1, 9), st.data())
def test_batches_in_any_order_any_number_of_times_are_folded_once(
    history: History, size: int, data: st.DataObject
) -> None:
    batches = history.batches(size=size)
    arrived = data.draw(st.lists(st.sampled_from(batches), max_size=2 * len(batches)))
    current = empty(history)
    for step in version_order.arrange_batches(0, arrived).steps:
        if isinstance(step, VersionGap):
            fold.fold_history(current, history.envelopes[step.after : step.until])
        else:
            fold.fold_history(current, step.envelopes)
    last = max((batch.last_version for batch in arrived), default=0)
    assert same(current, fold.fold_history(empty(history), history.envelopes[:last]))


@FEW
@given(histories())
def test_an_event_survives_the_wire_and_the_columns(history: History) -> None:
    for item in history.envelopes:
        assert codec.decode_as(codec.encode_json(item), Envelope) == item
        context, result, error = envelope.split_event_body(item.event)
        kind = item.schema_name.removeprefix("noetl.")
        assert envelope.join_event_body(kind, context, result, error) == item.event


@FEW
@given(histories(), st.data())
def test_an_altered_event_breaks_the_chain(history: History, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(history.envelopes) - 1))
    before = history.envelopes[place - 1].envelope_checksum if place else codec.CHECKSUM_NONE
    one = history.envelopes[place]
    assert envelope.seal_envelope(one, before) == one
    body = codec.to_builtins(one)
    body["producer"] = "someone else"
    altered = codec.convert_value(body, Envelope)
    assert envelope.seal_envelope(altered, before) != altered
