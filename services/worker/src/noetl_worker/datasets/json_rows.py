"""Mappings, one a line, as Arrow tables: texts stay texts, and no digit of a number is lost."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from noetl_contracts import codec
from noetl_storage.arrow import row_tables
from noetl_worker.datasets.problems import DatasetProblem

CHUNK_BYTES = 16 * 1024 * 1024
_LINE_BYTES_MAX = 64 * 1024 * 1024
# Numbers that a float or an integer of 64 bits may not hold as they are written.
_LONG_NUMBER = re.compile(rb"[\d.]{17}|[\d.][eE]\+?\d{3}")
_ROW = re.compile(r"in row (\d+)")


def iterate_tables(file: Any, shown: str) -> Iterator[pa.Table]:
    """Yield the rows of a file in pieces; raises `DatasetProblem` that names the line."""
    line = 1
    for chunk in _iterate_chunks(file, shown):
        yield _parse_chunk(chunk, shown, line=line)
        line += chunk.count(b"\n")


def _iterate_chunks(file: Any, shown: str) -> Iterator[bytes]:
    """Yield whole lines together."""
    rest = b""
    while data := file.read(CHUNK_BYTES):
        rest += data
        end = rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
        elif len(rest) > _LINE_BYTES_MAX:
            text = f"{shown}: a line has more than {_LINE_BYTES_MAX} bytes"
            raise DatasetProblem("payload_too_large", text)
    if rest.strip():
        yield rest


def _parse_chunk(chunk: bytes, shown: str, *, line: int) -> pa.Table:
    if not chunk.strip():
        return pa.table({})
    if _LONG_NUMBER.search(chunk):
        return row_tables.build_table(list(_decode_lines(chunk, shown, line=line)))
    try:
        table = pyarrow.json.read_json(pa.BufferReader(chunk))
        plain = pa.schema([pa.field(item.name, _keep_texts(item.type)) for item in table.schema])
        if plain.equals(table.schema):
            return table
        options = pyarrow.json.ParseOptions(explicit_schema=plain)
        return pyarrow.json.read_json(pa.BufferReader(chunk), parse_options=options)
    except pa.ArrowInvalid as problem:
        match = _ROW.search(str(problem))
        place = line + int(match[1]) if match else line
        text = f"line {place} of {shown}: {' '.join(str(problem).split())}"
        raise DatasetProblem("parse", text[:600]) from problem


def _keep_texts(kind: pa.DataType) -> pa.DataType:
    """Undo that Arrow takes texts for moments when all of them look so."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_keep_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(item.name, _keep_texts(item.type)) for item in kind])
    return kind


def _decode_lines(chunk: bytes, shown: str, *, line: int) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(chunk.splitlines(), line):
        if not text.strip():
            continue
        try:
            row = codec.decode_exactly(text)
        except (ValueError, msgspec.DecodeError) as problem:
            raise DatasetProblem("parse", f"line {number} of {shown}: {problem}") from problem
        if not isinstance(row, dict):
            raise DatasetProblem("parse", f"line {number} of {shown} is no mapping")
        yield row
