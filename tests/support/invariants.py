"""What holds for the history of every run, whatever its playbook and its transport."""

from collections import Counter
from collections.abc import Sequence

from tests.support.planning import PlannerHarness
from tests.support.sketches import Sketch
from tests.support.surface_comparison import compare_surfaces

from noetl_contracts import codec
from noetl_contracts.events import execution_events, get_event_type, loop_events, step_events
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay import comparison, fold, rows, snapshot
from noetl_replay.state import ExecutionState, build_empty_state, take_changes

COMMAND_ENDS = ("command.completed", "command.failed", "command.cancelled")
ENDS = ("playbook.completed", "playbook.failed", "execution.cancelled")


def assert_sound(
    harness: PlannerHarness, sketch: Sketch, *, cuts: Sequence[int], batch: int
) -> None:
    """Check a whole history: its chain, its effects, its joins and what is folded from it."""
    assert_chained(harness.history)
    assert_each_effect_once(harness)
    assert_joins(harness.history, sketch)
    assert_folded(harness, cuts=cuts)
    assert_rows(harness.history, batch=batch)


def assert_chained(history: Sequence[Envelope]) -> None:
    """Every event follows the one before it, survives the wire, and has a key of its own."""
    before = codec.CHECKSUM_NONE
    for item in history:
        assert envelope.seal_envelope(item, before) == item, item
        before = item.envelope_checksum
        assert codec.decode_as(codec.encode_json(item), Envelope) == item
    keys = Counter(item.idempotency_key for item in history if item.idempotency_key is not None)
    assert [key for key, many in keys.items() if many > 1] == []


def assert_each_effect_once(harness: PlannerHarness) -> None:
    """Every command that was issued ends once, every activation too, and so does the run."""
    issued = [event.command_id for event in harness.events("command.issued")]
    ended = [event.command_id for kind in COMMAND_ENDS for event in harness.events(kind)]
    assert sorted(issued) == sorted(ended)
    entered = [event.run_id for event in harness.events("step.enter")]
    left = [event.run_id for event in harness.events("step.exit")]
    assert sorted(entered) == sorted(left)
    types = harness.types()
    assert sum(types.count(kind) for kind in ENDS) == 1
    assert types[-1] in ENDS


def assert_joins(history: Sequence[Envelope], sketch: Sketch) -> None:
    """A step starts when no other live step can reach it, and never after a failure or a cancel.

    Where steps only wait for each other, the earliest of a cycle that nobody else leads to starts.
    """
    reach = sketch.reach()
    tokens: set[str] = set()
    running: dict[str, str] = {}
    is_over = False
    for item in history:
        event = item.event
        match event:
            case execution_events.PlaybookInitialized():
                tokens.add(event.entry_step)
            case execution_events.CancelRequested():
                is_over = True
            case step_events.StepEnter():
                assert not is_over, f"{event.step} starts after the end has begun"
                assert event.step in tokens
                _assert_may_start(event.step, tokens, set(running.values()), reach, sketch)
                tokens.discard(event.step)
                running[event.run_id] = event.step
            case step_events.StepExit():
                del running[event.run_id]
                tokens |= set(event.targets)
                is_over = is_over or event.error is not None
            case _:
                pass


def _assert_may_start(
    name: str,
    tokens: set[str],
    running: set[str],
    reach: dict[str, frozenset[str]],
    sketch: Sketch,
) -> None:
    def blockers(waiting: str) -> set[str]:
        return {other for other in tokens | running if other != waiting and waiting in reach[other]}

    assert name not in running, f"{name} runs twice at once"
    if not blockers(name):
        return
    assert not running, f"{name} starts although {blockers(name)} can reach it"
    assert all(blockers(waiting) for waiting in tokens), f"{name} starts before a free step"
    in_cycles = [
        node.name
        for node in sketch.nodes
        if node.name in tokens and all(other in reach[node.name] for other in blockers(node.name))
    ]
    assert name == in_cycles[0], f"{name} starts before {in_cycles[0]}"


def assert_folded(harness: PlannerHarness, *, cuts: Sequence[int]) -> None:
    """Folding the history gives the state that the planner held, from any snapshot too."""
    held = codec.encode_canonical(harness.state)
    whole = fold.fold_history(_begin(harness.history), harness.history)
    take_changes(whole)
    assert codec.encode_canonical(whole) == held
    for cut in cuts:
        place = cut % len(harness.history)
        part = fold.fold_history(_begin(harness.history), harness.history[:place])
        restored = snapshot.restore_state(snapshot.build_snapshot(part))
        assert restored is not None
        resumed = fold.fold_history(restored, harness.history[place:])
        take_changes(resumed)
        assert codec.encode_canonical(resumed) == held


def assert_rows(history: Sequence[Envelope], *, batch: int) -> None:
    """Rows written batch by batch are the rows of the replay, event by event."""
    live: comparison.Surfaces = {surface: {} for surface in rows.SURFACES}
    current = _begin(history)
    for start in range(0, len(history), batch):
        current = fold.fold_history(current, history[start : start + batch])
        for surface, found in rows.build_changed_rows(current, take_changes(current)).items():
            live[surface].update({row[rows.KEY_BY_SURFACE[surface]]: row for row in found})
    _, replayed = comparison.replay_surfaces(_begin(history), history)
    assert compare_surfaces(live, replayed) == []
    for row in live["command"].values():
        assert row["status"] in {"COMPLETED", "FAILED", "CANCELLED"}, row


def activations(history: Sequence[Envelope]) -> Counter[str]:
    """Count how often every step ran."""
    return Counter(
        item.event.step for item in history if isinstance(item.event, step_events.StepEnter)
    )


def units(history: Sequence[Envelope]) -> Counter[tuple[str, str]]:
    """Count the outcomes of commands by step."""
    counted = Counter[tuple[str, str]]()
    for item in history:
        if isinstance(item.event, step_events.CallDone | step_events.CallError):
            counted[item.event.step, get_event_type(item.event)] += 1
    return counted


def counted(history: Sequence[Envelope], name: str) -> tuple[int, int]:
    """Return how many units of a loop succeeded and failed by what it says at its end."""
    ends = [
        item.event
        for item in history
        if isinstance(item.event, loop_events.LoopDone | loop_events.LoopFailed)
    ]
    stats = [event.stats for event in ends if event.step == name]
    return (stats[-1].success, stats[-1].failed) if stats else (0, 0)


def _begin(history: Sequence[Envelope]) -> ExecutionState:
    first = history[0]
    return build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
