"""The figures of the house: each one notices the change that it is there to notice."""

from pathlib import Path

import pytest
from scripts import house_figures

MODULE = '"""A store."""\n\n\ndef read_payload() -> None:\n    """Read."""\n'
PAGE = "# Runs\n\nStart one.\n\n```sh\nnoetl run squares.yaml\n```\n"
# Per figure the file that makes it worse, and what it then has.
CHANGES = {
    "one-word-functions-percent": ("libs/s/src/s/b.py", MODULE.replace("read_payload", "read")),
    "mean-function-name": ("libs/s/src/s/b.py", MODULE.replace("read_payload", "a_b")),
    "function-lines-p90": ("libs/s/src/s/b.py", MODULE + "    # a line\n" * 30 + "    return\n"),
    "function-lines-max": ("libs/s/src/s/b.py", MODULE + "    # a line\n" * 30 + "    return\n"),
    "lines-per-file": ("libs/s/src/s/b.py", '"""Nothing."""\n'),
    "ing-modules": ("libs/s/src/s/holding.py", MODULE),
    "files-per-folder-p90": ("libs/s/src/s/b.py", MODULE),
    "files-per-folder-max": ("libs/s/src/s/b.py", MODULE),
    "files-over-600-lines": ("libs/s/src/s/b.py", MODULE + "# a line\n" * 600),
    "broad-excepts-per-1000-lines": (
        "libs/s/src/s/b.py",
        MODULE + "    try:\n        return\n    except Exception:\n        raise\n",
    ),
    "import-contracts": (".importlinter", "[importlinter:contract:a]\n[importlinter:contract:b]\n"),
    "package-cycles": ("libs/s/src/s/b.py", "from t.a import read_payload\n" + MODULE),
    "hard-words-in-code": ("libs/s/src/s/b.py", MODULE.replace("Read.", "Tell whoever asks.")),
    "hard-words-in-docs": ("docs/runs.md", PAGE.replace("Start one.", "Start whatever you like.")),
    "doc-words": ("docs/runs.md", PAGE + "Then look at it.\n"),
    "samples-per-1000-doc-words": ("docs/runs.md", PAGE.replace("```sh", "```")),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write a checkout with two packages, of which one imports the other, and one page."""
    write(tmp_path, "libs/s/src/s/a.py", MODULE)
    write(tmp_path, "libs/t/src/t/a.py", "from s.a import read_payload\n" + MODULE)
    write(tmp_path, "libs/s/tests/test_store.py", "def hold(desk): ...\n")
    write(tmp_path, "docs/runs.md", PAGE)
    write(tmp_path, ".importlinter", "[importlinter:contract:a]\n")
    return tmp_path


def write(root: Path, place: str, text: str) -> None:
    file = root / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def limits_of(root: Path) -> dict[str, dict[str, float]]:
    """Take the figures of a tree as the limits of the next one."""
    limits: dict[str, dict[str, float]] = {"at_least": {}, "at_most": {}}
    for figure in house_figures.measure_tree(root):
        side = "at_least" if figure.name in house_figures.TABLE["at_least"] else "at_most"
        limits[side][figure.name] = round(figure.value, 2)
    return limits


def test_every_figure_has_a_limit_and_a_change_that_breaks_it(tree: Path) -> None:
    names = {figure.name for figure in house_figures.measure_tree(tree)}
    assert names == {*house_figures.TABLE["at_least"], *house_figures.TABLE["at_most"]}
    assert names == set(CHANGES)


def test_a_tree_that_stays_as_it_is_is_within_its_limits(tree: Path) -> None:
    limits = limits_of(tree)
    figures = house_figures.measure_tree(tree)
    assert not [figure.name for figure in figures if house_figures.is_worse(figure, limits)]


@pytest.mark.parametrize("name", CHANGES)
def test_a_figure_that_gets_worse_is_noticed(tree: Path, name: str) -> None:
    limits = limits_of(tree)
    write(tree, *CHANGES[name])
    figures = {figure.name: figure for figure in house_figures.measure_tree(tree)}
    assert house_figures.is_worse(figures[name], limits)


def test_the_places_behind_a_figure_are_named(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tree, *CHANGES["hard-words-in-code"])
    assert house_figures.main([str(tree), "--list", "hard-words-in-code"]) == 0
    assert capsys.readouterr().out == "libs/s/src/s/b.py:5 whoever\n"


def test_a_figure_that_is_worse_fails_the_check(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tree, *CHANGES["files-over-600-lines"])
    assert house_figures.main([str(tree)]) == 1
    assert "files-over-600-lines" in capsys.readouterr().out.splitlines()[-1]


def test_a_figure_of_no_such_name_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        house_figures.main([str(tree), "--list", "lines"])
    assert "invalid choice: 'lines'" in capsys.readouterr().err
