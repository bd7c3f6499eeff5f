"""Mappings, one a line, as Arrow tables: texts stay texts, and no digit of a number is lost."""

import codecs
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from noetl_contracts import codec
from noetl_storage.arrow import row_tables
from noetl_worker.datasets.problems import DatasetProblem

CHUNK_BYTES = 16 * 1024 * 1024
_LINE_BYTES_MAX = 64 * 1024 * 1024
# What Arrow reads at once.
_BLOCK_BYTES = 1024 * 1024
# Arrow takes minutes for some thousand.
_LEVELS_MAX = 100
_NO_BRACKETS = bytes(sign for sign in range(256) if sign not in b"[]{}")
# Numbers that a float or an integer of 64 bits may not hold as they are written.
_LONG_NUMBER = re.compile(rb"[\d.]{16}|[\d.][eE]\+?\d{3}")
# A text of one line; one that is open ends with its line.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?$)')
# Arrow crashes where a block begins so.
_NULL_LINE = re.compile(rb"(?m)^[ \t\r]*null")
_ROW = re.compile(r"in row (\d+)")


def iterate_tables(file: Any, shown_path: str) -> Iterator[pa.Table]:
    """Yield the rows of a file in pieces; raises `DatasetProblem` that names the line."""
    line = 1
    for chunk in _iterate_chunks(file, shown_path):
        yield _parse_chunk(chunk, shown_path, line=line)
        line += chunk.count(b"\n")


def _iterate_chunks(file: Any, shown_path: str) -> Iterator[bytes]:
    """Yield whole lines together."""
    unfinished_line = b""
    is_first = True
    while data := file.read(CHUNK_BYTES):
        unfinished_line += data.removeprefix(codecs.BOM_UTF8) if is_first else data
        is_first = False
        end = unfinished_line.rfind(b"\n") + 1
        if end:
            yield unfinished_line[:end]
            unfinished_line = unfinished_line[end:]
        elif len(unfinished_line) > _LINE_BYTES_MAX:
            text = f"{shown_path}: a line has more than {_LINE_BYTES_MAX} bytes"
            raise DatasetProblem("payload_too_large", text)
    if unfinished_line.strip():
        yield unfinished_line


def _parse_chunk(chunk: bytes, shown_path: str, *, line: int) -> pa.Table:
    if not chunk.strip():
        return pa.table({})
    _check_text(chunk, shown_path, line=line)
    if _LONG_NUMBER.search(chunk):
        return row_tables.build_table(list(_decode_lines(chunk, shown_path, line=line)))
    try:
        return _read_chunk(chunk, block_bytes=_BLOCK_BYTES)
    except pa.ArrowInvalid:
        # A line may be longer than a block, and rows are counted from the begin of theirs.
        return _read_whole_chunk(chunk, shown_path, line=line)


def _check_text(chunk: bytes, shown_path: str, *, line: int) -> None:
    """Refuse what Arrow would take: bytes that are no text, and what takes it minutes."""
    try:
        if not chunk.isascii():
            chunk.decode()
    except UnicodeDecodeError as problem:
        place = line + chunk.count(b"\n", 0, problem.start)
        text = f"line {place} of {shown_path} is not utf-8: {problem.reason}"
        raise DatasetProblem("parse", text) from problem
    null = _NULL_LINE.search(chunk)
    if null is not None:
        place = line + chunk.count(b"\n", 0, null.end())
        raise DatasetProblem("parse", f"line {place} of {shown_path} is null, and no mapping")
    # Levels may be on several lines.
    if _has_level(_take_levels(chunk)):
        _check_levels(chunk, shown_path, line=line)


def _check_levels(chunk: bytes, shown_path: str, *, line: int) -> None:
    """Refuse too many levels; brackets of texts are none."""
    lines = [_TEXT.sub(b"", text).translate(None, _NO_BRACKETS) for text in chunk.split(b"\n")]
    if not _has_level(_take_levels(b"".join(lines))):
        return
    depth = 0
    for number, brackets in enumerate(lines, line):
        for bracket in brackets:
            depth = depth + 1 if bracket in b"[{" else max(0, depth - 1)
            if depth > _LEVELS_MAX:
                text = (
                    f"line {number} of {shown_path} has more than {_LEVELS_MAX} levels: flatten it"
                )
                raise DatasetProblem("parse", text)


def _take_levels(chunk: bytes) -> bytes:
    """Return the brackets, as many innermost levels taken off as are allowed."""
    brackets = chunk.translate(None, _NO_BRACKETS)
    for _ in range(_LEVELS_MAX):
        if not _has_level(brackets):
            break
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return brackets


def _has_level(brackets: bytes) -> bool:
    return b"[]" in brackets or b"{}" in brackets


def _read_whole_chunk(chunk: bytes, shown_path: str, *, line: int) -> pa.Table:
    try:
        return _read_chunk(chunk, block_bytes=len(chunk))
    except pa.ArrowInvalid as problem:
        match = _ROW.search(str(problem))
        place = _find_line(chunk, int(match[1]) if match else 0, line=line)
        text = f"line {place} of {shown_path}: {' '.join(str(problem).split())}"
        raise DatasetProblem("parse", text[:600]) from problem


def _find_line(chunk: bytes, row: int, *, line: int) -> int:
    """Return the line of a row, as Arrow counts rows: without empty lines."""
    filled = (number for number, text in enumerate(chunk.split(b"\n"), line) if text.strip())
    return next(islice(filled, row, None), line)


def _read_chunk(chunk: bytes, *, block_bytes: int) -> pa.Table:
    read_options = pyarrow.json.ReadOptions(block_size=block_bytes)
    table = pyarrow.json.read_json(pa.BufferReader(chunk), read_options=read_options)
    text_schema = pa.schema([pa.field(item.name, _keep_texts(item.type)) for item in table.schema])
    if text_schema.equals(table.schema):
        return table
    parse_options = pyarrow.json.ParseOptions(explicit_schema=text_schema)
    return pyarrow.json.read_json(
        pa.BufferReader(chunk), read_options=read_options, parse_options=parse_options
    )


def _keep_texts(kind: pa.DataType) -> pa.DataType:
    """Undo that Arrow takes texts for moments when all of them look so."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_keep_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(item.name, _keep_texts(item.type)) for item in kind])
    return kind


def _decode_lines(chunk: bytes, shown_path: str, *, line: int) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(chunk.splitlines(), line):
        if not text.strip():
            continue
        try:
            row = codec.decode_exactly(text)
        except (ValueError, msgspec.DecodeError) as problem:
            raise DatasetProblem("parse", f"line {number} of {shown_path}: {problem}") from problem
        if not isinstance(row, dict):
            raise DatasetProblem("parse", f"line {number} of {shown_path} is no mapping")
        yield row
