"""A worker with real processes, and what an attack is told."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.working import Bench, bench


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    """A worker that grants the network to tasks that ask, and runs scripts."""
    async with bench(
        python_processes_max=2,
        python_network_by_task=True,
        shell_allowed=True,
        work_directory=str(tmp_path / "work"),
    ) as found:
        yield found
