"""A statement that ignores that it was cancelled ends with its task."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.calls import call_of
from tests.support.polling import eventually
from tests.support.working import Bench, bench

STUBBORN = """
create function ignore_cancel() returns int language plpgsql as $$
begin
  for turn in 1..600 loop
    begin
      perform pg_sleep(1);
    exception when query_canceled then
      null;
    end;
  end loop;
  return 1;
end $$
"""
RUNNING = """
select count(*) from pg_stat_activity
where query like '%ignore_cancel%' and state <> 'idle' and pid <> pg_backend_pid()
"""


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    connection = await asyncpg.connect(database)
    await connection.execute(STUBBORN)
    await connection.close()
    async with bench(postgres_connections_max=2) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


async def count_running(database: str) -> int:
    connection = await asyncpg.connect(database)
    try:
        return int(await connection.fetchval(RUNNING))
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("postgres", {"query": "select ignore_cancel()"}),
        ("postgres", {"query": ["begin", "select ignore_cancel()", "commit"]}),
        (
            "transfer",
            {
                "source": {"type": "postgres", "auth": "db", "query": "select ignore_cancel() i"},
                "target": {"type": "file", "uri": "a.parquet"},
            },
        ),
    ],
    ids=["statement", "transaction", "transfer"],
)
async def test_it_is_ended_on_the_server(
    worker: Bench, database: str, kind: str, fields: dict[str, Any]
) -> None:
    found = await worker.tools.run(call_of(kind, fields, auth="db", timeout_s=1))
    assert found.error is not None
    assert found.error.kind == "timeout", found.error

    async def has_ended() -> bool:
        return await count_running(database) == 0

    await eventually(has_ended)
    # The pool has room again for others.
    assert (
        await worker.tools.run(call_of("postgres", {"query": "select 1"}, auth="db"))
    ).error is None
