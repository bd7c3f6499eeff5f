"""PFT A through the front door of a real stack, judged by the verifier in its strictest form."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import pft
from tests.support.parity import assert_parity
from tests.support.pft import Fixture
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(400)

RUN_S = 240.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack with two workers; the runs share nothing but it."""
    folder = tmp_path_factory.mktemp("acceptance") / "stack"
    with running_stack(folder, "--workers", "2") as running:
        pft.prepare(running)
        yield running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Fixture]:
    """A fixture server with its own request ledger."""
    with pft.fixture(tmp_path) as running:
        yield running


@pytest.mark.parametrize(
    ("facilities", "patients"),
    [
        pytest.param(1, 50, id="1x50"),
        pytest.param(10, 100, id="10x100"),
        pytest.param(1, 1000, id="1x1000"),
    ],
)
def test_every_page_is_fetched_once_and_every_witness_agrees(
    stack: Stack, served: Fixture, facilities: int, patients: int
) -> None:
    run = pft.start(stack, served, facilities=facilities, patients=patients)
    run.wait(RUN_S)
    run.verify()
    assert_parity(stack, run.execution_id)
