"""`noetl plan` of a file: a tree, JSON and a flow chart, with inputs on the command line."""

from pathlib import Path

import msgspec
import pytest
from tests.support.playbooks import document
from typer.testing import CliRunner, Result

from noetl_cli.__main__ import app
from noetl_cli.errors import CliError, ExitCode
from noetl_playbook.outline import Outline

PLAYBOOK = document(
    """
    - step: split
      tool: {kind: noop}
      next: {spec: {mode: inclusive}, arcs: [{step: each, when: '{{ "a" < "b" }}'}, {step: lone}]}
    - step: each
      loop: {in: "{{ workload.ids }}", iterator: i, spec: {mode: chunked, chunk_size: 2}}
      tool: {kind: postgres, auth: db, query: SELECT 1}
    - {step: lone, tool: {kind: http, url: u}, next: {arcs: [{step: lone}, {step: end}]}}
    - {step: end, tool: {kind: noop}}
    """,
    root="workload: {ids: [1, 2, 3]}\n",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(PLAYBOOK)
    return path


def planned(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_the_tree_shows_steps_arcs_stages_and_needs(file: Path) -> None:
    done = planned(file)
    assert done.exit_code == ExitCode.OK
    assert done.stdout.splitlines() == [
        "test: 4 steps, begins at split",
        "split: noop",
        '  -> each [when {{ "a" < "b" }}]: postgres',
        "       loop: chunked, 1 in flight, 3 units, 2 frames, frame of 2 rows, lease 120 s",
        "       credentials: db",
        "    -> end [at the end]: noop (join)",
        "  -> lone: http (join, cycle)",
        "    -> lone (above)",
        "    -> end (above)",
        "",
        "tools: http, noop, postgres",
        "credentials: db",
        "cycle: lone -> lone",
    ]


def test_inputs_change_the_estimate(file: Path) -> None:
    done = planned(file, "--set-json", "ids=[1,2,3,4,5,6,7]", "--json")
    outline = msgspec.json.decode(done.stdout, type=Outline)
    stage = outline.steps[1].stage
    assert stage is not None
    assert (stage.units, stage.frames) == (7, 4)


def test_the_flow_chart_spells_what_mermaid_would_read(file: Path) -> None:
    lines = planned(file, "--format", "mermaid").stdout.splitlines()
    assert lines == [
        "flowchart TD",
        '  s0["split<br/>noop"]',
        '  s1{{"each<br/>postgres"}}',
        '  s2["lone<br/>http"]',
        '  s3["end<br/>noop"]',
        '  s0 -->|"{{ #quot;a#quot; #lt; #quot;b#quot; }}"| s1',
        "  s0 --> s2",
        "  s1 -.-> s3",
        "  s2 --> s2",
        "  s2 --> s3",
    ]


def test_a_wrong_playbook_has_no_plan(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(document("- {step: a, tool: {kind: htp}}"))
    done = planned(file)
    assert isinstance(done.exception, CliError)
    assert done.exception.exit_code == ExitCode.USAGE
