"""CSV as a table: columns of numbers only where no digit is lost, else of decimals or text."""

from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
from pyarrow import compute

from noetl_storage.arrow.table_schema import DECIMAL_DIGITS_MAX, Kinds, build_decimal_type
from noetl_storage.size_limits.refusals import build_too_large_error

FileOpener = Callable[[], IO[bytes]]

# No text of a cell is shorter than its comma, and no number takes more than this.
_CELL_BYTES = 8
# A float holds every number of so many digits as it is written.
_FLOAT_DIGITS_MAX = 15
_NULL_TEXTS = ["", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "n/a", "null"]
_CANONICAL_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_LEADING_ZERO = r"^[+-]?0[0-9]"
_LARGE_EXPONENT = r"[eE][+-]?[0-9]{3}"
_PLAIN_DECIMAL = r"^[+-]?[0-9]+(\.[0-9]*)?$"


def read_csv(
    open_file: FileOpener, size: int, *, bytes_max: int, kinds: Kinds | None = None
) -> pa.Table:
    """Read so many bytes of CSV, and stop at the bound; raises `PayloadTooLarge`.

    A column of `kinds` has that type. Another has that of all its values, as Arrow reads them, but
    none loses a digit: numbers with leading zeros are text, and those that neither an integer nor
    a float holds are decimals, or text where a decimal does not hold them either.
    """
    table = _read_table(open_file, size, _build_options(kinds or {}), bytes_max=bytes_max)
    numeric = [
        field.name
        for field in table.schema
        if (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
        and field.name not in (kinds or {})
    ]
    # A reader of columns of one name refuses them.
    if not numeric or len(set(table.column_names)) < table.num_columns:
        return table
    checked = {name: table.schema.field(name).type for name in numeric}
    exact = _find_exact_kinds(open_file, checked)
    if not exact:
        return table
    return _read_table(
        open_file, size, _build_options({**(kinds or {}), **exact}), bytes_max=bytes_max
    )


def _build_options(kinds: Kinds) -> pyarrow.csv.ConvertOptions:
    # Not a number is no absence of one.
    return pyarrow.csv.ConvertOptions(column_types=dict(kinds), null_values=_NULL_TEXTS)


def _read_table(open_file: FileOpener, size: int, options: Any, *, bytes_max: int) -> pa.Table:
    """Read a table. Block by block, a column has the type of its first block.

    One that turns out to be of another is read as a whole, as long as not even that could take
    very much.
    """
    if size * _CELL_BYTES <= bytes_max:
        with open_file() as file:
            return pyarrow.csv.read_csv(file, convert_options=options)
    try:
        with open_file() as file, pyarrow.csv.open_csv(file, convert_options=options) as reader:
            return pa.Table.from_batches(_limit_batches(reader, bytes_max), schema=reader.schema)
    except pa.ArrowInvalid as problem:
        if size > bytes_max:
            subject = f"a file of CSV that is no table block by block ({problem})"
            raise build_too_large_error(subject, size, bytes_max) from problem
    with open_file() as file:
        return pyarrow.csv.read_csv(file, convert_options=options)


def _limit_batches(batches: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > bytes_max:
            raise build_too_large_error("a table", size, bytes_max)
        yield batch


def _find_exact_kinds(open_file: FileOpener, kinds: Kinds) -> dict[str, pa.DataType]:
    """Return the types of the columns of numbers that would lose digits as they were read."""
    shapes = {name: _NumberShape(pa.types.is_integer(kind)) for name, kind in kinds.items()}
    options = pyarrow.csv.ConvertOptions(
        include_columns=list(kinds),
        column_types=dict.fromkeys(kinds, pa.string()),
        null_values=_NULL_TEXTS,
        strings_can_be_null=True,
    )
    with open_file() as file, pyarrow.csv.open_csv(file, convert_options=options) as reader:
        for batch in reader:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                shapes[name].add_texts(column)
    types = {name: shape.choose_type() for name, shape in shapes.items()}
    return {name: kind for name, kind in types.items() if kind is not None}


class _NumberShape:
    """How the numbers of a column are written."""

    def __init__(self, is_integer: bool) -> None:  # noqa: FBT001 - it is all that is known
        self._is_integer = is_integer
        self._is_canonical = self._is_plain_decimal = True
        self._is_lossy = False
        self._whole = self._scale = self._digits = 0

    def add_texts(self, texts: pa.Array) -> None:
        """Look at more of them."""
        texts = compute.utf8_trim_whitespace(texts.drop_null())
        if self._is_integer:
            self._is_canonical = self._is_canonical and _all_match(texts, _CANONICAL_INTEGER)
            return
        is_lossy = _any_matches(texts, _LEADING_ZERO) or _any_matches(texts, _LARGE_EXPONENT)
        self._is_lossy = self._is_lossy or is_lossy
        self._is_plain_decimal = self._is_plain_decimal and _all_match(texts, _PLAIN_DECIMAL)
        numbers = compute.replace_substring_regex(texts, r"[eE].*$", "")
        numbers = compute.replace_substring_regex(numbers, r"^[+-]", "")
        whole_digits = compute.replace_substring_regex(numbers, r"\..*$", "")
        self._whole = max(self._whole, _measure_longest(whole_digits))
        self._scale = max(self._scale, _measure_longest(numbers, r"^[^.]*\.?"))
        digits = compute.replace_substring_regex(numbers, r"\.", "")
        self._digits = max(self._digits, _measure_longest(digits, r"^0+"))

    def choose_type(self) -> pa.DataType | None:
        """Return the type that loses no digit, None where the one that was found does not."""
        if self._is_integer:
            return None if self._is_canonical else pa.string()
        if self._is_lossy:
            return pa.string()
        if self._digits <= _FLOAT_DIGITS_MAX:
            return None
        fits = self._is_plain_decimal and self._whole + self._scale <= DECIMAL_DIGITS_MAX
        return build_decimal_type(self._whole + self._scale, self._scale) if fits else pa.string()


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return compute.all(compute.match_substring_regex(texts, pattern)).as_py() is not False


def _any_matches(texts: pa.Array, pattern: str) -> bool:
    return compute.any(compute.match_substring_regex(texts, pattern)).as_py() is True


def _measure_longest(texts: pa.Array, removed_pattern: str = "^$") -> int:
    """Return how many characters the longest text has, apart from what is removed."""
    remaining_texts = compute.replace_substring_regex(texts, removed_pattern, "")
    return compute.max(compute.utf8_length(remaining_texts)).as_py() or 0
