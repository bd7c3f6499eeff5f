"""Stored tables that a query reads where they lie: no row of them becomes a Python value."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from noetl_contracts import codec, spread
from noetl_contracts.errors import LocatorError, Permanent, Retryable
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread import SPREAD_MEDIA_TYPE, Spread
from noetl_storage import encoding
from noetl_storage.encoding import PARQUET_MEDIA_TYPE, PayloadUnreadable
from noetl_storage.tier_ports import Near

_TABLES = frozenset({ARROW_MEDIA_TYPE, PARQUET_MEDIA_TYPE})
_PARQUET = b"PAR1"
# Loads pandas with it: only workers that come here pay for that.
_PARQUET_SCANNING = "noetl_worker.tools.parquet_scanning"
# Each part is a file that stays open while the query runs.
_PARTS_MAX = 256


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
            if ref.media_type == SPREAD_MEDIA_TYPE:
                return await self._open_parts(ref, self._near)
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

    async def _open_parts(self, ref: PayloadRef, near: Near) -> Any:
        """Lay a table's parts below each other; None where there is no table of parts."""
        async with near.lend(ref) as file:
            found = _spread_of(await asyncio.to_thread(file.read_bytes), ref)
        if found is None or not 0 < len(found.parts) <= _PARTS_MAX:
            return None
        opened: list[Any] = []
        for part in found.parts:
            mapped = await near.table(part)
            if mapped is None:
                async with near.lend(part) as file:
                    mapped = await asyncio.to_thread(_opened, file)
            opened.append(mapped)
        if all(isinstance(one, pa.Table) for one in opened):
            return pa.concat_tables(opened).replace_schema_metadata(None)
        if any(isinstance(one, pa.Table) for one in opened):
            return None
        return importlib.import_module(_PARQUET_SCANNING).of_parts(opened)


def _spread_of(data: bytes, ref: PayloadRef) -> Spread | None:
    """Return the parts of a result that is one task's table and nothing else."""
    try:
        kept = codec.decode(data)
        found = spread.of_result(kept, owner=ref)
    except (LocatorError, msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise PayloadUnreadable(f"a payload names no parts: {problem}") from problem
    return found if found is not None and len(kept["tasks"]) == 1 else None


def _opened(file: Path) -> Any:
    """Open a file; raises `PayloadUnreadable` when it is neither Arrow nor Parquet."""
    try:
        # Mapped pages of Parquet would count as memory of a process that unpacks them anyway.
        plain = pa.OSFile(str(file))
        if plain.read(len(_PARQUET)) == _PARQUET:
            return importlib.import_module(_PARQUET_SCANNING).of_file(plain)
        plain.close()
        table = pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
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
