"""First witness: the target tables."""

import json
import sys
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import asyncpg

from noetl_pft.verify.checks import WitnessError
from noetl_pft.workload import model, queries

_STATEMENTS = queries.load_statements("target")
_PREFETCH = 5000
SAVED_KINDS = (*model.KINDS, "mds")


class SavedUnit(NamedTuple):
    """One saved unit."""

    patient: int
    mark: bytes
    is_last: bool | None
    execution: str
    frame: str | None
    save_count: int
    save_attempt: int
    saved_at: datetime


class QueueRow(NamedTuple):
    """One row of a queue."""

    kind: str
    patient: int
    item: str
    facility: int
    status: str
    execution: str | None
    frame: str | None
    created_at: datetime | None


@dataclass(slots=True)
class TargetTables:
    """What the tables hold; saved units by kind, then by (facility, unit name)."""

    saved: dict[str, dict[tuple[int, str], SavedUnit]] = field(default_factory=dict)
    queue: list[QueueRow] = field(default_factory=list)
    mds_work: list[QueueRow] = field(default_factory=list)
    page_work: list[QueueRow] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)
    done_facts: list[dict[str, Any]] = field(default_factory=list)
    gates: list[dict[str, Any]] = field(default_factory=list)
    facilities: list[dict[str, Any]] = field(default_factory=list)

    def map_frames_by_unit(self) -> dict[str, str]:
        """Return the frame that claimed the row of each saved unit."""
        by_unit = {
            model.Unit(row.facility, row.patient, row.kind, row.item).unit_name: row.frame
            for row in (*self.mds_work, *self.page_work)
            if row.frame
        }
        by_person = {(row.kind, row.patient): row.frame for row in self.queue if row.frame}
        for kind, units in self.saved.items():
            for (_, name), unit in units.items():
                frame = by_person.get((kind, unit.patient))
                if frame:
                    by_unit[name] = frame
        return by_unit

    def compute_digest(self, kinds: tuple[str, ...] = SAVED_KINDS) -> str:
        """Return the set digest of what is saved."""
        return model.digest_set(
            (facility, name, unit.mark.hex())
            for kind in kinds
            for (facility, name), unit in self.saved[kind].items()
        )


async def read_target_tables(dsn: str, *, is_floor: bool) -> TargetTables:
    """Read all tables in one snapshot, counting beside each stream; the floor has no queues."""
    try:
        db = await asyncpg.connect(dsn, timeout=20)
    except (OSError, asyncpg.PostgresError) as problem:
        raise WitnessError(f"the target database cannot be read: {problem}") from problem
    try:
        async with db.transaction(isolation="repeatable_read", readonly=True):
            target = await _read_results(db)
            if not is_floor:
                await _fill_target_tables(db, target)
    except asyncpg.PostgresError as problem:
        raise WitnessError(f"the target tables cannot be read: {problem}") from problem
    finally:
        await db.close()
    return target


async def _read_results(db: "asyncpg.Connection[asyncpg.Record]") -> TargetTables:
    target = TargetTables()
    counts = await db.fetchrow(_STATEMENTS["counts"])
    for kind in SAVED_KINDS:
        target.saved[kind] = await _read_saved(db, kind)
        _check_row_count(kind, len(target.saved[kind]), counts)
    return target


async def _fill_target_tables(
    db: "asyncpg.Connection[asyncpg.Record]", target: TargetTables
) -> None:
    counts = await db.fetchrow(_STATEMENTS["work_counts"])
    for name in ("queue", "mds_work", "page_work"):
        rows: list[QueueRow] = getattr(target, name)
        cursor = db.cursor(_STATEMENTS[name], prefetch=_PREFETCH)
        rows += [_build_queue_row(row) async for row in cursor]
        _check_row_count(name, len(rows), counts)
    for name in ("runs", "validation", "done_facts", "gates", "facilities"):
        setattr(target, name, [dict(row) for row in await db.fetch(_STATEMENTS[name])])


def _build_queue_row(row: asyncpg.Record) -> QueueRow:
    return QueueRow._make(sys.intern(v) if isinstance(v, str) else v for v in row)


async def _read_saved(
    db: "asyncpg.Connection[asyncpg.Record]", kind: str
) -> dict[tuple[int, str], SavedUnit]:
    units: dict[tuple[int, str], SavedUnit] = {}
    async for row in db.cursor(_STATEMENTS[kind], prefetch=_PREFETCH):
        unit = model.Unit(row["facility"], row["patient"], kind, row["item"])
        units[row["facility"], sys.intern(unit.unit_name)] = SavedUnit(
            row["patient"],
            sha256(model.encode_canonical(json.loads(row["payload"]))).digest(),
            row["is_last_page"],
            sys.intern(row["execution_id"]),
            row["frame_id"] and sys.intern(row["frame_id"]),
            row["save_count"],
            row["save_attempt"],
            row["saved_at"],
        )
    return units


def _check_row_count(name: str, row_count: int, counts: asyncpg.Record | None) -> None:
    stored_count = counts[name] if counts is not None else -1
    if row_count != stored_count:
        raise WitnessError(f"table of {name}: {row_count} rows were read, {stored_count} are there")
