"""`noetl register FOLDER`: every playbook below it in one call, or none."""

from pathlib import Path

import pytest
from tests.support.running_api import Noetl

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p{number}, path: demo/p{number}}}
workflow:
  - {{step: start, tool: {{kind: noop}}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(176):
        file = tmp_path / f"f{number % 7}" / f"p{number}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(PLAYBOOK.format(number=number))
    return tmp_path


def test_a_folder_is_registered_whole(noetl: Noetl, folder: Path) -> None:
    outcome = noetl("register", str(folder))
    assert outcome.code == 0, outcome
    assert len(outcome.out.splitlines()) == 176
    assert "demo/p175 version 1" in outcome.out
    assert "176 files registered" in outcome.err
    assert len(noetl("catalog", "ls").out.splitlines()) == 1 + 176


def test_a_problem_is_told_with_its_file_and_nothing_is_registered(
    noetl: Noetl, folder: Path
) -> None:
    bad = folder / "f3" / "p3.yaml"
    bad.write_text(bad.read_text().replace("workflow:", "wrkflow:"))
    outcome = noetl("register", str(folder))
    assert outcome.code == 2
    assert f"{bad}:" in outcome.err
    assert "1 of 176 files" in outcome.err
    assert noetl("catalog", "ls").out == ""


def test_two_files_with_one_path_are_named(noetl: Noetl, folder: Path) -> None:
    again = folder / "f3" / "again.yaml"
    again.write_text(PLAYBOOK.format(number=5))
    outcome = noetl("register", str(folder))
    assert outcome.code == 2
    assert str(again) in outcome.err
    assert "demo/p5" in outcome.err
    assert noetl("catalog", "ls").out == ""


def test_a_folder_without_playbooks_is_refused(noetl: Noetl, tmp_path: Path) -> None:
    outcome = noetl("register", str(tmp_path))
    assert outcome.code == 2
    assert "no playbooks" in outcome.err


def test_scripts_beside_playbooks_are_registered_with_them(noetl: Noetl, tmp_path: Path) -> None:
    step = "{step: start, tool: {kind: python, script: {uri: add.py}}}"
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "add.py").write_text(f"result = '{name}'\n")
        head = f"metadata: {{name: {name}, path: demo/{name}}}"
        text = f"apiVersion: noetl.io/v2\nkind: Playbook\n{head}\nworkflow: [{step}]\n"
        (folder / "playbook.yaml").write_text(text)
    assert noetl("register", str(tmp_path)).out.splitlines() == [
        "demo/a version 1",
        "demo/b version 1",
    ]
    # The same texts keep their version; another script is another version.
    again = str(tmp_path / "a/playbook.yaml")
    assert "demo/a version 1" in noetl("register", again).out
    (tmp_path / "a/add.py").write_text("result = 'other'\n")
    assert "demo/a version 2" in noetl("register", again).out
    (tmp_path / "a/add.py").unlink()
    refused = noetl("register", again)
    assert (refused.code, "E202" in refused.err) == (2, True)
    assert noetl("lint", str(tmp_path)).code == 1
