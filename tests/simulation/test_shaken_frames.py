# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Chunks, shards and reduces over a broker that loses, delays, reorders and repeats by seed."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.simulation.test_one_process import SETTINGS, shaken
from tests.support.inprocess import a_system, begin, ended

pytestmark = pytest.mark.timeout(180)

PLAYBOOK = """
workload: {numbers: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}
workflow:
  - step: chunks
    loop: {in: "{{ workload.numbers }}", iterator: n,
           spec: {mode: chunked, chunk_size: 3, max_in_flight: 2, frame: {max_attempts: 100, lease_seconds: 1}}}
    tool: {kind: noop, result: "{{ iter.n * iter.n }}"}
    set: {ctx.squares: "{{ chunks.results }}"}
    next: {arcs: [{step: shards}]}
  - step: shards
    loop: {in: "{{ workload.numbers }}", iterator: n,
           spec: {mode: fanout, max_in_flight: 4, fanout: {shard_size: 2, max_shard_retries: 100}, frame: {process: frame, lease_seconds: 1}}}
    tool: {kind: noop, result: "{{ iter.n | sum }}"}
    set: {ctx.sums: "{{ shards.results }}"}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: shards, iterator: parts, spec: {mode: tree, fan_in: 2, frame: {max_attempts: 100, lease_seconds: 1}}}
    tool: {kind: noop, result: "{{ iter.parts | map(attribute='data') | sum }}"}
    set: {ctx.total: "{{ total }}"}
"""
RUNS_MAX = 10
CTX = {
    "squares": [number * number for number in range(1, 12)],
    "sums": [3, 7, 11, 15, 19, 11],
    "total": 66,
}


@pytest.mark.parametrize("seed", range(3))
async def test_shaken_frames_end_in_the_same_state_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    brokers = shaken(monkeypatch, seed)
    async with a_system(tmp_path, **SETTINGS) as opened:
        told = [await ended(opened, await begin(opened, PLAYBOOK)) for _ in range(2)]
        # What a seed loses is in the order of messages, and that is the machine's.
        while len(told) < RUNS_MAX and not any(item.of("frame.abandoned") for item in told):
            told.append(await ended(opened, await begin(opened, PLAYBOOK)))
    for item in told:
        assert item.state.ctx == CTX, item.types[-5:]
        counted = Counter(item.types)
        assert counted["frame.committed"] == 4 + 6 + (3 + 2 + 1)
        assert counted["stage.closed"] == 3
        assert counted["loop.fanin.completed"] == 1
        rows_by_frame = defaultdict(set)
        for event in item.of("frame.dispatched"):
            rows_by_frame[event.frame_id].add((event.start, event.row_count))
        assert all(len(rows) == 1 for rows in rows_by_frame.values())
    assert min(brokers[0].shaken[what] for what in ("repeated", "delayed", "lost")) > 0
    assert any(item.of("frame.abandoned") for item in told)
