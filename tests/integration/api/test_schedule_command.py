"""`noetl schedule` against a planner's API."""

from pathlib import Path

from tests.support.api import PLAYBOOK
from tests.support.running_api import Noetl

from noetl_contracts import codec


def test_a_schedule_is_put_shown_held_run_and_removed(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    assert noetl("register", str(file)).code == 0
    asked = ("daily", "demo/hello", "--cron", "30 6 * * *", "--timezone", "Europe/Berlin")
    put = noetl("schedule", "put", *asked, "--set", "who=you", "--overlap", "skip")
    assert put.code == 0, put.err
    assert "daily: demo/hello at 30 6 * * * (Europe/Berlin), next 20" in put.out
    shown = codec.decode_json(noetl("schedule", "show", "daily", "--json").out)
    assert (shown["overlap"], shown["workload"], len(shown["next"])) == ("skip", {"who": "you"}, 5)
    assert len(noetl("schedule", "show", "daily", "-n", "3").out.splitlines()) == 4
    assert "paused" in noetl("schedule", "pause", "daily").out
    assert "paused" in noetl("schedule", "ls").out
    assert "next 20" in noetl("schedule", "resume", "daily").out
    assert noetl("schedule", "run", "daily").out.strip().isdigit()
    assert "is removed" in noetl("schedule", "rm", "daily").out
    assert "No schedules" in noetl("schedule", "ls").err


def test_what_is_wrong_is_said_with_a_way_out(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    noetl("register", str(file))
    wrong = noetl("schedule", "put", "daily", "demo/hello", "--cron", "99 * * * *")
    assert (wrong.code, "bad minute" in wrong.err, "five fields" in wrong.err) == (2, True, True)
    assert noetl("schedule", "show", "daily").code == 2
