"""What must hold when all faults have ended and everything has come to rest."""

import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.property.test_random_workflows import assert_expected
from tests.simulation import streamed
from tests.simulation.services import SECRET
from tests.simulation.streamed import Streamed
from tests.support import invariants, oracle
from tests.support.sketches import Sketch
from tests.support.surface_comparison import compare_surfaces

from noetl_contracts import codec
from noetl_contracts.events import get_event_type
from noetl_contracts.events.command_events import CommandRejected
from noetl_contracts.events.execution_events import PlaybookInitialized
from noetl_contracts.events.frame_events import (
    FrameCommitRejected,
    FrameCommitted,
    FrameDispatched,
    FrameFailed,
)
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.payloads import PayloadRef
from noetl_replay import rows
from noetl_replay.comparison import index_live_surfaces, replay_surfaces
from noetl_replay.state import ExecutionState, build_empty_state
from noetl_storage.memory.projections import MemoryProjections

if TYPE_CHECKING:
    from tests.simulation.world import RequestedExecution, World

_CANCELLED = "execution.cancelled"
_STRUCTURAL = {"internal", "unknown", "template", "validation", "config"}


def unrest(world: "World") -> str:
    """Say what has not come to rest."""
    store = world.store
    found = [f"{len(store.message_by_id)} outbox rows"] if store.message_by_id else []
    for asked in world.asked:
        if asked.execution_id not in world.witness.over:
            history = store.history_by_execution.get(asked.execution_id or "", [])
            last = get_event_type(history[-1].event) if history else "nothing"
            found.append(f"execution {asked.execution_id} is at {len(history)} ({last})")
    for execution_id, head in store.head_by_execution.items():
        shown = store.position_by_execution.get(execution_id, 0)
        if shown != head.version:
            found.append(f"{execution_id} is projected to {shown} of {head.version}")
    unsettled = [item for item in store.request_by_id.values() if item.settled_at is None]
    found += [f"request {item.request.request_id} unsettled" for item in unsettled]
    return ", ".join(found)


async def judge(world: "World") -> None:
    """Hold everything that is durable against the invariants."""
    asked = {item.execution_id: item for item in world.asked}
    for execution_id, history in world.store.history_by_execution.items():
        try:
            await _judge_one(world, asked.get(ExecutionId(execution_id)), history)
        except AssertionError as failure:
            world.witness.object(f"execution {execution_id}: {_first_words(failure)}")
    _judge_store(world)


async def _judge_one(
    world: "World", requested_execution: "RequestedExecution | None", history: list[Envelope]
) -> None:
    assert requested_execution is not None or _is_child(history), "asked for once, begun twice"
    assert [item.stream_version for item in history] == list(range(1, len(history) + 1))
    invariants.assert_chained(history)
    state = await _assert_projected(world, history)
    types = [get_event_type(item.event) for item in history]
    await _assert_references(world, history)
    if history[0].execution_id not in world.witness.over:
        return
    assert_each_effect_once(history, types)
    assert state.failure is None or state.failure.kind not in _STRUCTURAL, state.failure
    if requested_execution is None:
        return
    is_cancelled = _CANCELLED in types
    assert not is_cancelled or requested_execution.cancel_after_s is not None, "cancelled by nobody"
    match requested_execution.workflow.plan:
        case Streamed() as stream:
            if not is_cancelled:
                streamed.assert_expected(stream, state, history)
        case Sketch() as sketch:
            _assert_effects(world, sketch, requested_execution.workflow.outside, history)
            _assert_repeats_told(world, sketch, history)
            invariants.assert_joins(history, sketch)
            if sketch.is_acyclic and not is_cancelled:
                assert_expected(sketch, oracle.play(sketch), state, history)


def _is_child(history: list[Envelope]) -> bool:
    first = history[0].event
    return isinstance(first, PlaybookInitialized) and first.parent is not None


def _assert_effects(
    world: "World", sketch: Sketch, outside: frozenset[str], history: list[Envelope]
) -> None:
    """What a history says was done outside is there, under one key for each row."""
    execution_id = history[0].execution_id
    done = {row[1:3] for row in world.sink.row_by_key.values() if row[0] == execution_id}
    for item in history:
        event = item.event
        if isinstance(event, CallDone) and event.step in outside:
            node = sketch.node(event.step)
            if node.reduces is None and (node.units is None or event.item_index is not None):
                unit = "step" if event.item_index is None else f"item-{event.item_index}"
                assert (event.step, unit) in done, f"{event.step}/{unit} is done, and not outside"


def _assert_repeats_told(world: "World", sketch: Sketch, history: list[Envelope]) -> None:
    """Of a frame that ended no row was done more often than the history says that it ran."""
    root_by_frame: dict[str, str] = {}
    root_by_command: dict[str, str] = {}
    repeats: Counter[str] = Counter()
    refused_attempts: defaultdict[str, set[int]] = defaultdict(set)
    ended: set[str] = set()
    for item in history:
        match item.event:
            case FrameDispatched(frame_id=frame_id, parent_frame_id=parent) as event:
                if not _claims(sketch, event.step):
                    continue
                repeats[root_by_frame.get(frame_id, "")] += frame_id in root_by_frame
                root = frame_id if parent is None else root_by_frame[parent]
                root_by_frame[frame_id] = root_by_command[event.command_id] = root
                ended.discard(root)
            case FrameCommitted(frame_id=frame_id) | FrameFailed(frame_id=frame_id):
                ended.add(root_by_frame.get(frame_id, ""))
            case FrameCommitRejected(frame_id=frame_id, attempt=attempt):
                refused_attempts[root_by_frame.get(frame_id, "")].add(attempt)
            # Its commit may come after the end of the execution, when nothing is recorded any more.
            case CommandRejected(command_id=command_id, attempt=attempt, fact="frame_opened"):
                refused_attempts[root_by_command.get(command_id, "")].add(attempt)
            case _:
                pass
    for (root, row), times in world.sink.times_by_row.items():
        if root in ended:
            told = 1 + repeats[root] + len(refused_attempts[root])
            assert times <= told, (
                f"row {row} of frame {root} was done {times} times, told are {told}"
            )


def _claims(sketch: Sketch, step: str) -> bool:
    units = sketch.node(step).units
    return units is not None and units.mode == "cursor"


def assert_each_effect_once(history: list[Envelope], types: list[str]) -> None:
    """Every command, activation, loop, stage and frame ends once, and so does the run."""
    events = [item.event for item in history]
    for begins, ends, name in (
        ({"command.issued"}, set(invariants.COMMAND_ENDS), "command_id"),
        ({"step.enter"}, {"step.exit"}, "run_id"),
        ({"loop.started"}, {"loop.done", "loop.failed"}, "run_id"),
        ({"stage.opened"}, {"stage.closed"}, "stage_id"),
    ):
        begun = Counter(getattr(event, name) for event in events if get_event_type(event) in begins)
        ended = Counter(getattr(event, name) for event in events if get_event_type(event) in ends)
        twice = {key for key, many in (begun | ended).items() if many > 1}
        assert not twice, f"{sorted(ends)} twice for {sorted(twice)}"
        assert ended.keys() <= begun.keys(), f"{sorted(ends)} of what never began"
        if name in {"command_id", "run_id"} and "loop.started" not in begins:
            assert begun == ended, f"{sorted(begins)} without an end"
    assert sum(types.count(kind) for kind in invariants.ENDS) == 1


async def _assert_projected(world: "World", history: list[Envelope]) -> ExecutionState:
    first = history[0]
    begun = build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    state, replayed = replay_surfaces(begun, history)
    projections = MemoryProjections(world.store)
    live: dict[str, Any] = {
        surface: await projections.list_rows(surface, first.execution_id)
        for surface in rows.SURFACES
    }
    differences = compare_surfaces(index_live_surfaces(live), replayed)
    assert differences == [], f"the projection differs from the replay: {differences[:3]}"
    for found in live.values():
        for row in found:
            assert row["tenant_id"] == first.tenant_id, "a row of another tenant"
    return state


async def _assert_references(world: "World", history: list[Envelope]) -> None:
    """Whatever an event refers to is stored, under its own tenant."""
    tenant = history[0].tenant_id
    for item in history:
        assert item.tenant_id == tenant, "an event of another tenant"
        for reference in references(item.event):
            assert f"/{tenant}/" in reference.uri, f"{reference.uri} is another tenant's"
            assert await world.payloads.has_payload(reference), f"{reference.uri} points to nothing"


def references(value: Any) -> list[PayloadRef]:
    """Find every reference inside a value."""
    if isinstance(value, PayloadRef):
        return [value]
    if isinstance(value, dict):
        return [found for item in value.values() for found in references(item)]
    if isinstance(value, list | tuple):
        return [found for item in value for found in references(item)]
    fields = getattr(value, "__struct_fields__", ())
    return [found for name in fields for found in references(getattr(value, name))]


def _judge_store(world: "World") -> None:
    witness, store = world.witness, world.store
    if store.message_by_id:
        witness.object(f"{len(store.message_by_id)} outbox rows are left")
    for place, data in _kept(world):
        if SECRET.encode() in data:
            witness.object(f"a secret lies open in {place}")


def _kept(world: "World") -> Iterator[tuple[str, bytes]]:
    """Yield all bytes that anybody keeps."""
    for history in world.store.history_by_execution.values():
        for item in history:
            yield f"the ledger, {get_event_type(item.event)}", codec.encode_json(item)
    yield from world.payloads.bytes_by_key.items()
    for name, stream in world.broker._streams.items():
        for message in stream.messages.values():
            yield name, message.data
    yield "the projections", repr(world.store.row_by_key_by_surface).encode()


def _first_words(failure: AssertionError) -> str:
    """Say what failed, and where when there are no words for it."""
    place = traceback.extract_tb(failure.__traceback__)[-1]
    part = str(failure).split("\n", maxsplit=1)[0][:300]
    return part or f"{place.filename.rpartition('/')[2]}:{place.lineno}: {place.line}"
