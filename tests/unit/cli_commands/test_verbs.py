"""The verbs of the command line: all of them are there, and one is loaded without the others."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

import noetl_cli
from noetl_cli.__main__ import app
from noetl_cli.verbs import NAMES, Verbs

COMMANDS = Path(str(noetl_cli.__file__)).parent / "commands"
# `options` are what verbs share, `audit_run` is a verb below `audit`.
NO_VERBS = {"__init__", "options", "audit_run"}
LOADED = """
import sys
from noetl_cli.verbs import Verbs
Verbs()[sys.argv[1]]
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_every_module_of_a_verb_is_listed() -> None:
    modules = {file.stem for file in COMMANDS.glob("*.py")} - NO_VERBS
    assert modules == set(NAMES) == set(get_group(app).commands)


@pytest.mark.parametrize("name", NAMES)
def test_a_verb_is_called_as_it_is_listed_and_says_what_it_does(name: str) -> None:
    command = Verbs()[name]
    assert command.name == name
    assert command.get_short_help_str()


def test_a_word_that_is_no_verb_is_answered_with_the_nearest() -> None:
    with pytest.raises(KeyError):
        Verbs()["statsu"]
    told = CliRunner().invoke(app, ["statsu"])
    assert told.exit_code == 2
    assert "'status'" in told.output


@pytest.mark.parametrize("name", ["run", "down"])
def test_a_verb_loads_neither_services_nor_what_they_need(name: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", LOADED, name], check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "noetl_cli" in loaded
    assert not loaded & {"litestar", "pyarrow", "nats", "noetl_planner", "noetl_worker"}
