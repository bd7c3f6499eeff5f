"""Stored tables that a query reads where they lie: no row of them becomes a Python value."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_storage import encoding
from noetl_storage.encoding import PARQUET_MEDIA_TYPE, PayloadUnreadable
from noetl_storage.tier_ports import Near

_TABLES = frozenset({ARROW_MEDIA_TYPE, PARQUET_MEDIA_TYPE})
_PARQUET = b"PAR1"


class InPlace:
    """Opens Arrow and Parquet payloads as something that DuckDB scans."""

    def __init__(self, near: Near | None) -> None:
        self._near = near

    async def open(self, ref: PayloadRef) -> Any:
        """Return a table or a data set that shares the payload's bytes; None where it is not one.

        It is not one, too, when the rows alone are not what the reference means: then whoever
        reads the value decodes it, and says what is wrong with it.
        """
        if self._near is None:
            return None
        try:
            mapped = await self._near.table(ref)
            if mapped is not None:
                return _plain(mapped)
            # A bare locator says nothing of what it points to: its first bytes do.
            if ref.media_type not in _TABLES and ref.payload_bytes:
                return None
            async with self._near.lend(ref) as file:
                # What is open stays when its name goes.
                return _plain(await asyncio.to_thread(_opened, file))
        except (Retryable, Permanent):
            return None


def _opened(file: Path) -> Any:
    """Map a file; raises `PayloadUnreadable` when it is neither Arrow nor Parquet."""
    try:
        mapped = pa.memory_map(str(file))
        if mapped.read(len(_PARQUET)) == _PARQUET:
            # Loads pandas with it: only workers that come here pay for that.
            datasets = importlib.import_module("pyarrow.dataset")
            format_ = datasets.ParquetFileFormat()
            fragment = format_.make_fragment(mapped)
            return datasets.FileSystemDataset(
                [fragment], fragment.physical_schema, format_, fragment.filesystem
            )
        mapped.seek(0)
        table = pa.ipc.open_stream(mapped).read_all()
        # The digest of a lent file was checked; its structure is checked as that of any payload.
        table.validate(full=True)
    except (OSError, pa.ArrowException) as failure:
        raise PayloadUnreadable(f"a payload is no table: {failure}") from failure
    return table


def _plain(relation: Any) -> Any:
    """Return a relation whose rows are all that it means, as they would be decoded, else None."""
    if not encoding.has_plain_rows(relation.schema):
        return None
    if isinstance(relation, pa.Table):
        return relation.replace_schema_metadata(None)
    return relation
