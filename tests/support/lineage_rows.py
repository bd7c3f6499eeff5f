"""Reads the lineage that projectors have written, on every adapter."""

from noetl_contracts.ids import ExecutionId
from noetl_storage.memory.lineage import MemoryLineage
from noetl_storage.ports.history_ports import LineageRow, LineageRows
from noetl_storage.postgres.ledger.lineage import PostgresLineage

ROWS = """
select version, ordinal, event_type, event_time, run_id, job, event::text as body
from noetl.lineage
where execution_id = $1
order by version, ordinal
"""


async def list_lineage_rows(lineage: LineageRows, execution_id: ExecutionId) -> list[LineageRow]:
    """Return the rows of an execution, in order."""
    if isinstance(lineage, MemoryLineage):
        stored = lineage._store.lineage_by_execution.get(execution_id)
        return [] if stored is None else [stored.rows[place] for place in sorted(stored.rows)]
    assert isinstance(lineage, PostgresLineage)
    records = await lineage._database.fetch_rows(ROWS, int(execution_id))
    return [LineageRow(**dict(record)) for record in records]
