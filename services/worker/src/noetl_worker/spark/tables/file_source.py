"""Files in buckets and folders as tables of Spark, read by the executors themselves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from noetl_contracts import codec
from noetl_storage.arrow.table_schema import SchemaMismatch
from noetl_worker.datasets import address as addresses
from noetl_worker.datasets import column_filters, lake_loader, read_plan
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.column_filters import ColumnFilter
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.file_rows import FilePiece, FileReader
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.read_plan import ReadPlan
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.tables import arrow_columns, named_tables, store_access
from noetl_worker.spark.tables.dataset_plans import FileInput
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress

NAME = "noetl_files"
_BATCH_ROWS = 10_000
_REJECTS = "rejects"
_SIGNS: dict[type[Filter], str] = {
    datasource.EqualTo: "=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.In: "in",
}


class PiecesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, number: int, pieces: list[FilePiece]) -> None:
        super().__init__(number)
        self.number = number
        self.pieces = pieces


class FileSource(DataSource):
    """Rows of files; its one option `source` is a `FileInput`."""

    grant: JobGrant | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns that the plan has found."""
        return build_spark_schema(_decode_input(self.options).plan)

    def reader(self, schema: StructType) -> "FilePieceReader":  # noqa: ARG002 - Spark's signature
        """Return a reader that gives exactly these columns."""
        file_input = _decode_input(self.options)
        home = file_input.home.with_grant(self.grant)
        return FilePieceReader(msgspec.structs.replace(file_input, home=home))


class FilePieceReader(DataSourceReader):
    """Spreads pieces over tasks, and reads what a task was given."""

    def __init__(self, file_input: FileInput) -> None:
        self._file_input = file_input
        self._filters: list[ColumnFilter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Note what lets files and row groups be left out; Spark filters the rows itself."""
        for pushed_filter in filters:
            sign = _SIGNS.get(type(pushed_filter))
            attribute: tuple[str, ...] = getattr(pushed_filter, "attribute", ())
            if sign is not None and len(attribute) == 1:
                value: Any = getattr(pushed_filter, "value", None)
                value = list(value) if sign == "in" else value
                self._filters.append(ColumnFilter(column=attribute[0], sign=sign, value=value))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Spread the pieces over tasks by their bytes."""
        plan = self._file_input.plan
        schema = read_plan.decode_schema(plan.schema)
        pieces = [
            piece
            for piece in plan.pieces
            if column_filters.may_hold(piece.file.values, self._filters, schema)
        ]
        groups = group_by_bytes(pieces, self._file_input.tasks)
        return [PiecesPartition(number, group) for number, group in enumerate(groups)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pieces of a task."""
        assert isinstance(partition, PiecesPartition), "Spark hands back what `partitions` gave"
        file_input = self._file_input
        schema = read_plan.decode_schema(file_input.plan.schema)
        arrow_schema = named_tables.build_arrow_schema(build_spark_schema(file_input.plan))
        rejects = Rejects()
        try:
            account = open_account(file_input.home, file_input.plan.address)
            for shown_path, batch in self._iterate_batches(
                partition.pieces, schema, rejects, account
            ):
                yield from _fit_batch(batch, arrow_schema, shown_path)
        except DatasetProblem as problem:
            raise SparkRefusal(problem.kind, problem.message) from problem
        if rejects.count:
            _report_rejects(file_input, partition.number, rejects)

    def _iterate_batches(
        self,
        pieces: list[FilePiece],
        schema: pa.Schema,
        rejects: Rejects,
        account: Mapping[str, Any] | None,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield batches, each with the file or the table that errors name."""
        plan = self._file_input.plan
        if plan.state is not None:
            iceberg = lake_loader.load_iceberg()
            batches = iceberg.iterate_files(
                pieces, schema, address=plan.address, account=account, state=plan.state
            )
            yield from ((plan.address.shown_path, batch) for batch in batches)
            return
        reader = FileReader(OpenStore(plan.address, account), plan.source, plan.format)
        for piece in pieces:
            shown_path = plan.address.show_key(piece.file.path)
            batches = reader.iterate_batches(piece, schema, rejects, filters=self._filters)
            yield from ((shown_path, batch) for batch in batches)


def build_spark_schema(plan: ReadPlan) -> StructType:
    """Return the columns of a plan as Spark has them."""
    schema = arrow_columns.fit_schema(read_plan.decode_schema(plan.schema))
    return named_tables.build_spark_schema(schema)


def encode_input(file_input: FileInput) -> str:
    """Write an input as the option of a read."""
    return codec.encode_text(msgspec.structs.replace(file_input, home=file_input.home.place))


def read_rejects(home: StoreAddress, name: str) -> Rejects:
    """Gather the rows that tasks have found not to fit; raises `SparkRefusal`."""

    async def read_all(payloads: Any) -> list[bytes]:
        owner = {"tenant_id": home.tenant_id, "organization_id": home.organization_id}
        names = await payloads.list_names(f"{name}/", **owner)
        return [
            data
            for object_name in names
            if (data := await payloads.find_named(object_name, **owner))
        ]

    all_rejects = Rejects()
    for data in store_access.run_with_store(home, read_all):
        part = msgspec.json.decode(data, type=ReportedRejects)
        all_rejects.count += part.count
        all_rejects.rows += part.rows
    return all_rejects


class ReportedRejects(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that one task of Spark left out, for the driver."""

    count: int
    rows: list[Any]


def _report_rejects(file_input: FileInput, task: int, rejects: Rejects) -> None:
    """Leave what was rejected where the driver finds it; a repeated task reports the same."""
    home = file_input.home
    data = codec.encode_json(ReportedRejects(count=rejects.count, rows=list(rejects.rows)))

    async def put_rejects(payloads: Any) -> None:
        await payloads.put_named(
            f"{file_input.rejects}/{task}",
            data,
            tenant_id=home.tenant_id,
            organization_id=home.organization_id,
        )

    store_access.run_with_store(home, put_rejects)


def open_account(home: StoreAddress, address: DatasetAddress) -> Mapping[str, Any] | None:
    """Open the credential of an address in an executor; raises `SparkRefusal`."""
    if address.credential is None:
        return None
    name = address.credential
    account = store_access.open_credential_fields(home, name)
    if not account.get("session_token") or store_access.find_end(home) is None:
        return account

    def renew_keys() -> dict[str, Any]:
        fields = store_access.open_credential_fields(home, name)
        return {
            "access_key_id": fields["access_key"],
            "secret_access_key": fields["secret_key"],
            "token": fields["session_token"],
            "expires_at": store_access.find_end(home),
        }

    # A file may take longer to read than its keys live.
    return {**account, addresses.PROVIDER: renew_keys}


def _decode_input(options: Any) -> FileInput:
    return msgspec.json.decode(options["source"].encode(), type=FileInput)


def _fit_batch(
    batch: pa.RecordBatch, schema: pa.Schema, shown_path: str
) -> Iterator[pa.RecordBatch]:
    try:
        table = arrow_columns.cast_table(pa.Table.from_batches([batch]), schema)
    except SchemaMismatch as problem:
        raise SparkRefusal("schema", f"{shown_path}: {problem}") from problem
    yield from table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


def group_by_bytes(pieces: list[FilePiece], groups_max: int) -> Iterator[list[FilePiece]]:
    """Lay pieces into at most so many groups of about the same size, keeping their order."""
    if not pieces:
        yield []
        return
    total = sum(piece.size_bytes for piece in pieces)
    target = max(total / max(1, groups_max), 1.0)
    group: list[FilePiece] = []
    size = 0
    groups_left = max(1, groups_max)
    for piece in pieces:
        group.append(piece)
        size += piece.size_bytes
        if size >= target and groups_left > 1:
            yield group
            group, size, groups_left = [], 0, groups_left - 1
    if group:
        yield group
