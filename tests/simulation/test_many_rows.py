# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Fifty thousand rows through one loop: every event stays small, and so does what the planner holds."""

from pathlib import Path

import pytest
from tests.support.inprocess import a_system, run

from noetl_contracts import codec
from noetl_replay import snapshot
from noetl_replay.fold import fold_history
from noetl_replay.state import build_empty_state

pytestmark = pytest.mark.timeout(180)

ROWS, FRAME_ROWS = 50_000, 1_000
FRAMES = ROWS // FRAME_ROWS
EVENT_BYTES_MAX = 2 * 1024
# The state knows the frames that run, not those that have ended, and no row at all.
STATE_GROWTH_BYTES_MAX = 200
PLAYBOOK = f"""
workflow:
  - step: load
    tool: {{kind: python, code: "return [{{'n': n}} for n in range({ROWS})]"}}
    # A preview is as large as its author wants it, 1 KiB unless told otherwise.
    output: {{preview_max_bytes: 0}}
    next: {{arcs: [{{step: each}}]}}
  - step: each
    loop:
      in: "{{{{ load }}}}"
      iterator: rows
      spec: {{mode: chunked, chunk_size: {FRAME_ROWS}, max_in_flight: 4, collect: none, frame: {{process: frame}}}}
    tool: {{kind: noop, result: "{{{{ iter.rows | length }}}}"}}
    set: {{ctx.total: "{{{{ each.stats.total }}}}"}}
"""


async def test_rows_by_the_thousand_cost_small_events_and_a_state_that_does_not_grow(
    tmp_path: Path,
) -> None:
    async with a_system(tmp_path) as opened:
        # It also holds what is projected against what is replayed.
        outcome = await run(opened, PLAYBOOK)
    assert outcome.state.ctx == {"total": FRAMES}
    assert outcome.types.count("frame.committed") == FRAMES
    assert outcome.types.count("stage.closed") == 1
    assert sum(event.row_count for event in outcome.of("frame.committed")) == ROWS
    assert sum(kind.startswith("frame.") for kind in outcome.types) <= 4 * FRAMES
    # The rows stay in the payload that the step has stored: the planner does not read them.
    (started,) = outcome.of("loop.started")
    (loaded,) = (item for item in outcome.of("call.done") if item.step == "load")
    assert started.collection_ref == loaded.result.reference
    assert max(len(codec.encode_json(item)) for item in outcome.events) < EVENT_BYTES_MAX
    sizes, first = [], outcome.events[0]
    state = build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    for place, envelope in enumerate(outcome.events):
        fold_history(state, [envelope])
        if outcome.types[place] == "frame.committed":
            sizes.append(len(snapshot.build_snapshot(state).state))
    middle = sizes[4:-4]
    assert max(middle) - min(middle) < STATE_GROWTH_BYTES_MAX, sizes
