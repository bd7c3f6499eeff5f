"""CSV as batches of typed rows: nothing is lost silently, and a row that does not fit is named."""

import codecs
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
from msgspec import Struct

from noetl_contracts.json_values import list_repeated_names
from noetl_playbook.model.datasets import BadRow, CsvOptions
from noetl_worker.datasets import text_casts
from noetl_worker.datasets.problems import DatasetProblem

# A row is within two blocks that follow each other.
BLOCK_BYTES = 16 * 1024 * 1024
_FIELD_CHARACTERS_MAX = 2 * BLOCK_BYTES
_SHOWN_CHARACTERS = 80
REJECTS_SHOWN_MAX = 100
_SEVERAL_LINES = "a value of several lines: close its quote, or choose multi_line: true"


class RejectedRow(Struct, frozen=True, kw_only=True):
    """A row that does not fit: its file, its line, the column and text that do not fit, and why."""

    file: str
    line: int
    column: str | None
    text: str
    reason: str


class Rejects:
    """Counts the rows that do not fit, and keeps the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[RejectedRow] = []

    def add_row(self, row: RejectedRow) -> None:
        """Count one."""
        self.count += 1
        if len(self.rows) < REJECTS_SHOWN_MAX:
            self.rows.append(row)


class CsvFile(Struct, frozen=True, kw_only=True):
    """A file, how it is written, and what becomes of rows that do not fit.

    `names` are those of the columns of a file that has no header. Columns that it may lack are
    null.
    """

    shown_path: str
    open_file: Callable[[], Any]
    options: CsvOptions
    on_bad_row: BadRow = "fail"
    names: tuple[str, ...] = ()
    may_lack_columns: bool = False


def read_column_names(file: CsvFile) -> list[str]:
    """Return the names in the first line, or `c1`, `c2` ... where it has none.

    Raises `DatasetProblem`.
    """
    return _read_head(file)[0]


def _read_head(file: CsvFile) -> tuple[list[str], int]:
    """Return the names of the columns, and how many rows are before the data, empty ones too."""
    empty_rows, first = next(
        ((number, row) for number, row in enumerate(_iterate_lines(file)) if row), (0, None)
    )
    if first is None:
        if file.options.header:
            raise DatasetProblem("parse", f"{file.shown_path} is empty: a header was expected")
        # An empty line is a row of one column.
        return list(file.names) if len(file.names) == 1 else [], 0
    if not file.options.header:
        return list(file.names) or [f"c{number}" for number in range(1, len(first) + 1)], 0
    names = [name.removeprefix("\ufeff") for name in first]
    if repeated_names := list_repeated_names(names):
        text = f"{file.shown_path}: the header has several columns named '{repeated_names[0]}'"
        raise DatasetProblem("schema", text)
    return names, empty_rows + 1


def iterate_text_batches(file: CsvFile, rejects: Rejects) -> Iterator[pa.RecordBatch]:
    """Yield the rows as texts, in pieces; raises `DatasetProblem`."""
    names, skipped = _read_head(file)
    if not names:
        return
    bad: list[pyarrow.csv.InvalidRow] = []
    lines = _RowLines(file, columns=len(names))
    holds_lines = False

    def note_invalid(row: pyarrow.csv.InvalidRow) -> str:
        nonlocal holds_lines
        bad.append(row)
        holds_lines = holds_lines or "\n" in row.text.strip() or "\r" in row.text.strip()
        return "skip"

    try:
        for batch in _open_reader(file, names, skipped, note_invalid):
            holds_lines = holds_lines or _holds_lines(batch)
            if holds_lines and not file.options.multi_line:
                _check_quotes(file)
            _tell_invalid(file, bad, rejects, lines, skipped)
            yield batch
        if holds_lines:
            _check_quotes(file)
    except pa.ArrowInvalid as problem:
        if _is_problem_of_rows(file, problem, skipped):
            raise _build_parse_problem(file, problem) from problem
    except UnicodeError as problem:
        raise _build_encoding_problem(file, problem) from problem
    _tell_invalid(file, bad, rejects, lines, skipped)


def _holds_lines(batch: pa.RecordBatch) -> bool:
    """Tell whether a value has an end of a line inside."""
    texts = [data.to_pybytes() for column in batch.columns if (data := column.buffers()[2])]
    return any(b"\n" in text or b"\r" in text for text in texts)


def _is_problem_of_rows(file: CsvFile, problem: pa.ArrowInvalid, skipped: int) -> bool:
    """Tell whether an error is about rows: Arrow also refuses files that have none."""
    if "Empty CSV" in str(problem):
        return False
    if "straddling" not in str(problem):
        return True
    with _open_text(file) as text:
        reader = _build_reader(file, text)
        for _ in range(skipped):
            next(reader)
        return text.read(1) != ""


def iterate_typed_batches(
    file: CsvFile, schema: pa.Schema, rejects: Rejects
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the types of a schema; raises `DatasetProblem`.

    A column that the file lacks is refused or null, one that the schema lacks is left out.
    """
    names = read_column_names(file)
    missing = [name for name in schema.names if name not in names]
    if missing and names and not file.may_lack_columns:
        text = (
            f"{file.shown_path} has no column '{missing[0]}' of the schema: it has "
            f"{', '.join(names[:20])}: choose merge_schema: true, by which it is null there"
        )
        raise DatasetProblem("schema", text)
    count = 0
    lines = _RowLines(file, columns=len(names), is_exact=True)
    for batch in iterate_text_batches(file, rejects):
        # The search for rows takes long where many do not fit, and the first one ends the read.
        rows_max = 1 if file.on_bad_row == "fail" else batch.num_rows
        cast, unfit = _cast_batch(batch, schema, rows_max)
        for row in sorted(unfit):
            is_shown = file.on_bad_row == "fail" or len(rejects.rows) < REJECTS_SHOWN_MAX
            line = lines.find_line(count + row) if is_shown else 0
            _take_reject(file, _build_reject(file, batch, unfit[row], row, line), rejects)
        yield (
            cast.filter(pa.array([row not in unfit for row in range(len(cast))])) if unfit else cast
        )
        count += batch.num_rows


def _check_quotes(file: CsvFile) -> None:
    """Refuse a quote that takes rows after it into its value; raises `DatasetProblem`."""
    line = 1
    with _open_text(file) as text:
        reader = _build_reader(file, text, is_strict=True)
        while True:
            try:
                row = next(reader, None)
            except csv.Error as problem:
                reason = _explain_quote(problem, is_in_line=reader.line_num == line)
                if reason:
                    text_shown = f"line {line} of {file.shown_path} {reason}"
                    raise DatasetProblem("parse", text_shown) from problem
            else:
                if row is None:
                    break
                if reader.line_num > line and not file.options.multi_line:
                    place = f"line {line} of {file.shown_path}"
                    raise DatasetProblem("parse", f"{place} begins {_SEVERAL_LINES}")
            line = reader.line_num + 1
    if not file.options.multi_line:
        raise DatasetProblem("parse", f"{file.shown_path} has {_SEVERAL_LINES}")


def _explain_quote(problem: csv.Error, *, is_in_line: bool) -> str:
    """Say what is wrong with the quotes of a line; nothing where the line may be read as it is."""
    if "unexpected end" in str(problem):
        return "opens a quote that is never closed"
    if "expected after" not in str(problem):
        return f"is no CSV: {problem}"
    # Text after a quote of the same line belongs to the value.
    return "" if is_in_line else "opens a quote that a later line closes before more text"


def _open_reader(
    file: CsvFile, names: Sequence[str], skipped: int, note_invalid: Callable[[Any], str]
) -> Any:
    options = file.options
    return pyarrow.csv.open_csv(
        _open_as_utf8(file),
        read_options=pyarrow.csv.ReadOptions(
            column_names=list(names),
            skip_rows_after_names=skipped,
            block_size=BLOCK_BYTES,
            # The handler of invalid rows is told their numbers by one thread alone.
            use_threads=False,
        ),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            escape_char=options.escape or False,
            newlines_in_values=options.multi_line,
            ignore_empty_lines=len(names) > 1,
            invalid_row_handler=note_invalid,
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=list(options.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _open_as_utf8(file: CsvFile) -> Any:
    name = _find_codec(file)
    file_stream = file.open_file()
    if name in ("utf-8", "ascii"):
        return file_stream
    return pa.transcoding_input_stream(file_stream, name, "utf-8")


def _find_codec(file: CsvFile) -> str:
    """Return the name of a file's encoding; raises `DatasetProblem`."""
    encoding = file.options.encoding
    try:
        # Not every codec is one of texts.
        "".encode(encoding)
        return codecs.lookup(encoding).name
    except (LookupError, ValueError) as problem:
        text = f"encoding {encoding!r:.40} is not known: name one such as utf-8"
        raise DatasetProblem("validation", text) from problem


def _tell_invalid(
    file: CsvFile, bad: list[Any], rejects: Rejects, lines: "_RowLines", skipped: int
) -> None:
    """Deal with rows of too few or too many values."""
    for row in bad:
        reason = f"{row.actual_columns} values instead of {row.expected_columns}"
        line = lines.find_line(int(row.number or 1) - 1 - skipped)
        rejected = RejectedRow(
            file=file.shown_path,
            line=line,
            column=None,
            text=_shorten_text(row.text),
            reason=reason,
        )
        _take_reject(file, rejected, rejects)
    bad.clear()


def _take_reject(file: CsvFile, row: RejectedRow, rejects: Rejects) -> None:
    if file.on_bad_row == "fail":
        line_text = f"line {row.line} of {row.file}"
        column = "" if row.column is None else f", column '{row.column}'"
        text = (
            f"{line_text}{column}: {row.text!r} ({row.reason}): correct it, or choose "
            "on_bad_row: skip or divert"
        )
        raise DatasetProblem("schema", text)
    rejects.add_row(row)


def _cast_batch(
    batch: pa.RecordBatch, schema: pa.Schema, rows_max: int
) -> tuple[pa.RecordBatch, dict[int, tuple[str, pa.DataType]]]:
    """Cast a batch; return it, and the first column and its type of each row that does not fit."""
    columns: list[pa.Array] = []
    unfit: dict[int, tuple[str, pa.DataType]] = {}
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        texts = batch.column(index)
        values, rows = text_casts.cast_texts(texts, field.type, rows_max=rows_max)
        for row in rows:
            unfit.setdefault(row, (field.name, field.type))
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=schema), unfit


def _build_reject(
    file: CsvFile, batch: pa.RecordBatch, place: tuple[str, pa.DataType], row: int, line: int
) -> RejectedRow:
    column, kind = place
    text = batch.column(batch.schema.get_field_index(column))[row].as_py()
    return RejectedRow(
        file=file.shown_path,
        line=line,
        column=column,
        text=_shorten_text(text or ""),
        reason=f"is no {kind}",
    )


class _RowLines:
    """Finds the lines of rows, asked for in their order, in one pass over the file.

    Where `is_exact`, rows of another number of values than `columns` are not counted.
    """

    def __init__(self, file: CsvFile, *, columns: int, is_exact: bool = False) -> None:
        self._places = _iterate_row_places(file, has_empty=columns == 1)
        self._width = columns if is_exact else None
        self._row = -1

    def find_line(self, row: int) -> int:
        """Return the line on which a row of the data begins, counted from 1; 0 if there is none."""
        for line, size in self._places:
            self._row += self._width is None or size == self._width
            if self._row == row:
                return line
        return 0


def _iterate_row_places(file: CsvFile, *, has_empty: bool) -> Iterator[tuple[int, int]]:
    """Yield the line on which each row of the data begins, and how many values it has.

    Where it `has_empty` rows, an empty line is one of them.
    """
    with _open_text(file) as text:
        reader = _build_reader(file, text)
        line = 1
        is_header = file.options.header
        try:
            for row in reader:
                if (row or has_empty) and not is_header:
                    yield line, max(1, len(row))
                is_header = is_header and not row
                line = reader.line_num + 1
        except csv.Error as problem:
            raise DatasetProblem(
                "parse", f"line {line} of {file.shown_path}: {problem}"
            ) from problem


def _iterate_lines(file: CsvFile) -> Iterator[list[str]]:
    try:
        with _open_text(file) as text:
            yield from _build_reader(file, text)
    except UnicodeError as problem:
        raise _build_encoding_problem(file, problem) from problem
    except csv.Error as problem:
        raise DatasetProblem("parse", f"{file.shown_path}: {problem}") from problem


def _open_text(file: CsvFile) -> io.TextIOWrapper:
    name = _find_codec(file)
    encoding = "utf-8-sig" if name == "utf-8" else name
    return io.TextIOWrapper(io.BufferedReader(file.open_file()), encoding=encoding, newline="")


def allow_long_values() -> None:
    """Let Python's `csv` read what Arrow reads; to be called before each reader is built.

    The limit is one for the whole process, and others may have set it.
    """
    csv.field_size_limit(_FIELD_CHARACTERS_MAX)


def _build_reader(file: CsvFile, text: io.TextIOWrapper, *, is_strict: bool = False) -> Any:
    options = file.options
    allow_long_values()
    return csv.reader(
        text,
        delimiter=options.delimiter,
        quotechar=options.quote,
        escapechar=options.escape,
        strict=is_strict,
    )


def _build_parse_problem(file: CsvFile, problem: Exception) -> DatasetProblem:
    text = str(problem)
    if "straddling" in text:
        reason = f"a row has more than {BLOCK_BYTES} bytes, or a quote is not closed"
        return DatasetProblem("parse", f"{file.shown_path}: {reason}")
    if "UTF8" in text or "UTF-8" in text:
        return _build_encoding_problem(file, problem)
    return DatasetProblem("parse", f"{file.shown_path}: {_shorten_text(text)}")


def _build_encoding_problem(file: CsvFile, problem: Exception) -> DatasetProblem:
    text = f"{file.shown_path} is not {file.options.encoding}: name its 'encoding' ({problem})"
    return DatasetProblem("parse", text)


def _shorten_text(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _SHOWN_CHARACTERS else f"{plain[:_SHOWN_CHARACTERS]}..."
