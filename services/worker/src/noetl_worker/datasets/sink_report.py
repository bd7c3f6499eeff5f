"""What a commit of a dataset has added, and what rows must have to be added."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.problems import DatasetProblem


class SinkReport(Struct, frozen=True, kw_only=True):
    """What a commit has added; `is_repeated` when an earlier attempt had made it."""

    path: str
    version: int
    file_count: int
    row_count: int
    size_bytes: int
    partition_count: int
    is_repeated: bool = False


def build_report(
    path: str, version: int, files: Sequence[DataFile], *, is_repeated: bool = False
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
