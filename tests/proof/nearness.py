"""How much of what the workers of a node read again comes from its shared memory, by their metrics."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from tests.proof import running
from tests.support import pft
from tests.support.pft import Fixture
from tests.support.stack import Stack, running_stack

from noetl_chassis.observability import names
from noetl_pft.workload import model
from noetl_pft.workload.model import Scale

RATIO_MIN = 0.6
ROWS, SHARD_ROWS = 20_000, 250
PATIENTS = 1_000
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
"""
FAN_OUT = (
    HEAD
    + f"""\
metadata: {{name: fan-out, path: proof/fan-out}}
workflow:
  - step: rows
    tool: {{kind: python, code: "return [{{'i': i, 'pad': 'p' * 60}} for i in range({ROWS})]"}}
    next: {{arcs: [{{step: each}}]}}
  - step: each
    loop:
      in: "{{{{ rows }}}}"
      iterator: part
      spec: {{mode: fanout, max_in_flight: 8, fanout: {{shard_size: {SHARD_ROWS}}}, frame: {{process: frame}}}}
    tool:
      kind: python
      input: {{part: "{{{{ iter.part }}}}"}}
      code: "return [{{'i': row['i'] * 2, 'pad': row['pad']}} for row in part]"
    next: {{arcs: [{{step: total, when: "{{{{ fanin.status == 'complete' }}}}"}}]}}
  - step: total
    reduce: {{from: each, iterator: parts, spec: {{mode: tree, fan_in: 8}}}}
    tool:
      kind: python
      input: {{parts: "{{{{ iter.parts }}}}"}}
      code: "return [row for part in parts for row in part['data']]"
    set: {{ctx.n: "{{{{ total | length }}}}", ctx.total: "{{{{ total | map(attribute='i') | sum }}}}"}}
"""
)
# What PFT's playbook B says, and how its frames of assessments are captured: every loop collects what its frames gave,
# a last task gives a frame's answer beside its own, and a reduce reads all of them before the facility goes on.
CAPTURED = (
    ("path: pft/b", "path: pft/b-captured"),
    ("        mode: cursor\n", "        mode: cursor\n        collect: all\n"),
    (
        "    next: {arcs: [{step: mark_assessments_done, on: loop.done}]}\n",
        """\
      - {name: captured, kind: noop, result: {answer: "{{ get.body }}"}}
    next: {arcs: [{step: captured, on: loop.done}]}

  - step: captured
    reduce: {from: fetch_assessments, iterator: parts, spec: {mode: tree, fan_in: 4}}
    tool:
      kind: python
      input: {parts: "{{ iter.parts }}"}
      code: |
        def counted(data):
            if 'pages' in data:
                return data
            bodies = [row['payload'] for frame in data for row in frame['answer']['rows']]
            return {'pages': len(bodies), 'mds': sum(one['data'][0]['mdsCount'] for one in bodies)}
        found = [counted(part['data']) for part in parts]
        return {key: sum(one[key] for one in found) for key in ('pages', 'mds')}
    set: {ctx.pages: "{{ captured.pages }}", ctx.mds: "{{ captured.mds }}"}
    next: {arcs: [{step: mark_assessments_done}]}
""",
    ),
)


def prove(folder: Path) -> dict[str, Any]:
    """Run a fan-out, PFT's frames with their answers captured, and PFT B itself."""
    with running_stack(folder / "stack", "--workers", "2") as stack, pft.fixture(folder) as served:
        pft.prepare(stack)
        found = {
            "fan-out and reduce": _asked(stack, lambda: _fan_out(stack)),
            "PFT, frames captured": _asked(stack, lambda: _captured(stack, served)),
            "PFT B": _asked(stack, lambda: _plain(stack, served)),
        }
    for name in ("fan-out and reduce", "PFT, frames captured"):
        assert found[name]["ratio"] > RATIO_MIN, found
    return {"runs": found}


def _fan_out(stack: Stack) -> None:
    ran = running.run(stack, running.register(stack, FAN_OUT))
    assert ran.variables == {"n": ROWS, "total": ROWS * (ROWS - 1)}, ran.variables


def _captured(stack: Stack, served: Fixture) -> None:
    text = (pft.PLAYBOOKS / "pft_b.yaml").read_text()
    for before, after in CAPTURED:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    running.register(stack, text)
    run = pft.start(stack, served, variant="b-captured", facilities=1, patients=PATIENTS)
    run.wait(running.PATIENCE_S)
    totals = model.count_totals(Scale(1, PATIENTS))
    variables = {name: run.status()["variables"][name] for name in ("pages", "mds")}
    assert variables == {"pages": totals.pages["assessments"], "mds": totals.mds}, variables


def _plain(stack: Stack, served: Fixture) -> None:
    run = pft.start(stack, served, variant="b", facilities=1, patients=PATIENTS)
    run.wait(running.PATIENCE_S)
    run.verify()


def _asked(stack: Stack, play: Any) -> dict[str, Any]:
    """Run something and say what the workers' tiers were asked meanwhile."""
    before = _reads(stack)
    play()
    asked = _reads(stack) - before
    hits, misses = asked["shared", "hit"], asked["shared", "miss"]
    return {
        "ratio": round(hits / (hits + misses), 3) if hits + misses else None,
        **{f"{tier}_{outcome}": count for (tier, outcome), count in sorted(asked.items())},
    }


def _reads(stack: Stack) -> Counter[tuple[str, str]]:
    """Sum `noetl_storage_reads_total` of all workers, as anybody would scrape it."""
    counter: Counter[tuple[str, str]] = Counter()
    for name in stack.names("worker"):
        url = stack.state["processes"][name]["health_url"]
        for line in httpx.get(f"{url}/metrics", timeout=10).text.splitlines():
            if line.startswith(names.STORAGE_READS.name):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                counter[labels["tier"], labels["outcome"]] += int(float(line.rsplit(" ", 1)[1]))
    return counter


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    columns = ("shared_hit", "shared_miss", "memory_hit", "memory_miss", "store_hit")
    rows = "\n".join(
        f"| {name} | {'none asked' if item['ratio'] is None else item['ratio']} | "
        + " | ".join(str(item.get(column, 0)) for column in columns)
        + " |"
        for name, item in found["runs"].items()
    )
    return f"""`noetl_storage_reads_total` of two workers on one node with default settings, over three runs: {ROWS:,} rows fanned out in
shards of {SHARD_ROWS} and reduced by a tree; PFT B for {PATIENTS:,} patients with frame capture on (`collect: all` on its cursor loops),
where a reduce reads the answers of all frames of assessments again and finds the pages and MDS ids that the model says; and
PFT B as it is, whose frames hand their rows and answers on inside one worker and read no payload of another. A worker's own memory is asked first;
the ratio is that of shared memory alone, and has to be above {RATIO_MIN} where it is asked.

| run | hit ratio of shared memory | its hits | its misses | hits in memory | misses in memory | reads of the store |
|---|---:|---:|---:|---:|---:|---:|
{rows}
"""
