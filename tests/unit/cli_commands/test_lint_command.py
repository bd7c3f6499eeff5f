"""`noetl lint`: files, folders and standard input, in every format, with its exit codes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.playbooks import HEADER, document
from typer.testing import CliRunner, Result

from noetl_cli import terminal_output
from noetl_cli.__main__ import app
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files import command_inputs
from noetl_cli.terminal import diagnostics
from noetl_playbook.source.code_table import CODES

RIGHT = document("- {step: a, tool: {kind: noop}}")
WRONG = document("""
    - step: a
      tool: {kind: htpp, url: x}
      next: {arcs: [{step: b, when: x > 1}]}
    """)
OLDER = document("- {step: a, tool: noop}")


def linted(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["lint", *map(str, arguments)], input=stdin)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "right.yaml").write_text(RIGHT)
    (tmp_path / "wrong.yaml").write_text(WRONG)
    below = tmp_path / "a folder"
    below.mkdir()
    (below / "older.yml").write_text(OLDER)
    (below / "notes.txt").write_text("{")
    hidden = tmp_path / ".git"
    hidden.mkdir()
    (hidden / "x.yaml").write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "is_skipped"),
    [
        ("day: 2026-01-01\nkind: big\nmetadata: {a: 1}\n", True),
        ("workfow: []\n", False),
        ("kind: Playbook\n", False),
        ("- 1\n", False),
        ("", False),
    ],
)
def test_inputs_in_a_folder_are_skipped_and_counted(
    folder: Path, text: str, *, is_skipped: bool
) -> None:
    (folder / "wrong.yaml").unlink()
    (folder / "day.inputs.yaml").write_text(text)
    done = linted(folder)
    said = f"1 file is not a playbook, skipped: {folder / 'day.inputs.yaml'}"
    assert (said in done.stderr) == is_skipped
    assert done.exit_code == (ExitCode.OK if is_skipped else ExitCode.FAILED)
    assert linted(folder / "day.inputs.yaml").exit_code == ExitCode.FAILED


def test_a_right_playbook_exits_with_zero(folder: Path) -> None:
    done = linted(folder / "right.yaml")
    assert done.exit_code == ExitCode.OK
    assert done.stdout == ""
    assert "1 playbook file checked" in done.stderr


def test_each_problem_is_one_line_with_its_place(folder: Path) -> None:
    done = linted(folder / "wrong.yaml")
    file = folder / "wrong.yaml"
    arc = "workflow[0].next.arcs[0]"
    assert done.exit_code == ExitCode.FAILED
    assert [line.removeprefix(f"{file}:") for line in done.stdout.splitlines()] == [
        ("6:18: error E401 workflow[0].tool.kind: unknown tool kind 'htpp' (did you mean 'http'?)"),
        f"7:26: error E203 {arc}.step: arc target 'b' is not a step of this workflow",
        f"7:35: error E303 {arc}.when: 'x' is not a name here",
        f"7:35: warning W905 {arc}.when: a condition is written without {{{{ }}}}",
    ]
    assert "3 errors, 1 warning in 1 playbook file." in done.stderr


def test_a_folder_is_read_whole_but_for_hidden_ones(folder: Path) -> None:
    done = linted(folder, "--format", "json")
    found = msgspec.json.decode(done.stdout)
    assert {Path(item["file"]).name for item in found} == {"wrong.yaml", "older.yml"}


def test_strict_refuses_what_tolerant_only_mentions(folder: Path) -> None:
    older = folder / "a folder" / "older.yml"
    assert linted(older).exit_code == ExitCode.OK
    assert linted(older, "--strict").exit_code == ExitCode.FAILED


def test_standard_input_and_several_documents() -> None:
    done = linted("-", stdin=RIGHT + "---\n" + WRONG)
    assert done.exit_code == ExitCode.FAILED
    assert "stdin:12:18: error E401" in done.stdout


def test_a_file_that_is_not_utf8_is_a_problem_of_that_file(folder: Path) -> None:
    (folder / "latin.yaml").write_bytes(HEADER.encode() + b"desc: caf\xe9\n")
    done = linted(folder / "latin.yaml", folder / "right.yaml")
    assert done.exit_code == ExitCode.FAILED
    assert "latin.yaml:4:10: error E101: the text is not UTF-8" in done.stdout


def test_a_file_larger_than_any_document_is_not_read_whole(folder: Path) -> None:
    with (folder / "large.yaml").open("wb") as large:
        large.truncate(10 * 1024 * 1024 * 1024)
    done = linted(folder / "large.yaml")
    assert "E605" in done.stdout


def test_a_large_file_that_is_cut_inside_a_character_is_called_large(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    for lead in ("", "#"):
        file.write_text(lead + "#" + "é" * 2_000_000, encoding="utf-8")
        assert "E605" in linted(file).stdout
        with pytest.raises(CliError, match="larger than"):
            command_inputs.read_file_text(file)


@pytest.mark.parametrize("arguments", [[], ["gone.yaml"], ["--explain", "E999"]])
def test_wrong_usage_is_told_with_a_way_out(arguments: list[str]) -> None:
    done = linted(*arguments)
    assert isinstance(done.exception, CliError)
    assert done.exception.exit_code == ExitCode.USAGE
    assert done.exception.way_out


def test_every_code_explains_itself() -> None:
    for code in CODES.values():
        done = linted("--explain", code.code.lower())
        assert done.exit_code == ExitCode.OK
        assert code.title in done.stdout
        assert code.wrong.splitlines()[0] in done.stdout


def test_github_annotates(folder: Path) -> None:
    done = linted(folder / "wrong.yaml", "--format", "github")
    first = done.stdout.splitlines()[0]
    assert first.startswith("::error file=")
    assert "line=6,col=18,title=E401::unknown tool kind 'htpp'" in first


def the_log(folder: Path) -> dict[str, Any]:
    log: dict[str, Any] = msgspec.json.decode(linted(folder, "--format", "sarif").stdout)
    return log


def test_the_sarif_log_has_what_its_schema_requires(folder: Path) -> None:
    log = the_log(folder)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = driver["rules"]
    assert [rule["id"] for rule in rules] == list(CODES)
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["help"]["text"]
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning")
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["results"]
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("error", "warning")
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        (place,) = result["locations"]
        physical = place["physicalLocation"]
        assert " " not in physical["artifactLocation"]["uri"]
        assert physical["region"]["startLine"] >= 1
        assert physical["region"]["startColumn"] >= 1


def test_a_person_sees_the_line_and_a_caret(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = linted(folder / "wrong.yaml", "--format", "human")
    lines = done.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if "E401" in line)
    source, caret = lines[place + 1 : place + 3]
    assert source == " 6 |     tool: {kind: htpp, url: x}"
    assert source[caret.index("^")] == "h"
    assert lines[place + 3] == "  hint: did you mean 'http'?"


def test_a_terminal_escape_in_a_playbook_is_not_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(document('- {step: a, "x\\e[2J": 1, tool: {kind: noop}}'))
    for form in ("human", "text", "github"):
        done = linted(file, "--format", form)
        assert "E103" in done.stdout
        assert "\x1b" not in done.stdout


def test_a_long_line_is_cut_around_its_place(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(document(f"- {{step: a, desc: {'x' * 500}, tool: {{kind: htpp}}}}"))
    done = linted(file, "--format", "human")
    source, caret = done.stdout.splitlines()[1:3]
    assert len(source) <= diagnostics.EXCERPT_CHARACTERS_MAX + 10
    assert source[caret.index("^") :].startswith("htpp")
    assert terminal_output.escape_controls(source) == source
