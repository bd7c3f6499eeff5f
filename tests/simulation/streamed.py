"""Random playbooks whose first step streams: what they are, and what they must come to."""

import random
from typing import Any

from msgspec import Struct

from noetl_contracts.events.step_events import CallPartial
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay.state import ExecutionState

_ROWS_MAX = 9


class Streamed(Struct, frozen=True, kw_only=True):
    """A stream: its rows, how they are cut, and the chunks whose handling fails."""

    rows: int
    chunk_rows: int
    max_ahead: int
    in_flight: int
    failing: frozenset[int]
    failure: str

    @property
    def chunks(self) -> int:
        """Return how many chunks it is cut into."""
        return -(-self.rows // self.chunk_rows)


def draw(chance: random.Random) -> Streamed:
    """Draw a stream, a third of whose chunks fail where any do."""
    chunk_rows, rows = chance.randint(1, 3), chance.randint(0, _ROWS_MAX)
    share = chance.choice([0.0, 0.0, 0.3])
    places = range(-(-rows // chunk_rows))
    return Streamed(
        rows=rows,
        chunk_rows=chunk_rows,
        max_ahead=chance.randint(1, 4),
        in_flight=chance.randint(1, 4),
        failing=frozenset(place for place in places if chance.random() < share),
        failure=chance.choice(["drain", "fail_fast", "best_effort"]),
    )


def document(stream: Streamed, *, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Write the playbook; `inputs` are those of every task that is done outside."""
    retry = {"do": "retry", "attempts": 100, "delay": 0.2}
    again = {"when": "{{ output.error.kind == 'connection' }}", "then": retry}
    bad = {
        "when": f"{{{{ chunk.index in {sorted(stream.failing)} }}}}",
        "then": {"do": "fail", "message": "as planned"},
    }
    code = {"kind": "python", "code": "yield from played_by_the_simulation()"}
    export = {
        **code,
        "input": {**inputs, "n": stream.rows},
        "stream": {"chunk_rows": stream.chunk_rows, "max_ahead": stream.max_ahead},
        "spec": {"policy": {"rules": [again]}},
    }
    ship = {
        **code,
        "input": {**inputs, "n": "{{ chunk.rows | length }}"},
        "spec": {"policy": {"rules": [again, bad]}},
    }
    counted = {
        "ctx.chunks": "{{ event.chunks }}",
        "ctx.shipped": "{{ ship.results | default([]) | length }}",
    }
    arcs = [
        {"step": "ship", "on": "call.partial", "spec": {"max_in_flight": stream.in_flight}},
        {"step": "after", "on": "call.done", "set": counted},
        {"step": "repair", "on": "call.error", "set": counted},
    ]
    return {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": name, "path": f"random/{name}"},
        "workflow": [
            {
                "step": "export",
                "spec": {"policy": {"failure": {"mode": stream.failure}}},
                "tool": export,
                "next": {"arcs": arcs},
            },
            {"step": "ship", "tool": ship},
            {"step": "after", "tool": {"kind": "noop"}},
            {"step": "repair", "tool": {"kind": "noop"}},
        ],
    }


def assert_expected(stream: Streamed, state: ExecutionState, history: list[Envelope]) -> None:
    """Compare how a run went with what the language says of streams."""
    assert state.status == "COMPLETED", state.failure
    is_bad = bool(stream.failing) and stream.failure != "best_effort"
    assert ("repair" in state.steps, "after" in state.steps) == (is_bad, not is_bad)
    events = [item.event for item in history if isinstance(item.event, CallPartial)]
    indexes = [event.chunk.index for event in events]
    assert indexes == list(range(len(indexes))), f"chunks {indexes}"
    if is_bad and stream.failure == "fail_fast":
        return
    rows = [stream.chunk_rows] * stream.chunks
    if rows:
        rows[-1] = stream.rows - stream.chunk_rows * (stream.chunks - 1)
    assert [event.chunk.row_count for event in events] == rows
    failed = len(stream.failing)
    counted = {"total": stream.chunks, "done": stream.chunks - failed, "failed": failed}
    assert state.ctx["chunks"] == counted
    assert state.ctx["shipped"] == stream.chunks
