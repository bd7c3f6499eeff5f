"""Everything that the tutorial says happens, in its order, in one folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.walkthrough import Reader

PAGES = sorted((Path(__file__).parents[2] / "docs/tutorial").glob("*.md"))

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    folder = tmp_path / "shop"
    folder.mkdir()
    found = Reader(folder, {"NOETL_HOME": str(tmp_path / "home")})
    try:
        yield found
    finally:
        found.run("noetl down --purge")
        found.close()


def test_a_newcomer_gets_to_the_end_of_the_tutorial(reader: Reader) -> None:
    assert len(PAGES) == 7
    different = [one for page in PAGES for one in reader.follow(page)]
    assert not different, "\n\n".join(different)
