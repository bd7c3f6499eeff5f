"""What the tests here begin with: stores that another test has filled are empty again."""

from tests.support.storage import (
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
    emptied,
    postgres_stores,
)

TABLES = """
select format('noetl.%I', c.relname) from pg_class as c
where c.relnamespace = 'noetl'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    -- What migrations write themselves.
    and c.relname not in ('schema_migration', 'tenant_role')
"""


async def test_stores_are_emptied_of_rows_and_their_numbers_begin_anew(schema: str) -> None:
    numbers = []
    for _ in range(2):
        async with emptied(schema) as database:
            tables = [str(row[0]) for row in await database.fetch_rows(TABLES)]
            counts = {
                table: (await database.fetch_rows(f"select count(*) from {table}"))[0][0]  # noqa: S608 - a name from the catalogue
                for table in tables
            }
            assert set(counts.values()) == {0}, counts
            stores = postgres_stores(database)
            fence = await a_fence(stores)
            batch = an_append(fence, a_stream(an_execution(), [a_run()]), messages=1)
            numbers.append((await stores.ledger.append(batch)).outbox_ids)
    assert numbers == [[1], [1]]
