"""The history of a run in this process, read after it has ended."""

import os
from pathlib import Path

import msgspec
import pytest
from tests.support.running_api import Noetl, Outcome

from noetl_cli.local import history

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: kept, path: demo/kept}
workflow:
  - step: first
    tool: {kind: python, code: "result = {'n': 1}"}
    next: {arcs: [{step: second}]}
  - step: second
    tool: {kind: duckdb, query: SELECT x FROM missing_table}
"""


@pytest.fixture
def failed(noetl: Noetl, tmp_path: Path) -> Outcome:
    file = tmp_path / "kept.yaml"
    file.write_text(PLAYBOOK)
    outcome = noetl("run", str(file), "-r", "local")
    assert outcome.code == 1
    return outcome


def way_out(outcome: Outcome) -> list[str]:
    """The command that a failed run names."""
    (line,) = [line for line in outcome.err.splitlines() if "history: noetl " in line]
    return line.partition("history: noetl ")[2].split()


def test_the_command_that_a_failure_names_shows_its_events(noetl: Noetl, failed: Outcome) -> None:
    shown = noetl(*way_out(failed))
    assert shown.code == 0, shown
    assert "playbook.initialized" in shown.out.splitlines()[0]
    assert "playbook.failed" in shown.out.splitlines()[-1]
    assert "missing_table" in shown.out
    events = [
        msgspec.json.decode(line) for line in noetl(*way_out(failed), "--json").out.splitlines()
    ]
    assert [event["version"] for event in events] == list(range(1, len(events) + 1))
    rest = noetl(*way_out(failed), "--since", str(len(events) - 1))
    assert len(rest.out.splitlines()) == 1
    # Who names a server means that one.
    elsewhere = noetl(*way_out(failed), "--server", "http://127.0.0.1:1")
    assert elsewhere.code == 1


def test_it_is_replayed_to_any_position(noetl: Noetl, failed: Outcome) -> None:
    execution_id = way_out(failed)[1]
    end = msgspec.json.decode(noetl("replay", "state", execution_id, "--json").out)
    assert end["status"] == "FAILED"
    assert end["version"] == end["head_version"] == end["events_folded"]
    early = msgspec.json.decode(noetl("replay", "state", execution_id, "--at", "2", "--json").out)
    assert (early["status"], early["version"]) == ("RUNNING", 2)
    assert early["state_checksum"] != end["state_checksum"]
    event = noetl("replay", "state", execution_id, "--event", early["event_id"], "--json")
    assert msgspec.json.decode(event.out)["version"] == 2
    diff = noetl("replay", "diff", execution_id, "2")
    assert diff.code == 0
    assert "FAILED" in diff.out
    too_far = noetl("replay", "state", execution_id, "--at", "999")
    assert too_far.code == 2
    assert f"1 to {end['head_version']}" in too_far.err
    unproven = noetl("replay", "verify", execution_id)
    assert unproven.code == 2
    assert "-r local" in unproven.err
    for verb in ("status", "logs", "result"):
        unknown = noetl(verb, execution_id)
        assert unknown.code == 2
        assert "ran with -r local: no planner knows it" in unknown.err
        assert f"noetl events {execution_id}" in unknown.err


def test_the_oldest_are_removed_when_there_are_many(tmp_path: Path) -> None:
    for number in range(history.RUNS_MAX + 5):
        file = tmp_path / f"{number}{history.SUFFIX}"
        file.write_bytes(b"")
        os.utime(file, (number, number))
    writer = history.HistoryWriter(tmp_path, "1000")
    writer.close()
    left = {int(file.stem) for file in tmp_path.iterdir()}
    assert len(left) == history.RUNS_MAX
    assert left == {*range(6, history.RUNS_MAX + 5), 1000}
    assert (tmp_path / "1000.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_history_that_is_too_long_says_where_it_ends(
    noetl: Noetl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(history, "RUN_BYTES_MAX", 3000)
    file = tmp_path / "kept.yaml"
    file.write_text(PLAYBOOK)
    outcome = noetl("run", str(file), "-r", "local")
    shown = noetl(*way_out(outcome))
    assert shown.code == 1
    last = int(shown.out.splitlines()[-1].split()[0]) if shown.out else 0
    assert f"up to version {last}" in shown.err


def test_a_run_whose_history_cannot_be_kept_says_so_and_runs(
    noetl: Noetl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, where a folder should be")
    monkeypatch.setenv("NOETL_HOME", str(blocked))
    file = tmp_path / "kept.yaml"
    file.write_text(PLAYBOOK)
    outcome = noetl("run", str(file), "-r", "local")
    assert outcome.code == 1
    assert "is not kept" in outcome.err
    assert "history: noetl" not in outcome.err
