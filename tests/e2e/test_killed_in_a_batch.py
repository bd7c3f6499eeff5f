"""A stream of Spark whose worker is killed between the commit of a batch and its end."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command_line import CommandLine
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(900)

# The kill costs the start of another Spark session.
SESSIONS_S = 400.0

FILES, ROWS = 4, 50
STREAM = """\
workflow:
  - step: follow
    tool:
      kind: spark
      mode: stream
      inputs: {o: {path: "noetl://files/NAME/in/", format: ndjson, schema: "id BIGINT, n BIGINT"}}
      sql: "SELECT id, n FROM o"
      follow: {checkpoint: NAME, files_per_batch: 1}
      output: {path: "noetl://files/NAME/out/", mode: append}
    set: {ctx.stream: "{{ output.data.stream }}", ctx.rows: "{{ output.data.row_count }}"}
"""
READ = """\
workflow:
  - step: read
    tool:
      kind: duckdb
      inputs: {o: {path: "noetl://files/NAME/out/"}}
      query: "SELECT count(*) AS n, count(DISTINCT id) AS ids, sum(n) AS total FROM o"
    set: {ctx.found: "{{ output.data.rows[0] }}"}
"""
PUT = """\
workflow:
  - step: put
    tool: {kind: artifact, action: put, uri: "noetl://files/NAME/in/first.ndjson", data: "x"}
"""


def find_folder(stack: Stack, name: str) -> Path:
    """The folder of the organization's files on the disk of the stack."""
    (found,) = stack.folder.rglob(f"{name}/in/first.ndjson")
    return found.parent


def put_rows(folder: Path, number: int) -> None:
    """Let a file arrive whole."""
    ids = range(number * ROWS, number * ROWS + ROWS)
    lines = "".join(json.dumps({"id": item, "n": 1}) + "\n" for item in ids)
    part = folder / f".part-{number}"
    part.write_text(lines)
    part.rename(folder / f"f{number:02d}.ndjson")


def run_to_end(command_line: CommandLine, name: str, body: str) -> Any:
    """Run a playbook; return its variables."""
    execution_id = command_line.begin(command_line.write(name, body))
    return command_line.wait_for(execution_id, "COMPLETED")["variables"]


def test_a_killed_worker_loses_no_row_of_a_stream_and_repeats_none(
    command_line: CommandLine, stack: Stack
) -> None:
    name = "killed-in-a-batch"
    run_to_end(command_line, "put", PUT.replace("NAME", name))
    folder = find_folder(stack, name)
    (folder / "first.ndjson").unlink()
    for number in range(FILES):
        put_rows(folder, number)
    execution_id = command_line.begin(command_line.write("follow", STREAM.replace("NAME", name)))
    out = folder.parent / "out" / "_noetl" / "commits"
    wait_until(
        lambda: out.exists() and len(list(out.iterdir())) >= 2,
        timeout_s=SESSIONS_S,
        what="two batches are written",
    )
    stack.kill("worker-1")
    wait_until(
        lambda: command_line.status(execution_id)["status"] == "COMPLETED",
        timeout_s=SESSIONS_S,
        what="the stream ends",
    )
    shown = command_line.status(execution_id)
    assert "command.reissued" in command_line.kinds(execution_id)
    variables = shown["variables"]
    assert variables["rows"] == FILES * ROWS
    assert variables["stream"]["batch_count"] == FILES
    found = run_to_end(command_line, "read", READ.replace("NAME", name))["found"]
    assert found == {"n": FILES * ROWS, "ids": FILES * ROWS, "total": FILES * ROWS}
