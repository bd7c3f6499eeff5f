"""What a commit of a dataset has added, and what rows must have to be added."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_worker.datasets import column_types
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.problems import DatasetProblem


class SinkReport(Struct, frozen=True, kw_only=True):
    """What a commit has added; `is_repeated` when an earlier attempt had made it.

    `added_columns` are those that were not there before its rows, each with its type.
    """

    path: str
    version: int
    file_count: int
    row_count: int
    size_bytes: int
    partition_count: int
    is_repeated: bool = False
    added_columns: list[str] = []


def build_report(
    path: str,
    version: int,
    files: Sequence[DataFile],
    *,
    is_repeated: bool = False,
    added_columns: Sequence[str] = (),
) -> SinkReport:
    """Add up the files of a commit."""
    return SinkReport(
        path=path,
        version=version,
        file_count=len(files),
        row_count=sum(file.row_count or 0 for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        partition_count=len({tuple(file.values.items()) for file in files}),
        is_repeated=is_repeated,
        added_columns=list(added_columns),
    )


def check_columns(
    shown_path: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    way_out: str = "cast it, or choose mode overwrite",
) -> None:
    """Refuse rows of other columns or types than those that are there; raises `DatasetProblem`."""
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            text = (
                f"{shown_path}: column '{name}' is {before.get(name, 'absent')} there, and "
                f"{after.get(name, 'absent')} in these rows: {way_out}"
            )
            raise DatasetProblem("schema", text)


def check_evolution(
    shown_path: str, before: Mapping[str, Any], after: Mapping[str, Any], *, is_whole: bool
) -> None:
    """Refuse rows of other types; they may have more columns, and lack some that others brought.

    Rows that are `is_whole` lack none: they take the place of others. Raises `DatasetProblem`.
    """
    missing = [name for name in before if name not in after]
    if is_whole and missing:
        text = (
            f"{shown_path}: column '{missing[0]}' is absent in rows that take the place of others"
        )
        raise DatasetProblem("schema", f"{text}: select it, as NULL AS {missing[0]}")
    names = [name for name in before if name in after]
    check_columns(
        shown_path,
        {name: before[name] for name in names},
        {name: after[name] for name in names},
        way_out="cast it, or write it under another name",
    )


def list_new_fields(names: Container[str], schema: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that are not among some `names`; each may be null."""
    may_be_null = True
    return [field.with_nullable(may_be_null) for field in schema if field.name not in names]


def show_fields(fields: Sequence[pa.Field]) -> list[str]:
    """Write columns as DDL does."""
    return [f"{field.name} {column_types.name_type(field.type)}" for field in fields]
