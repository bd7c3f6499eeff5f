"""Whatever tasks have started ends with the worker, also when that is killed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.polling import eventually

# Of the Python task and of the script each: itself, a child, and one in a session of its own.
PROCESSES = 6

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a process that leaves its session is not followed"
)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker's process, in the middle of two tasks that have started processes."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "tests.support.killed_worker", str(tmp_path)]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in pids_in(tmp_path):
            if is_running(pid):
                psutil.Process(pid).kill()


def pids_in(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.timeout(120)
async def test_all_processes_of_tasks_end_when_their_worker_is_killed(
    busy: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    async def have_begun() -> bool:
        return len(pids_in(tmp_path)) == PROCESSES

    await eventually(have_begun, timeout_s=60)
    pids = pids_in(tmp_path)
    launchers = [child.pid for child in psutil.Process(busy.pid).children()]
    assert all(is_running(pid) for pid in (*pids, *launchers))
    assert len(launchers) == 2

    busy.send_signal(signal.SIGKILL)
    busy.wait()

    async def are_gone() -> bool:
        return not any(is_running(pid) for pid in (*pids, *launchers))

    await eventually(are_gone, timeout_s=30)
