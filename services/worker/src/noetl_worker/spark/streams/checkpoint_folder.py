"""Spark's own checkpoint of a query: a folder of this attempt, brought from the payload store.

Spark writes the offsets of a batch before it runs the batch. They are stored before the rows of the
batch are written anywhere, so that an attempt that comes after any end runs the same batch again.
"""

import shutil
import uuid
from pathlib import Path

from msgspec import Struct

from noetl_chassis import identity
from noetl_contracts import codec
from noetl_worker.spark.streams.checkpoint_objects import (
    CheckpointFile,
    CheckpointVersion,
)
from noetl_worker.spark.streams.stream_head import OpenCheckpoint
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.spark.tables.stream_plans import StreamTotals

# Larger files are content of their own, which later versions name again.
_INLINE_BYTES_MAX = 4096
_OFFSETS, _COMMITS, _METADATA = "offsets", "commits", "metadata"


class _Stored(Struct, frozen=True):
    """A file that was stored, as it was then."""

    size_bytes: int
    modified_ns: int
    file: CheckpointFile


class CheckpointFolder:
    """The folder of one attempt; methods block, and raise `SparkRefusal` and `OSError`."""

    def __init__(self, folder: Path, checkpoint: OpenCheckpoint) -> None:
        self._folder = folder
        self._checkpoint = checkpoint
        self._objects = checkpoint.objects
        self._stored: dict[str, _Stored] = {}

    @property
    def url(self) -> str:
        """Return where Spark finds it."""
        return self._folder.as_uri()

    def restore(self) -> None:
        """Bring back the files of the latest version, as those of a query of its own."""
        latest = self._checkpoint.latest
        if latest is None:
            return
        # Spark takes a UUID alone.
        digest = codec.digest_hex(identity.mint_token().encode())
        query_id = str(uuid.UUID(hex=digest[:32]))
        (self._folder / _METADATA).write_bytes(codec.encode_json({"id": query_id}))
        for name, file in latest.files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                file.data if file.ref is None else self._objects.read_content(file.ref)
            )
            stat = path.stat()
            self._stored[name] = _Stored(stat.st_size, stat.st_mtime_ns, file)

    def store_begin(self, batch: int, totals: StreamTotals) -> None:
        """Store what a batch will read, before it is written; raises where another run has.

        It does so, too, where the checkpoint was removed.
        """
        self._check_head(batch)
        version = self._build_version(batch, totals)
        before = self._objects.put_version(2 * batch, version)
        offsets = f"{_OFFSETS}/{batch}"
        if before is not None and before.files.get(offsets) != version.files.get(offsets):
            text = (
                f"another run has taken over the checkpoint and its batch {batch}: a checkpoint "
                "serves one stream at a time, so end one of the two, or give it another "
                "follow.checkpoint"
            )
            raise SparkRefusal("file_conflict", text)

    def _check_head(self, batch: int) -> None:
        """Refuse to go on without the checkpoint that this attempt has opened."""
        head = self._objects.find_head()
        if head is None or head.series != self._checkpoint.head.series:
            text = (
                f"the checkpoint was removed before batch {batch} was written: the next run of the "
                "stream reads every file that is there again"
            )
            raise SparkRefusal("file_conflict", text)

    def store_end(self, batch: int, totals: StreamTotals) -> None:
        """Store that a batch is done, if Spark has noted it, so that nobody runs it again."""
        if (self._folder / _COMMITS / str(batch)).exists():
            self._objects.put_version(2 * batch + 1, self._build_version(batch, totals))

    def find_done_offset(self) -> str | None:
        """Return the offset up to which batches were done when this attempt began."""
        latest = self._checkpoint.latest
        if latest is None:
            return None
        is_done = f"{_COMMITS}/{latest.batch}" in latest.files
        batch = latest.batch if is_done else latest.batch - 1
        return self.read_offset(batch) if f"{_OFFSETS}/{batch}" in latest.files else None

    def read_offset(self, batch: int) -> str:
        """Return the offset at which a batch ends, as its source wrote it."""
        lines = (self._folder / _OFFSETS / str(batch)).read_text().splitlines()
        return lines[-1]

    def remove(self) -> None:
        """Remove the folder; what it holds that matters is stored."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build_version(self, batch: int, totals: StreamTotals) -> CheckpointVersion:
        files: dict[str, CheckpointFile] = {}
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            if not _is_kept(name) or not path.is_file():
                continue
            stored_file = self._store_file(name, path)
            if stored_file is not None:
                files[name] = stored_file
        return CheckpointVersion(
            batch=batch,
            query=self._checkpoint.query,
            columns=self._checkpoint.columns,
            totals=totals,
            files=files,
        )

    def _store_file(self, name: str, path: Path) -> CheckpointFile | None:
        """Store a file unless it is stored; None for one that Spark has just removed."""
        try:
            stat = path.stat()
            before = self._stored.get(name)
            is_same = before is not None and (before.size_bytes, before.modified_ns) == (
                stat.st_size,
                stat.st_mtime_ns,
            )
            if before is not None and is_same:
                return before.file
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        file = (
            CheckpointFile(data=data)
            if len(data) <= _INLINE_BYTES_MAX
            else CheckpointFile(ref=self._objects.put_content(data))
        )
        self._stored[name] = _Stored(stat.st_size, stat.st_mtime_ns, file)
        return file


def _is_kept(name: str) -> bool:
    """Tell whether a file of the folder is needed by later attempts.

    Checksums of Hadoop's file system are not, nor is what is being written. Each attempt is a query
    of its own: Spark would end one of two queries that share the identity in its metadata.
    """
    return name != _METADATA and not any(part.startswith(".") for part in name.split("/"))
