"""A step's result in a file: JSON as it is, its rows as CSV or Parquet with their exact types."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files import output_file
from noetl_cli.planner.step_result import StepResult
from noetl_contracts import codec
from noetl_contracts.errors import NoetlError
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from pyarrow import parquet

    from noetl_storage.arrow import row_tables, table_schema
else:
    # Arrow takes longer to load than JSON takes to write.
    parquet = LazyModule("pyarrow.parquet")
    row_tables = LazyModule("noetl_storage.arrow.row_tables")
    table_schema = LazyModule("noetl_storage.arrow.table_schema")


class NoRowsError(Exception):
    """A result is no list of rows."""


def check_result_file(file: Path) -> None:
    """Refuse a file whose suffix names no format, or whose folder is none; raises `CliError`."""
    if file.suffix.lower() not in _WRITERS:
        raise CliError(
            f"The suffix of {str(file)!r} names no format of a result.",
            way_out=f"End the name in {', '.join(_WRITERS)}",
            exit_code=ExitCode.USAGE,
        )
    output_file.check_output_file(file)


def save_result(file: Path, result: StepResult, *, as_json: str) -> None:
    """Write a whole result, in the format of the file's suffix; raises `CliError`.

    `as_json` is the command that writes what cannot be a table.
    """
    check_result_file(file)
    try:
        data = _WRITERS[file.suffix.lower()](result)
    except NoRowsError as error:
        raise CliError(
            f"The result of step {result.step!r} is no list of rows, which {file.suffix} needs.",
            way_out=as_json,
            exit_code=ExitCode.USAGE,
        ) from error
    except (NoetlError, ValueError, ArithmeticError) as error:
        raise CliError(
            f"The result of step {result.step!r} cannot be written as {file.suffix}: {error}",
            way_out=as_json,
        ) from error
    output_file.write_output_file(file, [data])


def _encode_json(result: StepResult) -> bytes:
    return msgspec.json.format(codec.encode_json(result.data), indent=2) + b"\n"


def _encode_csv(result: StepResult) -> bytes:
    rows = _take_rows(result)
    names = rows.column_names()
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_encode_cell(row.get(name)) for name in names] for row in rows.rows)
    return text.getvalue().encode()


def _encode_cell(value: Any) -> str:
    """Write a value with every digit: text as it is, an absent one as nothing, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return codec.encode_json(value).decode()


def _encode_parquet(result: StepResult) -> bytes:
    rows = _take_rows(result)
    table = row_tables.build_table(rows.rows, rows.column_names(), rows.kinds)
    table_schema.check_portable(table, "parquet")
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def _take_rows(result: StepResult) -> "row_tables.RowTable":
    """Take the rows of a result; raises `NoRowsError`."""
    data = result.data
    if isinstance(data, dict) and "rows" not in data and isinstance(data.get("results"), list):
        data = row_tables.join_results(data["results"])
    row_table = row_tables.read_row_table(data)
    if row_table is None:
        raise NoRowsError(result.step)
    return row_table


_WRITERS: dict[str, Callable[[StepResult], bytes]] = {
    ".json": _encode_json,
    ".csv": _encode_csv,
    ".parquet": _encode_parquet,
}
