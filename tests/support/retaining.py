"""Histories that ended long ago, and an archivist that can be killed before any step.

`python -m tests.support.retaining DSN URL CALL NTH` runs one and kills itself before the nth call
of that name.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from typing import Any

from tests.support.builders import FIRST_EXECUTION, ORGANIZATION, TENANT, History
from tests.support.moving import moved, project
from tests.support.storage import Stores

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import Append, ShardFence
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.history_replay import HistoryReplay, build_replay_report
from noetl_replay.state import build_empty_state
from noetl_storage.archive.archivist import Archivist, RetentionTerms, UnitProgress
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.ports.history_ports import LedgerAudit
from noetl_storage.ports.ledger_ports import LedgerReader, Payloads
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import Retention
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.retention import PostgresRetention

OWNER = Owner(tenant_id=TENANT, organization_id=ORGANIZATION)
# The builders' histories began in this month.
MONTH = "2026-01"
PARTITION = "event_2026_01"
_MAKE_PARTITION = """
create table if not exists noetl.event_2026_01 partition of noetl.event
for values from (264905529753600000) to (276139309301760000)
"""


def of_the_month(history: History, number: int) -> History:
    """The same history as that of another execution of the same month."""
    return moved(history, ExecutionId(str(int(FIRST_EXECUTION) + number * 1_000_000)))


async def make_partition(database: Database) -> None:
    """Give the month a partition of its own, as it had while it lasted."""
    await database.execute_statement(_MAKE_PARTITION)


async def keep(stores: Stores, fence: ShardFence, history: History, *, after: int = 0) -> None:
    """Append a history, and project it to its end."""
    await stores.ledger.append(
        Append(fence=fence, streams=[history.stream(after=after)], messages=[])
    )
    await project(stores, [history], after=after)


async def replayed(ledger: LedgerReader, execution_id: ExecutionId) -> dict[str, Any]:
    """What a history comes to, with every checksum."""
    replay = HistoryReplay(build_empty_state(execution_id, TENANT, ORGANIZATION))
    while page := await ledger.read_events(
        execution_id, after_version=replay.state.version, events_max=7
    ):
        replay.feed_events(page)
    return build_replay_report(replay)


def archivist(retention: Retention, audit: LedgerAudit, store: Payloads, **terms: Any) -> Archivist:
    """One that takes everything that has ended."""
    return Archivist(
        retention=retention,
        audit=audit,
        store=store,
        terms=codec.convert_value({"keep_days": 0, **terms}, RetentionTerms),
        fold_version=FOLD_VERSION,
        who="test",
    )


class Mortal:
    """Kills its process before the nth call of one name."""

    def __init__(self, inner: Any, calls: Counter[str], *, call: str, nth: int) -> None:
        self._inner = inner
        self._calls = calls
        self._last = (call, nth)

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        if (name, self._calls[name]) == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self._inner, name)


async def _run(dsn: str, url: str, call: str, nth: int) -> None:
    calls: Counter[str] = Counter()
    async with open_database(dsn, must_be_durable=False) as database, open_payloads(url) as store:
        await archivist(
            Mortal(PostgresRetention(database), calls, call=call, nth=nth),
            PostgresLedgerAudit(database),
            Mortal(store, calls, call=call, nth=nth),
        ).archive_all_due(_tell)


def _tell(progress: UnitProgress) -> None:
    sys.stdout.write(f"{progress.status}\n")


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
