"""The data tools in one process: results go from step to step, and through the planner."""

from pathlib import Path

import msgspec
from tests.support.running_api import Noetl

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: data, path: demo/data}
workflow:
  - step: start
    tool:
      kind: python
      code: "return {'columns': ['i', 'who'], 'rows': [[n, f'w{n % 3}'] for n in range(900)]}"
      output: {format: parquet, store: {compression: zstd}}
    next: {arcs: [{step: group, when: "{{ start.rows[899][0] == 899 }}"}]}
  - step: group
    tool:
      kind: duckdb
      inputs: {o: "{{ start }}"}
      queries:
        - CREATE TABLE g AS SELECT who, sum(i)::bigint AS s FROM o GROUP BY who
        - FROM g ORDER BY who
      output: {format: arrow, inline_max_bytes: 0, store: {compression: gzip}}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ group.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop, result: {who: "{{ iter.row.who }}"}}
    next: {arcs: [{step: move}]}
  - step: move
    tool:
      kind: transfer
      source: {type: duckdb, query: "FROM g ORDER BY who"}
      target: {type: file, uri: out/groups.csv, mode: replace}
    next: {arcs: [{step: end}]}
  - step: end
    tool:
      - {name: file, kind: artifact, action: get, uri: out/groups.csv}
      - {name: whole, kind: artifact, action: get, result_ref: "{{ start._ref }}"}
      - name: see
        kind: noop
        result:
          sums: "{{ file.rows | map(attribute='s') | join(',') }}"
          count: "{{ whole.rows | length }}"
          names: "{{ each.results | map(attribute='who') | sort | join(',') }}"
          store: "{{ start._store }}"
          moved: "{{ move.rows_transferred }}"
"""


def test_rows_go_from_tool_to_tool(noetl: Noetl, tmp_path: Path) -> None:
    playbook = tmp_path / "data.yaml"
    playbook.write_text(TEXT)
    outcome = noetl("run", str(playbook), "-r", "local", "--json")
    events = [msgspec.json.decode(line) for line in outcome.out.splitlines()]
    assert events[-1]["event_type"] == "playbook.completed", outcome.out[-2000:]
    done = [
        event
        for event in events
        if event["event_type"] == "call.done" and event["node_name"] == "end"
    ]
    about = done[-1]["result"]["context"]
    assert about["fields"] == {
        "sums": "134550,134850,135150",
        "count": 900,
        "names": "w0,w1,w2",
        "store": "disk",
        "moved": 3,
    }
