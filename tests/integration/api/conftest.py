"""A planner's API, and the command line pointed at it."""

import sys
from collections.abc import Iterator

import pytest
from tests.support.api import ApiWorld
from tests.support.running_api import Noetl, Outcome, RunningApi

from noetl_cli import __main__ as command_line


@pytest.fixture
def running_api() -> Iterator[RunningApi]:
    opened = RunningApi(world=ApiWorld())
    opened.start()
    yield opened
    if opened.thread is not None and opened.thread.is_alive():
        opened.stop()


@pytest.fixture
def noetl(
    running_api: RunningApi,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Noetl:
    """The command line, pointed at the API, with a state folder of its own."""
    monkeypatch.setenv("NOETL_SERVER", running_api.url)
    monkeypatch.setenv("NOETL_HOME", str(tmp_path_factory.mktemp("home")))

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["noetl", *arguments])
        code = 0
        try:
            command_line.main()
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return Outcome(code=code, out=shown.out, err=shown.err)

    return run
