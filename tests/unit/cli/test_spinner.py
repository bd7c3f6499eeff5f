"""The line that shows what is waited for: on a terminal alone, and only where it lasts."""

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from noetl_cli import terminal_output
from noetl_cli.commands.history import replay
from noetl_cli.commands.playbooks import lint
from noetl_cli.terminal_output import show_progress, show_spinner

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: a, path: a}
workflow:
  - {step: start, tool: {kind: noop}}
"""


class Terminal(io.StringIO):
    """A standard error that a person sees, and that tells when something is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if "Reading" in self.getvalue():
            self.is_written.set()
        return count


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal_output, "SHOWN_AFTER_S", 0.0)
    return monkeypatch


def open_terminal(patch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of standard error; a fixture's would be replaced by pytest."""
    shown = Terminal()
    patch.setattr(sys, "stderr", shown)
    return shown


def test_what_lasts_is_shown_on_a_terminal(patch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(patch)
    with show_spinner("Reading [it]"):
        assert terminal.is_written.wait(60)
    assert "Reading [it]" in terminal.getvalue()
    assert sys.stderr is terminal


def test_what_ends_at_once_is_not_shown(patch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(patch)
    patch.setattr(terminal_output, "SHOWN_AFTER_S", 3600.0)
    with show_spinner("Reading"):
        pass
    assert terminal.getvalue() == ""


def test_what_is_known_of_the_end_is_shown_as_a_bar(patch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(patch)
    with show_progress("Reading") as show_done:
        show_done(20_000, 100_000)
        assert terminal.is_written.wait(60)
        show_done(40_000, 100_000)
    assert "40,000 of 100,000" in terminal.getvalue()


def test_nothing_is_shown_to_a_program(patch: pytest.MonkeyPatch) -> None:
    threads = set(threading.enumerate())
    terminal = open_terminal(patch)
    with show_progress("Reading", is_quiet=True) as show_done:
        show_done(1, 2)
        assert set(threading.enumerate()) <= threads
    assert terminal.getvalue() == ""
    pipe = io.StringIO()
    patch.setattr(sys, "stderr", pipe)
    with show_spinner("Reading"):
        assert set(threading.enumerate()) <= threads
    assert pipe.getvalue() == ""


def test_verbs_that_last_show_a_line(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    playbook = tmp_path / "a.yaml"
    playbook.write_text(PLAYBOOK)
    shown: list[str] = []

    @contextmanager
    def note(text: str, *, is_quiet: bool = False) -> Iterator[None]:
        shown.append("quiet" if is_quiet else text)
        yield

    patch.setattr(lint, "show_spinner", note)
    patch.setattr(replay, "show_progress", note)
    lint.lint([playbook], form=lint.LintFormat.TEXT)
    lint.lint([playbook], form=lint.LintFormat.JSON)
    assert shown == ["Checking 1 file", "quiet"]
    shown.clear()
    patch.setattr(replay.client, "open_client", lambda _, **__: nullcontext(Planner()))
    patch.setattr(replay.client, "get_owner", lambda _: {})
    replay.diff_positions("7", 1, server="http://planner")
    replay.diff_positions("7", 1, server="http://planner", as_json=True)
    assert shown == ["Replaying", "quiet"]


class Planner:
    """Answers as a planner whose execution has not changed."""

    def get(self, path: str, **_: object) -> dict[str, object]:
        assert path == "/api/replay/diff"
        return {"is_live": True, "before": 1, "after": 2, "tree": []}
