"""Every lock file pins every package by version and hash, so that nobody's other file is taken."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(
    path
    for path in (ROOT / "requirements").glob("*.txt")
    # What measures peers is installed by hand.
    if not path.name.startswith("peers-")
)
PIN = re.compile(r"([a-z0-9._-]+(?:\[[a-z0-9,._-]+\])?)==([^\s;\\]+)(?:\s*;[^\\]*)?(.*)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def list_requirements(path: Path) -> list[str]:
    """Each requirement with its options on one line, without comments."""
    text = re.sub(r"^\s*#.*$", "", path.read_text("utf-8"), flags=re.MULTILINE)
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip()]


def test_there_are_locks() -> None:
    assert {"planner.txt", "worker.txt", "cli.txt", "dev.txt"} <= {path.name for path in LOCKS}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_each_requirement_has_a_version_and_a_hash(path: Path) -> None:
    requirements = list_requirements(path)
    assert requirements
    names = []
    for requirement in requirements:
        pin = PIN.fullmatch(requirement)
        assert pin is not None, requirement
        assert HASH.findall(requirement), requirement
        names.append(pin[1].partition("[")[0])
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_nothing_comes_from_another_index_or_address(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "://" not in text
    assert not re.search(
        r"^\s*(-i|-e|-f|--index|--extra-index|--find-links|--trusted)", text, re.MULTILINE
    )


def test_locks_agree_on_the_hashes_of_a_version() -> None:
    """One file that was changed by hand stands out against the others."""
    found: dict[tuple[str, str], tuple[frozenset[str], str]] = {}
    for path in LOCKS:
        for requirement in list_requirements(path):
            pin = PIN.fullmatch(requirement)
            assert pin is not None
            name = pin[1].partition("[")[0], pin[2]
            hashes = frozenset(HASH.findall(requirement))
            known_names, earlier = found.setdefault(name, (hashes, path.name))
            assert known_names == hashes, (name, earlier, path.name)
