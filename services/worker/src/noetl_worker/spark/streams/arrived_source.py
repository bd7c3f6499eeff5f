"""Files that arrive as a streaming source of Spark; an offset is the number of a step.

A step lists the files that it takes up, and is written once before Spark hears of it. Who asks
again, after any end, is given the same files.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from noetl_contracts import codec
from noetl_contracts.transient_objects import STREAM_STEPS_WHOLE_EVERY
from noetl_worker.datasets import source_files
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.file_rows import FileReader
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.read_plan import PIECE_BYTES
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.streams.checkpoint_objects import (
    ArrivalLog,
    Arrivals,
    ArrivedFile,
)
from noetl_worker.spark.streams.stream_rejects import build_batch_prefix
from noetl_worker.spark.tables import file_source
from noetl_worker.spark.tables.dataset_plans import FileInput
from noetl_worker.spark.tables.file_source import FilePieceReader, PiecesPartition
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.spark.tables.stream_plans import StreamInput

NAME = "noetl_arrivals"
_STEP = "step"


class ArrivedSource(DataSource):
    """Rows of files that arrive; its one option `source` is a `StreamInput`."""

    grant: JobGrant | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns that the stream was begun with."""
        return file_source.build_spark_schema(_decode_input(self.options).plan)

    def streamReader(self, schema: StructType) -> "ArrivedReader":  # noqa: ARG002, N802 - Spark's signature
        """Return what finds new files, and reads them."""
        stream_input = _decode_input(self.options)
        home = stream_input.home.with_grant(self.grant)
        return ArrivedReader(msgspec.structs.replace(stream_input, home=home))


class ArrivedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes up new files step by step; Spark keeps the number of the last one that it has read."""

    def __init__(self, stream_input: StreamInput) -> None:
        self._stream_input = stream_input
        self._log = ArrivalLog(stream_input.home, stream_input.arrivals)
        # The files of all steps up to a number.
        self._taken: tuple[int, dict[str, ArrivedFile]] | None = None
        # The step that this reader has planned itself.
        self._planned: int | None = None
        # Of a stream that ends with what is there now: these files alone.
        self._bound: frozenset[str] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Leave the size of a step to this reader."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note which files are there now."""
        self._bound = frozenset(file.path for file in self._list_files())

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the number before the first step."""
        return {_STEP: 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's signature
        """Return the step after `start`, or `start` where no file is new."""
        number = int(start[_STEP]) + 1
        # It was planned by an attempt that ended before it had read it.
        if self._log.find_step(number) is not None:
            return {_STEP: number}
        taken = self._read_taken(number - 1)
        files = self._list_files()
        new_files = [file for file in files if file.path not in taken]
        self._check_unchanged(files, taken)
        if self._bound is not None:
            new_files = [file for file in new_files if file.path in self._bound]
        if not new_files:
            return start
        # What is gone cannot be taken up again.
        present = {file.path for file in files}
        earlier = [file for file in taken.values() if file.path in present]
        self._plan_step(number, new_files, earlier)
        return {_STEP: number}

    def _plan_step(
        self, number: int, new_files: list[ArrivedFile], earlier: list[ArrivedFile]
    ) -> None:
        """Write a step of the first new files."""
        count = self._stream_input.files_per_batch
        is_whole = number % STREAM_STEPS_WHOLE_EVERY == 0
        arrivals = Arrivals(
            files=new_files[:count],
            waiting=len(new_files[count:]),
            earlier=earlier if is_whole else None,
        )
        self._log.put_step(number, arrivals)
        self._planned = number

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Spread the files of the steps after `start` over tasks."""
        numbers = range(int(start[_STEP]) + 1, int(end[_STEP]) + 1)
        files = [file for number in numbers for file in self._log.get_step(number).files]
        if int(end[_STEP]) != self._planned:
            self._note_changes(files)
        plan = self._stream_input.plan
        try:
            reader = FileReader(self._open_store(), plan.source, plan.format)
            pieces = [
                piece
                for file in files
                for piece in reader.list_pieces(
                    _build_data_file(file, plan.address.base), bytes_max=PIECE_BYTES
                )
            ]
        except DatasetProblem as problem:
            raise SparkRefusal(problem.kind, problem.message) from problem
        groups = file_source.group_by_bytes(pieces, self._stream_input.tasks)
        # Rows that do not fit are told for each batch.
        first = int(end[_STEP]) * _TASKS_MAX
        return [PiecesPartition(first + number, group) for number, group in enumerate(groups)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pieces of a task."""
        assert isinstance(partition, PiecesPartition), "Spark hands back what `partitions` gave"
        stream_input = self._stream_input
        step, task = divmod(partition.number, _TASKS_MAX)
        file_input = FileInput(
            home=stream_input.home,
            plan=stream_input.plan,
            rejects=build_batch_prefix(stream_input.rejects, step),
            tasks=stream_input.tasks,
        )
        yield from FilePieceReader(file_input).read(PiecesPartition(task, partition.pieces))

    def _read_taken(self, last: int) -> dict[str, ArrivedFile]:
        if self._taken is not None and self._taken[0] == last - 1:
            step = self._log.get_step(last)
            # A step that lists all files of before leaves out those that are gone, as a restart
            # does: no more is remembered than a path holds and the steps since then took up.
            before = (
                self._taken[1]
                if step.earlier is None
                else {file.path: file for file in step.earlier}
            )
            self._taken = (last, before | {file.path: file for file in step.files})
        elif self._taken is None or self._taken[0] != last:
            self._taken = (last, self._log.read_taken(last))
        return self._taken[1]

    def _list_files(self) -> list[ArrivedFile]:
        """List the files that are there, in the order of their paths."""
        plan = self._stream_input.plan
        try:
            found = source_files.find_source_files(self._open_store(), plan.format)
        except DatasetProblem as problem:
            if problem.kind == "not_found":
                return []
            raise SparkRefusal(problem.kind, problem.message) from problem
        return [
            ArrivedFile(
                # Another worker may have the folder elsewhere.
                path=file.path.removeprefix(plan.address.base),
                size_bytes=file.size_bytes,
                row_count=file.row_count,
                values=file.values,
            )
            for file in found.files
        ]

    def _check_unchanged(self, files: list[ArrivedFile], taken: dict[str, ArrivedFile]) -> None:
        """Refuse a file that was written again after it was read: its new rows would be lost."""
        for file in files:
            before = taken.get(file.path)
            if before is None or before.size_bytes == file.size_bytes:
                continue
            if not self._log.has_reading(file):
                address = self._stream_input.plan.address
                shown_path = address.show_key(f"{address.base}{file.path}")
                text = (
                    f"{shown_path} had {before.size_bytes} bytes when the stream took it up, and "
                    f"has {file.size_bytes} now: a stream reads each file once, so write more rows "
                    "into a new file, and each file whole, under another name until it is"
                )
                raise SparkRefusal("validation", text)

    def _note_changes(self, files: list[ArrivedFile]) -> None:
        """Note which files of a batch that is read again were repaired since it was planned."""
        size_by_path = {file.path: file.size_bytes for file in self._list_files()}
        for file in files:
            size_bytes = size_by_path.get(file.path, file.size_bytes)
            if size_bytes != file.size_bytes:
                self._log.put_reading(msgspec.structs.replace(file, size_bytes=size_bytes))

    def _open_store(self) -> OpenStore:
        stream_input = self._stream_input
        account = file_source.open_account(stream_input.home, stream_input.plan.address)
        return OpenStore(stream_input.plan.address, account)


# More tasks than one batch has.
_TASKS_MAX = 1_000_000


def encode_input(stream_input: StreamInput) -> str:
    """Write an input as the option of a read."""
    return codec.encode_text(msgspec.structs.replace(stream_input, home=stream_input.home.place))


def read_step(offset: str) -> int:
    """Return the number of a step from an offset as Spark writes it."""
    return int(msgspec.json.decode(offset)[_STEP])


def _build_data_file(file: ArrivedFile, base: str) -> DataFile:
    return DataFile(
        path=f"{base}{file.path}",
        size_bytes=file.size_bytes,
        row_count=file.row_count,
        values=file.values,
    )


def _decode_input(options: Any) -> StreamInput:
    return msgspec.json.decode(options["source"].encode(), type=StreamInput)
