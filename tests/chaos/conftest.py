"""One small stack for the module's attacks: two workers, short leases."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import pft
from tests.support.pft import Fixture
from tests.support.stack import Stack, running_stack

LEASE_S = 5
SETTINGS = (
    *("--workers", "2"),
    *("--set", f"MESSAGING_LEASE_S={LEASE_S}"),
    *("--set", f"WORKER_LEASE_S={LEASE_S}"),
    *("--set", f"PLANNER_COMMAND_LEASE_S={LEASE_S}"),
    *("--set", "PLANNER_COMMAND_HEARTBEAT_S=1"),
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that the module's tests hurt in turn; each leaves it whole."""
    with running_stack(tmp_path_factory.mktemp("chaos") / "stack", *SETTINGS) as running:
        pft.prepare(running)
        yield running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Fixture]:
    """A fixture server with its own request ledger."""
    with pft.fixture(tmp_path) as running:
        yield running
