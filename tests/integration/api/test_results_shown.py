"""The result of a run on screen and in files: tables, trees, exact types, and what was cut."""

import csv
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from pyarrow import parquet
from tests.support.api import beginning
from tests.support.running_api import Noetl, RunningApi
from tests.support.storage import an_execution

from noetl_cli.planner import step_result
from noetl_cli.planner.step_result import StepResult
from noetl_cli.terminal import result_text
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.ids import CommandId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shown, path: demo/shown}
workflow:
"""
READ = """\
  - step: read
    tool:
      kind: duckdb
      database: ":memory:"
      query: >
        SELECT 9007199254740993 + i AS id, (i + 0.10)::decimal(30, 2) AS amount,
        12345678901234567890.12::decimal(30, 2) AS large, 'n' || i AS name
        FROM range(25000) t(i)
    next: {arcs: [{step: end}]}
  - step: end
"""
ROWS = HEAD + READ
FIELDS = (
    HEAD
    + """\
  - step: count
    tool:
      kind: python
      code: "result = {'total': 5, 'inner': {'names': ['a', 'b']}, 'text': 'x' * 200 + chr(27)}"
"""
)
NOTHING = HEAD + "  - step: end\n"
FAILING = HEAD + "  - {step: start, tool: {kind: python, code: \"raise ValueError('bad')\"}}\n"


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    return tmp_path / "shown.yaml"


def test_rows_are_a_table_of_the_last_step_that_gave_some(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(ROWS)
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 0, outcome
    _, _, table = outcome.out.partition("result of step 'read'")
    lines = [line.split() for line in table.splitlines() if line.strip()]
    assert lines[0] == ["id", "amount", "large", "name"]
    assert lines[1] == ["int64", "decimal128(30,", "2)", "decimal128(30,", "2)", "string"]
    assert lines[2] == ["9007199254740993", "0.1", "12345678901234567890.12", "n0"]
    assert len(lines) == 2 + 20
    assert "20 of 25,000 rows are shown" in outcome.err


def test_fields_are_a_tree_and_long_ones_are_cut_and_harmless(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(FIELDS)
    outcome = noetl("run", str(playbook), "-r", "local")
    assert "total: 5" in outcome.out
    assert "1: b" in outcome.out
    assert "x" * 59 + "…" in outcome.out
    assert "\x1b" not in outcome.out
    assert "are cut" in outcome.err


def test_json_is_all_that_stands_on_standard_output(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(ROWS)
    outcome = noetl("run", str(playbook), "-r", "local", "--output", "json")
    found = msgspec.json.decode(outcome.out)
    assert len(found["rows"]) == 25_000
    assert found["rows"][-1]["id"] == 9007199254740993 + 24_999
    assert found["types"][0] == "int64"
    assert "COMPLETED" in outcome.err


@pytest.mark.parametrize("suffix", ["json", "csv", "parquet"])
def test_a_file_holds_every_row_and_digit(noetl: Noetl, playbook: Path, suffix: str) -> None:
    playbook.write_text(ROWS)
    file = playbook.with_suffix(f".{suffix}")
    outcome = noetl("run", str(playbook), "-r", "local", "--output", "none", "--save", str(file))
    assert outcome.code == 0, outcome
    assert "result of step" not in outcome.out
    assert str(file) in outcome.err
    match suffix:
        case "json":
            rows = msgspec.json.decode(file.read_bytes())["rows"]
        case "csv":
            with file.open(newline="") as opened:
                rows = list(csv.DictReader(opened))
        case _:
            rows = parquet.read_table(file).to_pylist()
            assert rows[0]["large"] == Decimal("12345678901234567890.12")
    assert len(rows) == 25_000
    assert int(rows[-1]["id"]) == 9007199254740993 + 24_999
    assert Decimal(str(rows[-1]["amount"])) == Decimal("24999.10")
    assert str(rows[-1]["large"]) == "12345678901234567890.12"


def test_what_is_no_table_is_not_saved_as_one(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(FIELDS)
    file = playbook.with_suffix(".csv")
    outcome = noetl("run", str(playbook), "-r", "local", "--save", str(file))
    assert outcome.code == 2
    assert "no list of rows" in outcome.err
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--save", "a.xlsx"), ".json, .csv, .parquet"),
        (("--json", "--output", "table"), "one of the two"),
        (("--detach", "--save", "a.json"), "--detach"),
    ],
)
def test_what_excludes_each_other_is_refused_before_the_run(
    noetl: Noetl, playbook: Path, words: tuple[str, ...], said: str
) -> None:
    playbook.write_text(FIELDS)
    outcome = noetl("run", str(playbook), "-r", "local", *words)
    assert outcome.code == 2
    assert said in outcome.out + outcome.err
    assert "COMPLETED" not in outcome.out + outcome.err


def test_a_run_without_a_result_shows_none(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(NOTHING)
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1].startswith("COMPLETED")
    assert "result of" not in outcome.err
    assert "not shown" not in outcome.err
    asked = noetl("run", str(playbook), "-r", "local", "--output", "json")
    assert asked.code == 1
    assert "has a result" in asked.err


def test_a_failed_run_shows_its_error_and_no_result(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(FAILING)
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 1
    assert "bad" in outcome.err
    assert "result of step" not in outcome.out


def of_rows(count: int) -> ResultEnvelope:
    raw = {"columns": ["n"], "rows": [{"n": number} for number in range(count)]}
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="python", raw=raw)}, last="t")
    return ResultEnvelope(
        status="ok", context=result_envelope.build_inline_context(pipeline_result)
    )


def test_a_planner_is_asked_for_the_last_result_or_a_named_one(
    noetl: Noetl, running_api: RunningApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    execution_id = an_execution()
    calls = [
        CallDone(step=step, run_id=RunId("11"), command_id=CommandId("21"), result=of_rows(count))
        for step, count in (("start", 7), ("a/b", 5))
    ]
    running_api.append(execution_id, [*beginning(), *calls])
    running_api.call(running_api.world.project, execution_id)
    last = noetl("result", execution_id)
    assert last.code == 0, last
    assert "step 'a/b'" in last.out
    assert "It lies in: ledger" in last.err
    # Windows are laid behind each other.
    monkeypatch.setattr(step_result, "WINDOW_ROWS", 3)
    named = noetl("result", execution_id, "start", "--output", "json")
    assert msgspec.json.decode(named.out)["rows"] == [{"n": number} for number in range(7)]
    file = tmp_path / "rows.csv"
    saved = noetl("result", execution_id, "start", "--output", "none", "--save", str(file))
    assert saved.code == 0
    assert file.read_text().split() == ["n", *map(str, range(7))]
    assert noetl("result", execution_id, "no such step").code == 2


def test_the_arrow_schema_of_a_result_is_said_in_one_line() -> None:
    columns = [
        {"name": "id\x1b", "type": "int64", "nullable": False},
        {"name": "amount", "type": "double", "nullable": True},
    ]
    schema = {"columns": columns, "total": 14}
    result = StepResult(step="s", data=[], error=None, total=0, tier="disk", schema=schema)
    line = result_text.format_place(result)
    assert line.startswith("It lies in: disk, as Arrow: id")
    assert line.endswith("int64 not null, amount double, and 12 more")
    assert "\x1b" not in line
    parquet = structs.replace(result, media_type="application/vnd.apache.parquet")
    assert result_text.format_place(parquet).startswith("It lies in: disk, as Parquet: id")


def test_a_result_that_is_not_there_is_refused(noetl: Noetl) -> None:
    unknown = noetl("result", "1")
    assert unknown.code == 2
    assert "execution" in unknown.err
    refused = noetl("result", "1", "step", "--save", "a.txt")
    assert refused.code == 2
    assert ".parquet" in refused.err
