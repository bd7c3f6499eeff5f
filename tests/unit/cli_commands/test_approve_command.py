"""`noetl approve` takes an approval, or an execution that asks for one alone."""

from typing import Any

import pytest
from tests.support.canned_api import serve_answers
from typer.testing import CliRunner

from noetl_cli.__main__ import app
from noetl_cli.errors import CliError, ExitCode

REFUSED = (404, {"detail": "nobody asks for approval 5", "hint": "noetl approvals lists them"})
TAKEN = (202, {"accepted": True, "repeated": False})


def asked(*approvals: tuple[str, str]) -> tuple[int, dict[str, Any]]:
    found = [
        {"approval_id": approval, "execution_id": execution, "step": f"ask{approval}"}
        for approval, execution in approvals
    ]
    return 200, {"approvals": found}


def test_an_execution_that_asks_for_one_approval_names_it() -> None:
    answers = {
        "POST /api/approvals/5": REFUSED,
        "GET /api/approvals": asked(("71", "5"), ("72", "6")),
        "POST /api/approvals/71": TAKEN,
    }
    with serve_answers(answers) as api:
        done = CliRunner().invoke(app, ["approve", "5", "--server", api.url])
    assert done.exit_code == ExitCode.OK
    assert done.stdout == "71 is decided: approve.\n"


@pytest.mark.parametrize(
    ("approvals", "said", "way_out"),
    [
        ([], "nobody asks for approval 5", "noetl approvals"),
        (
            [("71", "5"), ("72", "5")],
            "asks for 2 approvals: 71 (ask71), 72 (ask72)",
            "noetl approve 71",
        ),
    ],
)
def test_none_or_several_approvals_are_told(
    approvals: list[tuple[str, str]], said: str, way_out: str
) -> None:
    answers = {"POST /api/approvals/5": REFUSED, "GET /api/approvals": asked(*approvals)}
    with serve_answers(answers) as api:
        done = CliRunner().invoke(app, ["approve", "5", "--server", api.url])
    assert isinstance(done.exception, CliError)
    assert said in done.exception.message
    assert way_out in done.exception.way_out
    assert done.exception.exit_code == ExitCode.USAGE
    assert api.asked == ["POST /api/approvals/5", "GET /api/approvals?limit=1000"]


def test_a_full_list_does_not_tell_which_approval_is_the_only_one() -> None:
    many = asked(*((str(number), "6") for number in range(100, 1099)), ("71", "5"))
    answers = {"POST /api/approvals/5": REFUSED, "GET /api/approvals": many}
    with serve_answers(answers) as api:
        done = CliRunner().invoke(app, ["approve", "5", "--server", api.url])
    assert isinstance(done.exception, CliError)
    assert "1,000 approvals or more" in done.exception.message
    assert "noetl approvals" in done.exception.way_out
