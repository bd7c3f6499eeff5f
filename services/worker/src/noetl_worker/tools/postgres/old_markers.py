"""Removes old markers of effects from a target database, by the workers that write there.

The markers of an execution go together, when it has committed none for `KEPT`. Of a stream the
latest batch stays. How far pruned markers reached is noted with them. A repeated attempt that finds
no marker, of an execution that began before, cannot tell whether it took effect: it is refused.
All times but the execution's own are those of the database.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import structlog

from noetl_chassis import identity
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.sql import queries
from noetl_worker.tools.postgres.transactions import hold_transaction

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_QUERIES = queries.load_queries(__package__, "old_markers")
# Longer than attempts live: a lease ends after minutes, and what waits has committed or not begun.
KEPT = timedelta(days=90)
# The clocks of a database and a planner differ by less.
_SKEW = timedelta(days=1)

log = structlog.get_logger(__name__)


async def prune_markers(connection: "Connection") -> None:
    """Remove what is old, at most once an hour in each database; outside of transactions.

    A database that does not allow it keeps its markers.
    """
    try:
        if await connection.fetchval(_QUERIES["claim_pruning"]) is None:
            return
        async with hold_transaction(connection):
            await connection.execute(_QUERIES["bound_statements"])
            await connection.execute(_QUERIES["prune_executions"], KEPT.total_seconds())
            await connection.execute(_QUERIES["prune_batches"], KEPT.total_seconds())
    except asyncpg.UndefinedTableError:
        # Nothing was marked yet.
        return
    except asyncpg.PostgresError as problem:
        log.warning("old rows of noetl_effect are left", reason=str(problem))


async def check_not_pruned(connection: "Connection", site: UnitScope) -> None:
    """Refuse a repeated attempt whose marker may have been pruned; raises `ToolFailure`.

    It is called once the attempt has found no marker.
    """
    if not site.is_repeated:
        return
    started_s = identity.read_minted_at_ms(site.execution_id) / 1000
    may_be_pruned = await connection.fetchval(
        _QUERIES["may_be_pruned"], site.execution_id, started_s - _SKEW.total_seconds()
    )
    if may_be_pruned:
        day = datetime.fromtimestamp(started_s, UTC).date()
        text = (
            f"this attempt repeats work of step '{site.step}', its execution began on {day}, and "
            "markers of that time have left table noetl_effect after "
            f"{KEPT.days} days: nobody can tell whether the work took effect. "
            "Look for its rows in the target, then cancel this execution and start another one"
        )
        raise ToolFailure(build_error("db_error", text, source="postgres", code="EFFECT_UNKNOWN"))
