"""What a killed worker has left on its machine goes when the next one begins."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from structlog.testing import CapturingLogger
from tests.support.polling import eventually
from tests.support.working import bench

from noetl_storage.process import scratch
from noetl_worker import tool_factory


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files that nobody else uses."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def busy(temporary: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker's process, in the middle of a task."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.scratching"],
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    began = psutil.Process(process.pid)
    try:
        yield process
    finally:
        for item in [*began.children(recursive=True), began] if began.is_running() else []:
            item.kill()
        process.wait()


def left_in(temporary: Path) -> list[Path]:
    return sorted(temporary.glob(f"{scratch.PREFIX}*"))


def written_in(temporary: Path) -> list[Path]:
    return list(temporary.glob(f"{scratch.PREFIX}python-*/*/files/left.txt"))


async def test_what_a_killed_worker_left_goes_when_the_next_one_begins(
    temporary: Path, busy: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_at_work() -> list[Path]:
        return written_in(temporary)

    await eventually(is_at_work, timeout_s=60)
    held = left_in(temporary)
    async with bench():
        # Both are at work: nobody takes anything from the other.
        assert set(held) < set(left_in(temporary))
    assert left_in(temporary) == held

    for item in psutil.Process(busy.pid).children(recursive=True):
        item.kill()
    busy.send_signal(signal.SIGKILL)
    busy.wait()
    assert left_in(temporary) == held
    # What else runs in this process may have set the level below which nothing is said.
    capturing_logger = CapturingLogger()
    monkeypatch.setattr(tool_factory, "log", capturing_logger)
    async with bench():
        assert not set(held) & set(left_in(temporary))
    folders = [
        call.kwargs["folders"] for call in capturing_logger.calls if "folders" in call.kwargs
    ]
    assert folders == [len(held)]
    assert left_in(temporary) == []


def test_only_what_is_ours_to_remove_is_removed(temporary: Path) -> None:
    kept = temporary / "kept"
    kept.mkdir()
    (kept / "file").write_text("of somebody")
    (temporary / f"{scratch.PREFIX}link").symlink_to(kept)
    (temporary / f"{scratch.PREFIX}file").write_text("no folder")
    (temporary / "other").mkdir()
    before = sorted(temporary.rglob("*"))
    with scratch.hold_scratch_folder("held") as held:
        assert scratch.sweep_scratch_folders() == 0
        assert held.is_dir()
    assert sorted(temporary.rglob("*")) == before


def test_folders_that_a_sweeper_gets_first_are_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    swept: list[int] = []

    def made_and_swept(**given: str) -> str:
        folder = make(**given)
        if not swept:
            swept.append(scratch.sweep_scratch_folders())
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    with scratch.hold_scratch_folder("work") as folder:
        assert folder.is_dir()
        assert swept == [1]
        assert scratch.sweep_scratch_folders() == 0
    assert left_in(temporary) == []


def test_no_task_can_leave_what_keeps_the_next_worker_from_its_start(temporary: Path) -> None:
    """As a task does that makes folders in folders, and closes them, before its worker dies."""
    left = temporary / f"{scratch.PREFIX}python-x"
    left.mkdir()
    before = Path.cwd()
    os.chdir(left)
    try:
        for _ in range(1100):
            Path("d").mkdir()
            os.chdir("d")
        Path().chmod(0)
    finally:
        os.chdir(before)
    assert scratch.sweep_scratch_folders() == 1
    with scratch.hold_scratch_folder("work") as folder:
        (folder / "closed").mkdir(mode=0)
    assert left_in(temporary) == []


def test_folders_below_another_root_are_swept_there(tmp_path: Path) -> None:
    left = tmp_path / f"{scratch.PREFIX}spark-x"
    (left / "local/blocks").mkdir(parents=True)
    with scratch.hold_scratch_folder("spark", root=tmp_path) as held:
        assert scratch.sweep_scratch_folders(tmp_path) == 1
        assert [path.name for path in tmp_path.iterdir()] == [held.name]
    assert list(tmp_path.iterdir()) == []
