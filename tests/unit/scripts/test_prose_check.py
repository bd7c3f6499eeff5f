"""The prose check: which program it takes, and what it says when there is none."""

import tomllib
from pathlib import Path

import pytest
import yaml
from scripts import prose_check

ROOT = Path(__file__).parents[3]
VERSION = prose_check.get_pinned_version(ROOT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write a checkout with one page and the pinned version, but without Vale."""
    (tmp_path / "scripts/vale").mkdir(parents=True)
    (tmp_path / prose_check.MODULE).write_text((ROOT / prose_check.MODULE).read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Runs\n")
    (tmp_path / "bin").mkdir()
    return tmp_path


def write_program(file: Path, *, version: str, code: int = 0) -> None:
    """Write a program that answers for Vale and then ends with a code."""
    file.parent.mkdir(parents=True, exist_ok=True)
    answer = f'echo "vale version {version}"'
    file.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {answer} && exit 0\nexit {code}\n')
    file.chmod(0o755)


def test_without_vale_and_go_the_check_says_why_it_is_skipped(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prose_check.main(tree, str(tree / "bin")) == 0
    assert capsys.readouterr().out == (
        f"prose check skipped: Vale {VERSION} is neither built nor on the PATH, "
        "and there is no Go to build it with.\n"
    )


def test_with_go_the_check_says_how_to_build_vale(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_program(tree / "bin/go", version="1.26.0")
    assert prose_check.main(tree, str(tree / "bin")) == 0
    assert "`make vale` builds it" in capsys.readouterr().out


def test_another_version_on_the_path_is_not_taken(tree: Path) -> None:
    write_program(tree / "bin/vale", version="2.0.0", code=1)
    assert prose_check.main(tree, str(tree / "bin")) == 0


@pytest.mark.parametrize("place", ["bin/vale", "build/vale/vale"])
def test_what_vale_finds_fails_the_check(tree: Path, place: str) -> None:
    write_program(tree / place, version=VERSION, code=1)
    assert prose_check.main(tree, str(tree / "bin")) == 1


def test_docs_and_root_pages_are_checked(tree: Path) -> None:
    assert prose_check.list_targets(tree) == ["docs", "README.md"]


def test_vale_and_the_figures_refuse_the_same_words() -> None:
    rule = yaml.safe_load((ROOT / ".vale/styles/NoETL/HardWords.yml").read_text())
    table = tomllib.loads((ROOT / "scripts/house_figures.toml").read_text())
    assert rule["tokens"] == table["words"]["hard"].split()
