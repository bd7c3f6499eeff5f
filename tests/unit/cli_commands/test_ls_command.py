"""`noetl ls`: what began lately, without the tests of credentials unless they are wanted."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.canned_api import serve_answers
from typer.testing import CliRunner, Result

from noetl_chassis.identity import read_minted_at_ms
from noetl_cli.__main__ import app
from noetl_cli.commands.options import parse_duration
from noetl_cli.errors import CliError, ExitCode
from noetl_contracts.credentials import CREDENTIAL_TEST_PATH


def an_execution(number: int, path: str, *, hours: float) -> dict[str, Any]:
    return {
        "execution_id": str(number),
        "path": path,
        "version": -1,
        "draft": True,
        "status": "COMPLETED",
        "current_step": None,
        "started_at": (datetime.now(UTC) - timedelta(hours=hours)).isoformat(),
        "duration": 1.0,
    }


FOUND = [
    an_execution(5, "demo/older-name", hours=5),
    an_execution(4, "demo/new", hours=0.1),
    an_execution(3, CREDENTIAL_TEST_PATH, hours=0.2),
    an_execution(2, "demo/old", hours=5),
]


def listed(*options: str) -> Result:
    answers = {"GET /api/executions": (200, {"executions": FOUND, "next_before": None})}
    with serve_answers(answers) as api:
        return CliRunner().invoke(app, ["ls", "--server", api.url, *options])


def test_tests_of_credentials_are_left_out_and_counted() -> None:
    done = listed()
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["5", "4", "2"]
    assert "1 test of a credential is left out: --all lists them." in done.stderr


@pytest.mark.parametrize("option", [["--all"], ["--path", CREDENTIAL_TEST_PATH]])
def test_tests_of_credentials_are_listed_when_they_are_wanted(option: list[str]) -> None:
    done = listed(*option)
    assert CREDENTIAL_TEST_PATH in done.stdout
    assert not done.stderr


def test_the_server_is_asked_for_what_began_lately() -> None:
    answers = {"GET /api/executions": (200, {"executions": FOUND, "next_before": None})}
    with serve_answers(answers) as api:
        CliRunner().invoke(app, ["ls", "--server", api.url, "--since", "1h", "--all"])
    (asked,) = api.asked
    since = datetime.fromisoformat(parse_qs(urlsplit(asked).query)["since"][0])
    assert timedelta(minutes=59) < datetime.now(UTC) - since < timedelta(hours=2)


def test_executions_of_one_day_are_asked_for_by_its_date() -> None:
    answers = {"GET /api/executions": (200, {"executions": FOUND, "next_before": None})}
    day = ["--since", "2026-01-30", "--until", "2026-01-31T00:00+00:00"]
    with serve_answers(answers) as api:
        CliRunner().invoke(app, ["ls", "--server", api.url, "--all", *day])
    (asked,) = api.asked
    query = parse_qs(urlsplit(asked).query)
    assert query["since"] == ["2026-01-30T00:00:00+00:00"]
    before = read_minted_at_ms(query["before"][0])
    assert before == datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_what_is_no_time_is_refused(option: str) -> None:
    done = listed(option, "yesterday")
    assert isinstance(done.exception, CliError)
    assert done.exception.exit_code == ExitCode.USAGE
    assert "'yesterday' is no length of time, no day" in done.exception.message


@pytest.mark.parametrize("option", ["--since", "--until"])
@pytest.mark.parametrize("number", ["20260131", "2026", "90", "1.5"])
def test_a_number_without_a_unit_is_refused(option: str, number: str) -> None:
    done = listed(option, number)
    assert isinstance(done.exception, CliError)
    assert done.exception.exit_code == ExitCode.USAGE
    assert "12h, 7d, 20" in done.exception.way_out


@pytest.mark.parametrize("number", ["20260131", "2026", "90"])
def test_a_length_of_time_has_a_unit(number: str) -> None:
    with pytest.raises(CliError, match=f"--since '{number}' is no length of time") as refused:
        parse_duration("--since", number)
    assert refused.value.exit_code == ExitCode.USAGE
    assert "90s" in refused.value.way_out
    assert parse_duration("--since", "90s") == timedelta(seconds=90)
