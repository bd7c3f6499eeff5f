"""Where payloads are found changes nothing that a playbook can see."""

from collections import Counter
from pathlib import Path

import pytest
from tests.support.inprocess import ExecutionRecord, a_system, run

from noetl_chassis.observability import instruments, names
from noetl_contracts import codec

pytestmark = pytest.mark.timeout(180)

# Every shard's output is some kilobytes; the reduce reads all of them again.
PLAYBOOK = """
workflow:
  - step: rows
    tool: {kind: python, code: "return [{'i': i, 'pad': 'p' * 60} for i in range(400)]"}
    next: {arcs: [{step: each}]}
  - step: each
    loop:
      in: "{{ rows }}"
      iterator: part
      spec: {mode: fanout, max_in_flight: 4, fanout: {shard_size: 50}, frame: {process: frame}}
    tool:
      kind: python
      input: {part: "{{ iter.part }}"}
      code: "return [{'i': row['i'] * 2, 'pad': row['pad']} for row in part]"
    next: {arcs: [{step: total, when: "{{ fanin.status == 'complete' }}"}]}
  - step: total
    reduce: {from: each, iterator: parts, spec: {mode: tree, fan_in: 4}}
    tool:
      kind: python
      input: {parts: "{{ iter.parts }}"}
      code: |
        rows = [row for part in parts for row in part['data']]
        return rows
    set: {ctx.total: "{{ total | map(attribute='i') | sum }}", ctx.n: "{{ total | length }}"}
"""

OFF = {"NOETL_WORKER_SHARED_BYTES": "0", "NOETL_WORKER_PAYLOAD_MEMORY_BYTES": "0"}
SHARED = {"NOETL_WORKER_SHARED_BYTES": str(2**26)}


def disk(folder: Path) -> dict[str, str]:
    return {
        "NOETL_WORKER_DISK_CACHE_BYTES": str(2**26),
        "NOETL_WORKER_DISK_CACHE_DIRECTORY": str(folder / "cache"),
    }


def reads() -> Counter[tuple[str, str]]:
    """Reads by tier and outcome, as they would be scraped."""
    sums = instruments._get_counter(names.STORAGE_READS)._sums
    return Counter(
        {(dict(key)["tier"], dict(key)["outcome"]): int(item.total) for key, item in sums.items()}
    )


def results(execution_record: ExecutionRecord) -> str:
    """A checksum of all stored results, whatever the order in which they came."""
    digests = [
        event.event.result.reference.sha256
        for event in execution_record.events
        if getattr(event.event, "result", None) is not None
        and event.event.result.reference is not None
    ]
    assert len(digests) >= 8
    return codec.compute_checksum(sorted(digests))


async def test_a_run_gives_the_same_with_each_tier_on_or_off(tmp_path: Path) -> None:
    settings = {
        "none": OFF,
        "shared": {**OFF, **SHARED},
        "disk": {**OFF, **disk(tmp_path)},
        "both": {**OFF, **SHARED, **disk(tmp_path)},
        "memory": {**SHARED, **disk(tmp_path), "NOETL_WORKER_PAYLOAD_MEMORY_BYTES": str(2**26)},
    }
    seen: dict[str, str] = {}
    for name, given in settings.items():
        before = reads()
        async with a_system(tmp_path / name, **given) as opened:
            told = await run(opened, PLAYBOOK)
        assert told.state.ctx["total"] == 2 * sum(range(400))
        assert told.state.ctx["n"] == 400
        seen[name] = results(told)
        asked = reads() - before
        tiers = {tier for tier, outcome in asked if outcome == "hit"}
        wanted = {"none": "store", "both": "shared"}.get(name, name)
        assert wanted in tiers, asked
    assert len(set(seen.values())) == 1, seen


async def test_workers_of_a_node_find_most_of_a_fan_out_in_shared_memory(tmp_path: Path) -> None:
    before = reads()
    async with a_system(tmp_path / "one", **{**OFF, **SHARED}) as opened:
        await run(opened, PLAYBOOK)
    asked = reads() - before
    hits, misses = asked["shared", "hit"], asked["shared", "miss"]
    assert hits / (hits + misses) > 0.6, asked
