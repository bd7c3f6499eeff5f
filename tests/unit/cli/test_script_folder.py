"""The folder of a playbook gives its own files, and nothing from outside of it."""

from pathlib import Path

import pytest

from noetl_cli.files.playbook_file import ScriptFolder
from noetl_playbook.sections.script_files import SCRIPT_BYTES_MAX, ScriptFault


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "playbooks"
    (path / "lib").mkdir(parents=True)
    (path / "lib/model.py").write_text("result = 1\n")
    (path / "near.py").symlink_to("lib/model.py")
    (tmp_path / "secret.py").write_text("no")
    (path / "far.py").symlink_to(tmp_path / "secret.py")
    (path / "out").symlink_to(tmp_path)
    (path / "loop.py").symlink_to("loop.py")
    (path / "bytes.py").write_bytes(b"\xff")
    return path


@pytest.mark.parametrize("name", ["lib/model.py", "./lib/model.py", "near.py", "lib//model.py"])
def test_a_file_beside_or_below_the_playbook_is_read(folder: Path, name: str) -> None:
    scripts = ScriptFolder.from_file(folder / "a.yaml")
    assert scripts.read_script(name) == "result = 1\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../secret.py", "leads out"),
        ("lib/../../secret.py", "leads out"),
        ("lib/../near.py", "leads out"),
        ("/etc/passwd", "leads out"),
        ("..\\secret.py", "leads out"),
        ("far.py", "leads out"),
        ("out/secret.py", "leads out"),
        ("a\0b", "leads out"),
        ("absent.py", "cannot be read"),
        ("lib/absent.py", "cannot be read"),
        ("lib", "is no file"),
        ("loop.py", "script 'loop.py'"),
        ("bytes.py", "is not UTF-8"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_anything_else_is_refused_by_name(folder: Path, name: str, says: str) -> None:
    scripts = ScriptFolder.from_file(folder / "a.yaml")
    with pytest.raises(ScriptFault) as refused:
        scripts.read_script(name)
    assert says in str(refused.value)


def test_standard_input_has_no_folder() -> None:
    with pytest.raises(ScriptFault, match="standard input has no folder"):
        ScriptFolder.from_file(Path("-")).read_script("a.py")


def test_no_more_is_read_than_shows_that_it_is_too_much(folder: Path) -> None:
    (folder / "large.py").write_text("x" * (SCRIPT_BYTES_MAX * 2))
    scripts = ScriptFolder.from_file(folder / "a.yaml")
    assert len(scripts.read_script("large.py")) == SCRIPT_BYTES_MAX + 1
