"""`noetl context`: names for servers."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from noetl_cli.__main__ import app
from noetl_cli.errors import CliError
from noetl_cli.identity import token_store
from noetl_cli.planner import client

PROD = "https://noetl.example.org"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOETL_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.delenv("NOETL_SERVER", raising=False)
    return tmp_path / "config"


def call(*words: str, given: str | None = None) -> str:
    answer = CliRunner().invoke(app, ["context", *words], input=given, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_a_context_in_use_is_the_server_that_is_called(folder: Path) -> None:
    call("add", "prod", "--server", f"{PROD}/", "--tenant", "acme")
    call("add", "lab", "--server", "http://127.0.0.1:9", "--sign-in", "none", "--use")
    assert client.get_server_address(None) == "http://127.0.0.1:9"
    call("use", "prod")
    assert client.get_server_address(None) == PROD
    call("add", "prod", "--server", PROD, "--tenant", "other")
    assert client.get_server_address("http://other:1") == "http://other:1"
    lines = call("ls").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["lab", "http://127.0.0.1:9", "none"],
        ["*", "prod", PROD],
        ["local", "the", "stack"],
    ]
    assert (folder / "contexts.yaml").stat().st_mode & 0o777 == 0o600


def test_the_environment_counts_before_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    call("add", "prod", "--server", PROD, "--use")
    monkeypatch.setenv("NOETL_SERVER", "http://named:1")
    assert client.get_server_address(None) == "http://named:1"


def test_the_stack_on_this_machine_is_used_again() -> None:
    call("add", "prod", "--server", PROD, "--use")
    assert "on this machine" in call("use", "local")
    with pytest.raises(CliError, match="No planner runs"):
        client.get_server_address(None)


def test_a_context_is_removed_with_its_use() -> None:
    call("add", "prod", "--server", PROD, "--use")
    call("rm", "prod")
    with pytest.raises(CliError, match="No planner runs"):
        client.get_server_address(None)
    with pytest.raises(CliError, match="no context 'prod'"):
        call("use", "prod")


def test_a_key_is_kept_apart_from_the_names(folder: Path) -> None:
    call("add", "ci", "--server", PROD, "--sign-in", "key", "--key-from", "-", given="nk_secret\n")
    assert "nk_secret" not in (folder / "contexts.yaml").read_text()
    record = token_store.TokenStore(folder).find_record(f"{PROD}:443")
    assert record is not None
    assert record.api_key == "nk_secret"


@pytest.mark.parametrize(
    "words",
    [
        ("a b", "--server", PROD),
        ("../a", "--server", PROD),
        ("local", "--server", PROD),
        ("a\nb", "--server", PROD),
        ("prod", "--server", "noetl.example.org"),
        ("prod", "--server", "ftp://noetl.example.org"),
        ("prod", "--server", PROD, "--sign-in", "key"),
        ("prod", "--server", PROD, "--key-from", "-"),
        ("prod", "--server", "http://noetl.example.org", "--sign-in", "key", "--key-from", "-"),
    ],
)
def test_what_is_no_context_is_refused(folder: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(CliError) as refused:
        call("add", *words, given="nk_secret")
    assert refused.value.way_out
    assert not (folder / "contexts.yaml").exists()


def test_a_file_that_was_spoilt_is_told_with_its_way_out(folder: Path) -> None:
    folder.mkdir()
    (folder / "contexts.yaml").write_text("current: 7\n")
    with pytest.raises(CliError) as refused:
        call("ls")
    assert "noetl context add" in refused.value.way_out
