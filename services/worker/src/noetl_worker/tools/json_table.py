"""JSON files as tables: a mapping a line is read piece by piece, one value as a whole."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.json

from noetl_contracts import codec
from noetl_storage import row_tables
from noetl_storage.table_schema import Kinds
from noetl_storage.unpacking.refusals import too_large

# One value takes about six times its text while it is decoded.
WHOLE_BYTES_MAX = 64 * 1024 * 1024
# Text that takes so many times more than the table it makes is none that a table is made of.
_TEXT_RATIO = 4
_PIECE_ROWS = 10_000
_LONG_NUMBER = re.compile(rb"[\d.]{17}|[\d.][eE]\+?\d{3}")


def read_json(path: Path, kinds: Kinds | None, *, is_lines: bool, bytes_max: int) -> pa.Table:
    """Read a file as a table; raises `PayloadTooLarge` for what takes too much memory."""
    size = path.stat().st_size
    if size > _TEXT_RATIO * bytes_max:
        raise too_large("a file of JSON", size, _TEXT_RATIO * bytes_max)
    if is_lines or _holds_lines(path):
        return _read_lines(path, kinds or {}, bytes_max=bytes_max)
    _check_whole("a file of JSON in one value, which no ndjson or Parquet file would be,", size)
    found = row_tables.records(codec.decode_exactly(path.read_bytes()))
    if found is None:
        return _read_lines(path, kinds or {}, bytes_max=bytes_max)
    return row_tables.table_of(found.rows, found.columns, {**found.kinds, **(kinds or {})})


def _holds_lines(path: Path) -> bool:
    """Tell a mapping a line from a list, and from one mapping."""
    with path.open("rb") as file:
        lines = (line for line in file if line.strip())
        first = next(lines, b"")
        return not first.lstrip().startswith(b"[") and next(lines, None) is not None


def _read_lines(path: Path, kinds: Kinds, *, bytes_max: int) -> pa.Table:
    """Read a mapping a line: by Arrow, unless that would round a number."""
    size = path.stat().st_size
    with path.open("rb") as lines:
        has_long_numbers = any(map(_LONG_NUMBER.search, lines))
    if not has_long_numbers and not kinds:
        return pyarrow.json.read_json(path)
    pieces = list(_pieces(path, kinds, bytes_max=bytes_max))
    if not pieces:
        return row_tables.table_of([], None, kinds)
    try:
        # A column that a piece lacks, or that is empty in it, is that of the others.
        return pa.concat_tables(pieces, promote_options="default").combine_chunks()
    except (pa.ArrowTypeError, pa.ArrowInvalid) as problem:
        pieces.clear()
        what = f"a file of JSON whose columns have no type throughout ({problem}): name 'types',"
        _check_whole(what, size)
    with path.open("rb") as lines:
        rows = [row for piece in _row_pieces(lines) for row in piece]
    return row_tables.table_of(rows, None, kinds)


def _pieces(path: Path, kinds: Kinds, *, bytes_max: int) -> Iterator[pa.Table]:
    size = 0
    with path.open("rb") as lines:
        for rows in _row_pieces(lines):
            piece = row_tables.table_of(rows, None, kinds)
            size += piece.nbytes
            if size > bytes_max:
                raise too_large("a table", size, bytes_max)
            yield piece


def _row_pieces(lines: IO[bytes]) -> Iterator[list[dict[str, Any]]]:
    rows = (dict(codec.decode_exactly(line)) for line in lines if line.strip())
    while piece := list(islice(rows, _PIECE_ROWS)):
        yield piece


def _check_whole(what: str, size: int) -> None:
    if size > WHOLE_BYTES_MAX:
        raise too_large(what, size, WHOLE_BYTES_MAX)
