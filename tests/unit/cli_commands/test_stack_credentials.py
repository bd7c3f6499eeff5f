"""`noetl credential put --bucket` and `--target`: the keys of a stack stay on its machine."""

from pathlib import Path

import pytest
from tests.support.canned_api import CannedApi, serve_answers
from typer.testing import CliRunner, Result

from noetl_cli import settings
from noetl_cli.__main__ import app
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.state import StackPhase, StackState, write_state

PUT = "POST /api/credentials"
ANSWERS = {PUT: (201, {"name": "a", "version": 1, "type": "s3", "allowed_paths": []})}
OWN = ["--bucket", "--target"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackHome:
    monkeypatch.setenv(settings.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv("NOETL_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("NOETL_SERVER", raising=False)
    return StackHome(root=tmp_path)


def start_stack(home: StackHome, planner: CannedApi) -> None:
    urls = {
        "api": planner.url,
        "bucket": "http://key:word@127.0.0.1:9000/target",
        "target": "postgresql://noetl@127.0.0.1:5432/target",
    }
    state = StackState(
        phase=StackPhase.READY,
        home=str(home.root),
        supervisor_pid=1,
        supervisor_created=0.0,
        started_at="2026-01-01T00:00:00Z",
        urls=urls,
    )
    write_state(home, state)


def put_credential(option: str) -> Result:
    return CliRunner().invoke(app, ["credential", "put", "a", option])


@pytest.mark.parametrize("option", OWN)
@pytest.mark.parametrize("named_by", ["environment", "context"])
def test_another_planner_gets_no_keys_of_this_stack(
    home: StackHome, monkeypatch: pytest.MonkeyPatch, option: str, named_by: str
) -> None:
    with serve_answers(ANSWERS) as own, serve_answers(ANSWERS) as other:
        start_stack(home, own)
        if named_by == "environment":
            monkeypatch.setenv("NOETL_SERVER", other.url)
        else:
            added = ["context", "add", "prod", "--server", other.url, "--sign-in", "none", "--use"]
            assert CliRunner().invoke(app, added).exit_code == 0
        done = put_credential(option)
        assert isinstance(done.exception, CliError)
        assert done.exception.exit_code == ExitCode.USAGE
        assert other.url in done.exception.message
        assert str(home.root) in done.exception.message
        assert "noetl context use local" in done.exception.way_out
        assert not own.asked
        assert not other.asked


@pytest.mark.parametrize("option", OWN)
@pytest.mark.parametrize("is_named", [False, True])
def test_the_planner_of_the_stack_gets_them(
    home: StackHome, monkeypatch: pytest.MonkeyPatch, option: str, *, is_named: bool
) -> None:
    with serve_answers(ANSWERS) as own:
        start_stack(home, own)
        if is_named:
            with_user = own.url.replace("http://", "http://ann:word@")
            monkeypatch.setenv("NOETL_SERVER", f"{with_user}/")
        done = put_credential(option)
        assert done.exit_code == 0, done.exception
        assert own.asked == [PUT]
