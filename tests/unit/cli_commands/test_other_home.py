"""Who looks for a stack in the wrong folder is told which it was, and how to name another."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from noetl_cli import settings
from noetl_cli.__main__ import app
from noetl_cli.errors import CliError
from noetl_cli.stack import doctor
from noetl_cli.stack.home_folder.home import StackHome


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a stack, which the environment names."""
    folder = tmp_path / "none"
    folder.mkdir()
    monkeypatch.setenv(settings.HOME_VARIABLE, str(folder))
    monkeypatch.delenv("NOETL_SERVER", raising=False)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["credential", "put", "a", "--target"],
        ["credential", "put", "a", "--bucket"],
        ["logs"],
        ["payloads", "gc"],
    ],
)
def test_a_verb_names_the_folder_and_the_variable(home: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, CliError)
    assert str(home) in done.exception.message
    assert "NOETL_HOME=FOLDER" in done.exception.way_out


def test_down_names_the_folder_and_the_option(home: Path) -> None:
    done = CliRunner().invoke(app, ["down"])
    assert done.stdout == f"Nothing runs in {home}.\n"
    assert "NOETL_HOME=FOLDER or --dir FOLDER" in done.stderr


def test_doctor_names_the_folder_and_the_option(home: Path) -> None:
    checks = doctor.check_stack(StackHome(root=home), environ={})
    (check,) = [item for item in checks if item.name == "stack"]
    assert check.found == f"never started in {home}"
    assert "NOETL_HOME=FOLDER or --dir FOLDER" in check.way_out


@pytest.mark.parametrize(
    ("folder", "is_found"), [("/h/.local/state/noetl", True), ("/srv/noetl", False)]
)
def test_up_tells_how_to_reach_a_stack_that_others_do_not_find(
    folder: str, *, is_found: bool
) -> None:
    environ = {"HOME": "/h", settings.HOME_VARIABLE: folder}
    assert settings.is_found_without_name(Path(folder), environ=environ) == is_found
