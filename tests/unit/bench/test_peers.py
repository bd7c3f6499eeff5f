"""Other engines: what their pins and their complaints are read as."""

from pathlib import Path

import pytest
from tests.bench.peers.installing import last_line, version_of
from tests.bench.peers.running import PEERS

REQUIREMENTS = Path("requirements")


@pytest.mark.parametrize("name", PEERS)
def test_each_engine_is_pinned_with_hashes_and_has_a_program(name: str) -> None:
    pinned = (REQUIREMENTS / f"peers-{name}.txt").read_text()
    assert version_of(name, pinned)
    assert "--hash=sha256:" in pinned
    assert "://" not in pinned, "no address of a registry"
    assert Path(f"tests/bench/peers/{name}_program.py").exists()


def test_the_version_is_that_of_the_engine_and_of_nothing_that_begins_like_it() -> None:
    assert version_of("dbos", "dbos-extra==9 \\\ndbos==3.4.0 \\\n    --hash=sha256:0") == "3.4.0"
    assert version_of("pgqueuer", "pgqueuer[asyncpg]==1.6.0 \\") == "1.6.0"


def test_of_a_complaint_the_line_that_names_the_error_is_told() -> None:
    assert last_line("Traceback\nTypeError: no such | thing\nAn exception occurred.\n") == (
        "TypeError: no such / thing"
    )
    assert last_line("first\nlast\n") == "last"
    assert last_line("") == "it said nothing"
