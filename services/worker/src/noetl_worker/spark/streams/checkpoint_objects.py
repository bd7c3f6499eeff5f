"""The objects of a checkpoint in the payload store; each is written once.

| name | holds |
|---|---|
| `streams/<name>/head` | what the stream was begun with, and what its commits are named by |
| `…/<series>/arrivals/<n>` | the files that the n-th step of the source has taken up |
| `…/<series>/arrivals/read/<digest>` | a file that was repaired before it was read |
| `…/<series>/versions/<n>` | Spark's own files: 2b before batch b is written, 2b + 1 after |

A stream that goes on after its checkpoint was removed writes into the folder of its own series,
where no later stream of the name looks. Who writes a version that somebody else has written
differently has lost the checkpoint to them, and ends before it writes rows.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.transient_objects import build_checkpoint_prefix, build_head_name
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress
from noetl_worker.spark.tables.stream_plans import SourceColumns, StreamTotals

T = TypeVar("T", bound=Struct)

# Names are ordered as their numbers are.
_DIGITS = 12


class StreamHead(Struct, frozen=True, kw_only=True):
    """What a checkpoint was begun with; `series` makes its commits differ from those of another."""

    series: str
    source: str
    target: str
    columns: SourceColumns
    # Where the other objects are, below the name; empty in a checkpoint of an earlier release.
    folder: str = ""


class ArrivedFile(Struct, frozen=True, kw_only=True, array_like=True):
    """A file that a stream has taken up; a later one of its name is no other file."""

    path: str
    size_bytes: int
    row_count: int | None = None
    values: dict[str, str | None] = {}


class Arrivals(Struct, frozen=True, kw_only=True):
    """One step of the source: its files, and how many more were waiting.

    `earlier` are the files of all steps before, where the step is one that lists them.
    """

    files: list[ArrivedFile]
    waiting: int = 0
    earlier: list[ArrivedFile] | None = None


class CheckpointFile(Struct, frozen=True, kw_only=True):
    """A file of Spark's checkpoint: small ones are within, larger ones in the payload store."""

    data: bytes = b""
    ref: PayloadRef | None = None


class CheckpointVersion(Struct, frozen=True, kw_only=True):
    """All files of Spark's checkpoint by their paths, and what was done until then."""

    batch: int
    # Digest of the statements that batches run with.
    query: str
    columns: SourceColumns
    totals: StreamTotals
    files: dict[str, CheckpointFile]


class CheckpointObjects:
    """Reads and writes the objects of one checkpoint; methods block and raise `SparkRefusal`."""

    def __init__(self, home: StoreAddress, name: str) -> None:
        self._home = home
        self._owner: Any = {
            "tenant_id": home.tenant_id,
            "organization_id": home.organization_id,
        }
        self._head_name = build_head_name(build_checkpoint_prefix(name))
        self._prefix = build_checkpoint_prefix(name).rstrip("/")

    def enter_folder(self, head: StreamHead) -> None:
        """Find the other objects where the head says that they are."""
        self._prefix = f"{self._prefix}/{head.folder}".rstrip("/")

    @property
    def arrivals_prefix(self) -> str:
        """Return what the names of the source's steps begin with."""
        return f"{self._prefix}/arrivals"

    def open_arrivals(self) -> "ArrivalLog":
        """Return the steps of the source."""
        return ArrivalLog(self._home, self.arrivals_prefix)

    def find_head(self) -> StreamHead | None:
        """Return what the stream was begun with, None before it was."""
        return self._find(self._head_name, StreamHead)

    def create_head(self, head: StreamHead) -> StreamHead:
        """Begin the stream; return the head that is there then."""
        before = self._put(self._head_name, head)
        return head if before is None else codec.decode_as(before, StreamHead)

    def find_latest(self) -> CheckpointVersion | None:
        """Return the latest version, None before the first batch."""
        names = self._run(
            lambda payloads: payloads.list_names(f"{self._prefix}/versions/", **self._owner)
        )
        return self._find(max(names), CheckpointVersion) if names else None

    def put_version(self, number: int, version: CheckpointVersion) -> CheckpointVersion | None:
        """Write a version; return the one that was there before, if there was one."""
        before = self._put(self._name_version(number), version)
        return None if before is None else codec.decode_as(before, CheckpointVersion)

    def put_content(self, data: bytes) -> PayloadRef:
        """Store a file of the checkpoint by its content."""
        ref: PayloadRef = self._run(
            lambda payloads: payloads.put_payload(
                data, media_type="application/octet-stream", **self._owner
            )
        )
        return ref

    def read_content(self, ref: PayloadRef) -> bytes:
        """Return a file of the checkpoint whose digest was checked."""
        return store_access.read_payload(self._home, ref)

    def _name_version(self, number: int) -> str:
        return f"{self._prefix}/versions/{number:0{_DIGITS}d}"

    def _find(self, name: str, type_: type[T]) -> T | None:
        data = self._run(lambda payloads: payloads.find_named(name, **self._owner))
        return None if data is None else codec.decode_as(data, type_)

    def _put(self, name: str, value: Struct) -> bytes | None:
        data = codec.encode_json(value)
        before: bytes | None = self._run(
            lambda payloads: payloads.put_named(name, data, **self._owner)
        )
        return before

    def _run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return store_access.run_with_store(self._home, work)


class ArrivalLog:
    """The steps of a stream's source; methods block and raise `SparkRefusal`."""

    def __init__(self, home: StoreAddress, prefix: str) -> None:
        self._home = home
        self._owner: Any = {
            "tenant_id": home.tenant_id,
            "organization_id": home.organization_id,
        }
        self._prefix = prefix

    def find_step(self, number: int) -> Arrivals | None:
        """Return a step, None where nothing was taken up."""
        data = store_access.run_with_store(
            self._home,
            lambda payloads: payloads.find_named(self._name_step(number), **self._owner),
        )
        return None if data is None else codec.decode_as(data, Arrivals)

    def get_step(self, number: int) -> Arrivals:
        """Return a step that was planned; raises `SparkRefusal` where it is gone."""
        step = self.find_step(number)
        if step is None:
            text = (
                f"step {number} of the stream's source is gone from the payload store "
                f"({self._name_step(number)}): begin anew with another follow.checkpoint"
            )
            raise SparkRefusal("reference_not_available", text)
        return step

    def put_step(self, number: int, arrivals: Arrivals) -> Arrivals:
        """Write a step; return what stands there, which somebody else may have written."""
        data = codec.encode_json(arrivals)
        before = store_access.run_with_store(
            self._home,
            lambda payloads: payloads.put_named(self._name_step(number), data, **self._owner),
        )
        return arrivals if before is None else codec.decode_as(before, Arrivals)

    def put_reading(self, file: ArrivedFile) -> None:
        """Note that a file is read as it is now, not as it was when it was taken up."""
        data = codec.encode_json(file)
        store_access.run_with_store(
            self._home,
            lambda payloads: payloads.put_named(self._name_reading(file), data, **self._owner),
        )

    def has_reading(self, file: ArrivedFile) -> bool:
        """Tell whether a file was read as it is now."""
        data = store_access.run_with_store(
            self._home,
            lambda payloads: payloads.find_named(self._name_reading(file), **self._owner),
        )
        return data is not None

    def _name_reading(self, file: ArrivedFile) -> str:
        text = f"{file.path}\n{file.size_bytes}"
        return f"{self._prefix}/read/{codec.digest_hex(text.encode())}"

    def read_taken(self, last: int) -> dict[str, ArrivedFile]:
        """Return every file that steps up to `last` have taken up, by its path."""
        taken: dict[str, ArrivedFile] = {}
        number = last
        while number > 0:
            step = self.get_step(number)
            taken |= {file.path: file for file in (*(step.earlier or ()), *step.files)}
            if step.earlier is not None:
                break
            number -= 1
        return taken

    def _name_step(self, number: int) -> str:
        return f"{self._prefix}/{number:0{_DIGITS}d}"
