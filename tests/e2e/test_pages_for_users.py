"""Everything that the home page, the tutorial and the how-to guides say happens.

One file, as all of them use the shop at one port.
"""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.polling import eventually
from tests.support.walkthrough import File, Reader, read_page

ROOT = Path(__file__).parents[2]
TUTORIAL = sorted((ROOT / "docs/tutorial").glob("*.md"))
GUIDES = sorted(page for page in (ROOT / "docs/how-to").glob("*.md") if page.stem != "README")
HOME = ROOT / "docs/index.md"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Reader]:
    """Someone with an empty folder."""
    folder = tmp_path / "shop"
    folder.mkdir()
    reader = Reader(folder, {"NOETL_HOME": str(tmp_path / "home")})
    try:
        yield reader
    finally:
        reader.run("noetl down --purge")
        reader.close()


def test_a_newcomer_gets_to_the_end_of_the_tutorial(newcomer: Reader) -> None:
    assert len(TUTORIAL) == 7
    different = [text for page in TUTORIAL for text in newcomer.follow(page)]
    assert not different, "\n\n".join(different)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a stack that has the credential of the tutorial."""
    folder = tmp_path_factory.mktemp("guides")
    reader = Reader(folder, {"NOETL_HOME": str(folder / "home")})
    try:
        assert "The stack is ready." in reader.run(
            "noetl up --workers 2 --allow-http 127.0.0.1:8095"
        )
        assert "version 1" in reader.run("noetl credential put warehouse --target")
        yield folder / "home"
    finally:
        reader.run("noetl down --purge")


@pytest.mark.parametrize("page", [HOME, *GUIDES], ids=lambda page: str(page.stem))
def test_a_guide_does_what_it_says(page: Path, stack: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"NOETL_HOME": str(stack)})
    shop = next(part for part in read_page(TUTORIAL[1]) if isinstance(part, File))
    (tmp_path / shop.name).write_text(shop.text)
    reader.begin(f"python {shop.name}")
    try:
        asyncio.run(eventually(_answers))
        different = list(reader.follow(page))
    finally:
        reader.close()
    assert not different, "\n\n".join(different)


async def _answers() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", 8095)) == 0
