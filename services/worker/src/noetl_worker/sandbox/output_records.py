"""How lines of user code travel from its process to the worker: one pipe, marked records.

What Python code prints and logs comes as records, so that the order of both streams and the levels
are kept. Bytes between records are what other programs of the task wrote to standard output.
"""

import msgspec
from msgspec import Struct

MARK = b"\x1e"
# After the last record of a call.
END = "end"
# Longer texts are sent as several records: those up to 4 KiB come whole also from many threads.
PIECE_BYTES = 2048


class OutputRecord(Struct, frozen=True, array_like=True):
    """Text of a stream, with its ends of lines; that of `logging` is whole and has a level."""

    stream: str
    text: str = ""
    level: str = ""


def encode_record(record: OutputRecord) -> bytes:
    """Encode a record; JSON has neither a mark nor an end of line in it."""
    return MARK + msgspec.json.encode(record) + b"\n"
