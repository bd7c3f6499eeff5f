"""One small stack for the whole folder; every test leaves it as it found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command_line import TARGET, CommandLine
from tests.support.stack import Stack, running_stack

LEASE_S = 5
SETTINGS = (
    *("--workers", "1", "--no-s3"),
    *("--set", f"MESSAGING_LEASE_S={LEASE_S}"),
    *("--set", f"WORKER_LEASE_S={LEASE_S}"),
    *("--set", f"PLANNER_COMMAND_LEASE_S={LEASE_S}"),
    *("--set", "PLANNER_COMMAND_HEARTBEAT_S=1"),
    # What is kept in memory would hide what happens to the file.
    *("--set", "WORKER_PAYLOAD_MEMORY_BYTES=0"),
    *("--set", "WORKER_SHARED_BYTES=0"),
    *("--set", "PLANNER_PAYLOAD_CACHE_BYTES=0"),
)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The folder's stack."""
    with running_stack(tmp_path_factory.mktemp("e2e") / "stack", *SETTINGS) as running:
        command_line = CommandLine(running, tmp_path_factory.mktemp("command_line"))
        kept = command_line.type(
            *("credential", "put", TARGET, "--type", "postgres"),
            *("--data", f"dsn={running.url('target')}"),
        )
        assert kept.code == 0, kept
        yield running


@pytest.fixture
def command_line(stack: Stack, tmp_path: Path) -> CommandLine:
    """A person with an empty folder."""
    return CommandLine(stack, tmp_path)
