"""Every example runs, and does what is written down of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import gallery
from tests.support.gallery import EXAMPLES, EXPECTED, Gallery

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level

NAMES = gallery.names()
HEADER = re.compile(
    r"# Shows: .+\n(?:#        .+\n)*# Run:   .+\n(?:#        .+\n)*# Ends:  .+\n(?:#        .+\n)*"
)
OLDER = {"W901", "W902", "W903", "W904"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    with gallery.open_gallery(tmp_path_factory.mktemp("gallery")) as found:
        yield found


@pytest.fixture
def running(opened: Gallery, request: pytest.FixtureRequest) -> Gallery:
    """The gallery, with the servers that the test's example needs."""
    needs = gallery.expected(request.node.callspec.params["name"]).needs
    if "postgres" in needs:
        server = request.getfixturevalue("postgres")
        opened.keep_credential("main_db", "postgres", dsn=server.admin_dsn())
    if "nats" in needs:
        server = request.getfixturevalue("nats")
        opened.keep_credential("bus", "nats", url=server.url)
    if "shop_app" in needs:
        opened.keep_shop_credential()
    return opened


# Starting Spark takes a while.
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_does_what_is_expected(running: Gallery, name: str) -> None:
    wanted = gallery.expected(name)
    for called in wanted.calls:
        running.register(gallery.text_of(called))
    assert running.differences(wanted, gallery.text_of(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_well_written(name: str) -> None:
    wanted = gallery.expected(name)
    parsed = parse_playbook(gallery.text_of(name), level=Level.STRICT)
    codes = {problem.code for problem in parsed.problems}
    assert codes <= (OLDER if wanted.has_older_forms else set()), parsed.problems
    assert HEADER.match(gallery.text_of(name)), (
        "a header says what it Shows, how to Run, how it Ends"
    )


def test_every_example_has_an_expectation_and_every_expectation_an_example() -> None:
    assert sorted(file.stem for file in EXPECTED.glob("*.yaml")) == NAMES
    assert len(NAMES) >= 25


@pytest.mark.parametrize("name", NAMES)
def test_an_expectation_can_fail(name: str) -> None:
    wanted = gallery.expected(name)
    assert wanted.ctx or wanted.results or wanted.error


def test_the_list_of_examples_is_whole() -> None:
    listed = re.findall(
        r"(?m)^\| \[([a-z0-9-]+)\]\(\1\.yaml\) \|", (EXAMPLES / "README.md").read_text()
    )
    assert sorted(listed) == NAMES


def test_differences_are_seen(tmp_path: Path) -> None:
    assert gallery.differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "c": 3}]}) == []
    assert gallery.differences({"a": [1]}, {"a": [1, 2]}) != []
    assert gallery.differences({"a": {"b": 1}}, {"a": {}}) != []
    assert gallery.differences(gallery.ANYTHING, None) != []
