"""The verbs of the command line: all of them are there, and one is loaded without the others."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

import noetl_cli
from noetl_cli.__main__ import app
from noetl_cli.verbs import FOLDER_BY_NAME, NAMES, SUMMARIES, Verbs

COMMANDS = Path(str(noetl_cli.__file__)).parent / "commands"
# `options` are what verbs share.
NO_VERBS = {"__init__", "options", "audit_log", "replay_counterfactual"}
CALLED = """
import atexit, sys
sys.argv[0] = "noetl"
atexit.register(lambda: print("LOADED", *sorted(sys.modules), file=sys.stderr))
from noetl_cli.__main__ import main
main()
"""
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: a, path: a}
workflow:
  - {step: start, tool: {kind: noop}}
"""
# Nobody listens there.
NOWHERE = "http://127.0.0.1:1"
THIN = (
    *(("status", "1"), ("ls",), ("cancel", "1"), ("events", "1"), ("pause", "1"), ("resume", "1")),
    *(
        ("items", "1", "a"),
        ("signal", "key"),
        ("approvals",),
        ("approve", "key"),
        ("pools",),
        ("trace", "1", "a"),
    ),
    *(
        ("lineage", "1"),
        ("catalog", "ls"),
        ("credential", "ls"),
        ("credential", "test", "a"),
        ("schedule", "ls"),
    ),
    *(("webhook", "ls"), ("trigger", "ls"), ("replay", "state", "1"), ("register", "FILE")),
    ("state", "ls"),
    *(("dlq", "ls"), ("dlq", "requeue", "1"), ("dlq", "drop", "1", "--reason", "r")),
)
# What the services, their servers and the tools need.
HEAVY = {
    *("asyncpg", "nats", "pyarrow", "duckdb", "litestar", "pyspark", "boto3", "botocore"),
    # Typer's own, for values that need more than a look.
    "pydantic",
    *("opentelemetry", "numpy", "aiohttp", "asyncio", "cryptography", "httpx"),
    *("noetl_planner", "noetl_worker", "noetl_projector", "noetl_messaging"),
}
# The languages of playbooks, and what prints colours.
LOCAL = {"jinja2", "yaml", "noetl_playbook", "rich"}


def call(*words: str) -> tuple[int, str, set[str]]:
    """Call the command line in a process of its own: exit code, output, modules loaded."""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", CALLED, *words], check=False, capture_output=True, text=True
    )
    _, _, names = done.stderr.rpartition("LOADED ")
    loaded = set(names.split())
    assert "noetl_cli.verbs" in loaded, done.stderr
    return done.returncode, done.stdout, loaded


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_the_help_names_every_verb_and_loads_none(word: str) -> None:
    code, shown, loaded = call(word)
    assert code == 0
    assert all(f"\n  {name} " in shown for name in NAMES)
    assert not loaded & (HEAVY | LOCAL | {"urllib3", "pydantic"})
    assert not any(name.startswith("noetl_cli.commands.") for name in loaded)


def test_lint_loads_no_client_and_no_server(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(PLAYBOOK)
    code, _, loaded = call("lint", str(file))
    assert code == 0
    assert not loaded & (HEAVY | {"urllib3", "rich", "pydantic", "importlib.metadata", "cronsim"})


@pytest.mark.parametrize("words", THIN, ids=" ".join)
def test_a_call_of_the_planner_loads_little_more_than_a_client(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(PLAYBOOK)
    named = [str(file) if word == "FILE" else word for word in words]
    code, _, loaded = call(*named, "--server", NOWHERE)
    assert code == 1
    assert "urllib3" in loaded
    reads_playbooks = words[0] == "register"
    assert not loaded & (HEAVY | ({"rich"} if reads_playbooks else LOCAL))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    answer = CliRunner().invoke(app, ["completion", shell])
    assert answer.exit_code == 0
    assert f"_NOETL_COMPLETE=complete_{shell}" in answer.output


def test_a_shell_completes_verbs_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_NOETL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "noetl ev")
    monkeypatch.setenv("COMP_CWORD", "1")
    _, shown, loaded = call()
    assert shown.split() == ["events", "evidence"]
    assert not any(name.startswith("noetl_cli.commands.") for name in loaded)
    monkeypatch.setenv("COMP_WORDS", "noetl events --si")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert call()[1].split() == ["--since"]


def test_every_module_of_a_verb_is_listed() -> None:
    files = [file for file in COMMANDS.rglob("*.py") if file.stem not in NO_VERBS]
    assert {file.stem for file in files} == set(NAMES) == set(get_group(app).commands)
    assert sorted((file.stem, file.parent.name) for file in files) == sorted(FOLDER_BY_NAME.items())


@pytest.mark.parametrize("name", NAMES)
def test_a_verb_is_called_as_it_is_listed_and_says_what_it_does(name: str) -> None:
    command = Verbs()[name]
    assert command.name == name
    assert command.get_short_help_str(1000) == SUMMARIES[name]


def test_a_word_that_is_no_verb_is_answered_with_the_nearest() -> None:
    with pytest.raises(KeyError):
        Verbs()["statsu"]
    answer = CliRunner().invoke(app, ["statsu"])
    assert answer.exit_code == 2
    assert "'status'" in answer.output


@pytest.mark.parametrize("words", [("run", "--help"), ("down", "--help")], ids=" ".join)
def test_a_verb_loads_neither_services_nor_what_they_need(words: tuple[str, ...]) -> None:
    code, _, loaded = call(*words)
    assert code == 0
    assert not loaded & {"litestar", "pyarrow", "nats", "noetl_planner", "noetl_worker"}
