"""Whatever tasks have started ends with the worker, also when that is killed."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from tests.support.polling import eventually
from tests.support.processes import is_running, list_running, make_nap

# Of the Python task and of the script each: a child, and one in a session of its own.
SLEEPERS = 4

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a process that leaves its session is not followed"
)


@pytest.fixture
def nap() -> str:
    """How long the processes of the tasks sleep, which tells them from others."""
    return make_nap()


@pytest.fixture
def busy(nap: str) -> Iterator[psutil.Process]:
    """A worker's process, in the middle of two tasks that have started processes."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "tests.support.killed_worker", nap]
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()
        for sleeper in list_running(nap):
            sleeper.kill()


@pytest.mark.timeout(120)
async def test_all_processes_of_tasks_end_when_their_worker_is_killed(
    busy: psutil.Process, nap: str
) -> None:
    async def have_begun() -> bool:
        return len(list_running(nap, below=busy)) == SLEEPERS

    await eventually(have_begun, timeout_s=60)
    launchers = busy.children()
    family = busy.children(recursive=True)
    assert len(launchers) == 2
    # The tasks themselves, and a launcher of each, are more than what sleeps.
    assert len(family) >= SLEEPERS + 2 * len(launchers)

    busy.send_signal(signal.SIGKILL)
    busy.wait()

    async def are_gone() -> bool:
        return not any(is_running(process) for process in family)

    await eventually(are_gone)
    assert not list_running(nap)
