"""How a child process and the worker exchange messages: frames of a length and its bytes."""

import os
import struct
import sys
from typing import BinaryIO

LENGTH = struct.Struct(">I")


def take_pipes(output: int) -> tuple[BinaryIO, BinaryIO]:
    """Keep the worker's pipes for ourselves: user code finds /dev/null and its log behind 0 and 1.

    `output` is the descriptor of the pipe for what it writes.
    """
    asks, answers = os.dup(0), os.dup(1)
    null_descriptor = os.open(os.devnull, os.O_RDWR)
    os.dup2(null_descriptor, 0)
    os.dup2(output, 1)
    os.close(null_descriptor)
    os.close(output)
    return os.fdopen(asks, "rb"), os.fdopen(answers, "wb")


def read_frame(asks: BinaryIO) -> bytes:
    """Read one frame; empty when the worker has closed its end."""
    head = asks.read(LENGTH.size)
    return asks.read(*LENGTH.unpack(head)) if head else b""


def send_frame(data: bytes, answers: BinaryIO) -> None:
    """Send one frame."""
    answers.write(LENGTH.pack(len(data)) + data)
    answers.flush()


def add_packages(folder: str | None) -> None:
    """Find a task's packages before the worker's own, and after those of Python itself."""
    if folder is not None:
        places = enumerate(sys.path)
        first = next((index for index, place in places if "site-packages" in place), len(sys.path))
        sys.path.insert(first, folder)
