"""PFT through the five images and the servers of compose, judged by the verifier."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import pft
from tests.support.contained_stack import contained_stack
from tests.support.parity import assert_parity
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(900)

RUN_S = 400.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("contained")
    with contained_stack(folder, http_allow="{gateway}") as running:
        pft.prepare(running)
        yield running


@pytest.mark.parametrize("variant", pft.VARIANTS)
def test_every_unit_is_saved_once_and_every_witness_agrees(
    stack: Stack, tmp_path: Path, variant: str
) -> None:
    with pft.fixture(tmp_path, "--host", stack.url("gateway")) as served:
        run = pft.start(stack, served, variant=variant, facilities=1, patients=50)
        run.wait(RUN_S)
        run.verify()
    assert_parity(stack, run.execution_id)
