"""Files that commands write: whole, or not at all."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files.output_file import check_output_file, write_output_file


def test_parts_are_written_in_their_order_over_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b"a longer text than the new one")
    assert write_output_file(file, [b"one\n", b"two\n"]) == 2
    assert file.read_bytes() == b"one\ntwo\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_part_that_cannot_be_had_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b"before")

    def fail() -> Iterator[bytes]:
        yield b"half"
        raise CliError("the planner is away")

    with pytest.raises(CliError, match="the planner is away"):
        write_output_file(file, fail())
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("name", "told"), [("", "is a folder"), ("none/a.json", "is no folder")])
def test_a_folder_and_a_file_in_none_are_refused(tmp_path: Path, name: str, told: str) -> None:
    for refuse in (check_output_file, lambda file: write_output_file(file, [b"x"])):
        with pytest.raises(CliError, match=told) as refused:
            refuse(tmp_path / name)
        assert refused.value.exit_code == ExitCode.USAGE
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_as_the_parts_come(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert write_output_file(pipe, [b"one\n", b"two\n"]) == 2
    reader.join(60)
    assert read == [b"one\ntwo\n"]
    assert pipe.is_fifo()
