"""Folders of a checkout, made for several files at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from noetl_worker.workspace.folder_files import open_parent

THREADS = 8


@pytest.mark.parametrize("is_file_in_the_way", [False, True])
def test_files_of_one_new_folder_are_made_beside_each_other(
    tmp_path: Path, *, is_file_in_the_way: bool
) -> None:
    for number in range(100):
        top = tmp_path / str(number)
        top.mkdir()
        if is_file_in_the_way:
            (top / "out").touch()
        barrier = Barrier(THREADS)

        def make(index: int, top: Path = top, barrier: Barrier = barrier) -> str:
            barrier.wait()
            with open_parent(top, f"out/deep/{index}", is_made=True) as (_, name):
                return name

        with ThreadPoolExecutor(THREADS) as threads:
            assert list(threads.map(make, range(THREADS))) == [str(n) for n in range(THREADS)]
