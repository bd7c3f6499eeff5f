"""What `noetl run` refuses before it asks anybody."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from noetl_cli.__main__ import app
from noetl_cli.errors import CliError
from noetl_cli.files.command_inputs import read_fields, read_inputs
from noetl_cli.files.result_file import check_result_file, save_result
from noetl_cli.planner.step_result import PlannerResults, StepResult
from noetl_cli.stack.home_folder.options import parse_settings

NOWHERE = "http://127.0.0.1:1"


def refusal(*words: str) -> CliError:
    error = CliRunner().invoke(app, ["run", *words, "--server", NOWHERE]).exception
    assert isinstance(error, CliError)
    return error


def test_a_folder_is_told_with_the_playbooks_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    here = refusal(".")
    assert (here.message, here.way_out) == (
        "'.' is a folder, and a run takes the file of one playbook.",
        "noetl run a.yaml",
    )
    (tmp_path / "empty").mkdir()
    assert "no .yaml file" in refusal("empty", "-r", "local").way_out
    assert "no .yaml file" in refusal("empty/").way_out
    # It may be the path of a registered playbook: the planner is asked.
    assert "No planner answers" in refusal("empty").message


@pytest.mark.parametrize(
    ("name", "said"),
    [("x.txt", "names no format"), ("none/x.csv", "which is no folder"), ("d.csv", "is a folder")],
)
def test_a_file_that_cannot_be_saved_is_refused_before_the_run(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "d.csv").mkdir()
    playbook = tmp_path / "a.yaml"
    playbook.write_text("apiVersion: noetl.io/v2")
    assert said in refusal(str(playbook), "--save", str(tmp_path / name)).message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "n=1", "--set", "n=2"], "'n' is given twice: by --set and by --set."),
        (["--set", "n=1", "--set-json", "n=[]"], "'n' is given twice: by --set and by --set-json."),
        (["--set", "n.a=1", "--set", "n=2"], "--set n would replace --set n.a"),
        (["--set", "n=2", "--set", "n.a=1"], "'n' is not a mapping"),
    ],
)
def test_an_input_that_is_given_twice_is_refused(words: list[str], message: str) -> None:
    error = refusal("some/path", *words)
    assert message in error.message
    assert error.way_out


def test_inputs_of_options_replace_those_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "inputs.yaml"
    file.write_text("n: {a: 1, b: 2}\nm: 3\n")
    inputs = read_inputs(payload=file, sets=["n.a=5", "n.c=6"], sets_json=["m=[7]"])
    assert inputs == {"n": {"a": 5, "b": 2, "c": 6}, "m": [7]}


def test_a_field_or_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(CliError, match="'token' is given twice"):
        read_fields(data=["token=a", "token=b"], file=None)
    with pytest.raises(CliError, match="NOETL_WORKER_LEASE_S twice"):
        parse_settings(["WORKER_LEASE_S=5", "noetl_worker_lease_s=6"])


def test_what_is_no_table_is_told_with_the_command_that_saves_it(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    check_result_file(file)
    result = StepResult(step="a b", data={"total": 1}, error=None, total=None)
    command = PlannerResults(None, "7").build_save_command("a b", Path("x.json"))  # type: ignore[arg-type]  # the values differ in type
    assert command == "noetl result 7 'a b' --save x.json"
    with pytest.raises(CliError, match="no list of rows") as error_info:
        save_result(file, result, as_json=command)
    assert error_info.value.way_out == command
    assert not file.exists()
