"""What user code leaves behind goes, whatever it is."""

import os
import stat
from pathlib import Path

import pytest

from noetl_storage.process import removal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_files_folders_links_and_pipes_go(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "below").mkdir(parents=True)
    (kept / "file").write_text("x")
    (folder / "a" / "b" / "c").mkdir(parents=True)
    (folder / "a" / "file").write_text("x")
    (folder / "link").symlink_to(kept)
    (folder / "a" / "link").symlink_to(kept / "file")
    (folder / "a" / "b" / "gone").symlink_to("nowhere")
    os.mkfifo(folder / "a" / "pipe")
    assert removal.remove_folder(folder, within_s=5)
    assert not folder.exists()
    assert sorted(path.name for path in kept.iterdir()) == ["below", "file"]


def test_what_was_closed_to_its_own_user_goes_too(folder: Path) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    for path in (inner / "file", inner, folder / "a", folder):
        path.chmod(0)
    assert removal.remove_folder(folder, within_s=5)
    assert not folder.exists()


def test_no_depth_is_too_deep(folder: Path) -> None:
    before = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(3000):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(before)
    assert removal.remove_folder(folder, within_s=30)


def test_what_takes_too_long_is_said_to_be_left(folder: Path) -> None:
    (folder / "file").write_text("x")
    assert not removal.empty_folder(folder, within_s=-1)
    assert not removal.remove_folder(folder, within_s=-1)
    assert (folder / "file").exists()


def test_a_home_is_removed_once(folder: Path) -> None:
    assert removal.remove_folder(folder, within_s=5)
    assert removal.remove_folder(folder, within_s=5)


def test_a_link_in_the_place_of_a_home_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "file").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert not removal.remove_folder(link, within_s=5)
    assert (folder / "file").exists()
    assert stat.S_ISLNK(link.lstat().st_mode)
