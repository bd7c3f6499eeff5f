"""The rows of a planned source, read by this process: some columns, and what a filter may take."""

import importlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_worker.datasets import lake_loader, read_plan, text_casts
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.file_rows import FilePiece, FileReader, fit_batch
from noetl_worker.datasets.read_plan import ReadPlan


class PlannedSource(Struct, frozen=True, kw_only=True):
    """A source whose files are found, with what opens them: it stays in this process."""

    plan: ReadPlan
    account: Mapping[str, Any] | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of its rows."""
        return read_plan.decode_schema(self.plan.schema)


def iterate_source(
    source: PlannedSource,
    rejects: Rejects,
    *,
    columns: Sequence[str] | None = None,
    condition: Any = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield rows of a source, of `columns` alone where they are named; raises `DatasetProblem`.

    `condition` is an expression of Arrow over the source's columns. Rows that it does not take may
    be left out, or not. Texts are read whole, so that a row fits or not for every query alike.
    """
    plan, whole = source.plan, source.schema
    if columns is not None and plan.format not in read_plan.COLUMNAR:
        for batch in iterate_source(source, rejects, condition=condition):
            yield batch.select(list(columns))
        return
    schema = whole if columns is None else pa.schema([whole.field(name) for name in columns])
    pieces = plan.pieces if condition is None else _select_pieces(plan, whole, condition)
    if plan.state is not None:
        iceberg = lake_loader.load_iceberg()
        shown_path = plan.address.shown_path
        for batch in iceberg.iterate_files(
            pieces, schema, address=plan.address, account=source.account, state=plan.state
        ):
            yield fit_batch(batch, schema, shown_path)
        return
    reader = FileReader(OpenStore(plan.address, source.account), plan.source, plan.format)
    for piece in pieces:
        yield from reader.iterate_batches(piece, schema, rejects, condition=condition, whole=whole)


def build_folder_expression(values: Mapping[str, str | None], schema: pa.Schema) -> Any:
    """Return what is true of every row below folders of these values; None where nothing is.

    A value that is none of its column's type leaves nothing out: reading it says so.
    """
    compute = importlib.import_module("pyarrow.compute")
    folder_expression = None
    for name, text in values.items():
        if name not in schema.names:
            continue
        kind = schema.field(name).type
        cast, wrong = text_casts.cast_texts(pa.array([text], pa.string()), kind)
        if wrong:
            continue
        column = compute.field(name)
        is_equal = column.is_null() if text is None else column == cast[0]
        folder_expression = is_equal if folder_expression is None else folder_expression & is_equal
    return folder_expression


def _select_pieces(plan: ReadPlan, schema: pa.Schema, condition: Any) -> list[FilePiece]:
    """Leave out pieces whose folders rule the condition out."""
    if not any(piece.file.values for piece in plan.pieces):
        return plan.pieces
    # It loads pandas: only workers that come here pay for that.
    files = importlib.import_module("pyarrow.dataset")
    system = importlib.import_module("pyarrow.fs").LocalFileSystem()
    format_ = files.ParquetFileFormat()
    # No file is opened: Arrow compares what is said of each fragment with the condition.
    fragments = [
        format_.make_fragment(
            str(number), system, partition_expression=_get_expression(piece, schema)
        )
        for number, piece in enumerate(plan.pieces)
    ]
    pieces_dataset = files.FileSystemDataset(fragments, schema, format_, system)
    return [plan.pieces[int(fragment.path)] for fragment in pieces_dataset.get_fragments(condition)]


def _get_expression(piece: FilePiece, schema: pa.Schema) -> Any:
    folder_expression = build_folder_expression(piece.file.values, schema)
    if folder_expression is not None:
        return folder_expression
    return importlib.import_module("pyarrow.compute").scalar(True)  # noqa: FBT003 - a literal
