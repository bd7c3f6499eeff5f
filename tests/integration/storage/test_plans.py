"""Every query of a hot path names the index that it must use."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.support.servers import PostgresServer

from noetl_storage.postgres import migrate, queries
from noetl_storage.postgres.database import Database, open_database

HOT = [
    ("ledger", "read", "_pkey"),
    ("ledger", "list_heads", "execution_head_pkey"),
    ("ledger", "list_item_results", "_execution_id_node_id_int8_stream_version_idx"),
    ("ledger", "list_failed_items", "_execution_id_node_id_int8_stream_version_idx"),
    ("ledger", "find_by_key", "_execution_id_idempotency_key_idx"),
    ("ledger", "find_outcome", "_execution_id_node_id_int8_stream_version_idx"),
    ("ledger", "trace", "_pkey"),
    ("ledger", "list_frame_results", "_execution_id_stage_id_event_id_idx"),
    ("projections", "list_positions", "projection_position_pkey"),
    ("projections", "list_execution", "execution_pkey"),
    ("projections", "list_frame", "frame_pkey"),
    ("projections", "list_commands", "command_pkey"),
    ("projections", "list_overdue", "command_live"),
    ("projections", "list_urgent", "command_live"),
    ("projections", "list_leased", "command_live"),
    ("checkpoints", "list_latest", "checkpoint_pkey"),
    ("projections", "list_stalled", "execution_live"),
    ("projections", "list_overdue_waits", "command_waiting"),
    ("snapshots", "find", "projection_snapshot_pkey"),
    ("snapshots", "find_before", "projection_past_pkey"),
    ("history_pages", "find_page", "execution_head_pkey"),
    ("audit", "read_stored", "_pkey"),
    ("audit", "find_version_at", "_pkey"),
    ("audit", "find_version_of", "_execution_id_event_id_idx"),
    ("audit", "list_histories", "execution_head_pkey"),
    ("lineage", "read_steps", "_pkey"),
    ("business_objects", "list_of_object", "business_object_identity"),
    ("business_objects", "list_changes", "_execution_id_aggregate_id_stream_version_idx"),
    ("catalog", "find", "catalog_tenant_id_organization_id_path_version_key"),
    ("catalog", "get", "catalog_pkey"),
    ("credentials", "find", "credential_pkey"),
    ("schedules", "list_skips", "schedule_skip_pkey"),
    ("notifications", "list_tests", "administration_event_rule_tests"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def empty_tables(postgres: PostgresServer) -> AsyncIterator[Database]:
    """The tables without a row, which tests leave so."""
    dsn = await postgres.create_database("plans")
    # Empty tables are scanned whole whatever indexes they have.
    async with open_database(f"{dsn}?enable_seqscan=off", must_be_durable=False) as opened:
        await migrate.apply_migrations(opened)
        yield opened
    await postgres.drop_database("plans")


async def plan_of(opened: Database, table: str, name: str) -> str:
    """The plan that serves every value of the parameters."""
    query = queries.load_queries(table)[name]
    parameters = len(set(re.findall(r"\$\d+", query)))
    async with opened.open_transaction() as transaction:
        await transaction.execute_statement("set local plan_cache_mode = force_generic_plan")
        await transaction.execute_statement(f"prepare hot as {query}")
        # A history lies in one partition: the others are left out by the first value.
        first = "'1'" if re.search(r"from noetl.event\b", query) else "null"
        values = ", ".join([first, *["null"] * (parameters - 1)])
        lines = await transaction.fetch_rows(f"explain execute hot ({values})")
        await transaction.execute_statement("deallocate hot")
    return "\n".join(record[0] for record in lines)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("table", "name", "index"), HOT)
async def test_a_hot_query_uses_its_index(
    empty_tables: Database, table: str, name: str, index: str
) -> None:
    plan = await plan_of(empty_tables, table, name)
    assert index in plan, plan
    assert "Seq Scan" not in plan, plan


@pytest.mark.asyncio(loop_scope="module")
async def test_a_history_is_read_in_order_without_sorting(empty_tables: Database) -> None:
    plan = await plan_of(empty_tables, "ledger", "read")
    assert not re.search(r"\bSort +\(", plan), plan


async def test_an_execution_is_shown_by_reading_one_row(database: str) -> None:
    """The plan that is run reads one row by its key, however many executions there are."""
    async with open_database(database, must_be_durable=False) as opened:
        await migrate.apply_migrations(opened)
        await opened.execute_statement(_MANY)
        for query, key in (
            (queries.load_queries("projections")["list_execution"], "5000, 0, null"),
            (queries.load_queries("ledger")["list_heads"], "array[5000]"),
            (queries.load_queries("history_pages")["find_page"], "5000, 'acme', 'west', 0, 100"),
        ):
            async with opened.open_transaction() as transaction:
                await transaction.execute_statement(f"prepare shown as {query}")
                lines = await transaction.fetch_rows(
                    f"explain (analyze, buffers) execute shown({key})"
                )
                await transaction.execute_statement("deallocate shown")
            plan = "\n".join(record[0] for record in lines)
            assert "Index Scan" in plan, plan
            assert re.search(r"actual time=\S+ rows=1(\.00)? loops=1", plan), plan
            assert "Rows Removed" not in plan, plan
            # The first line counts for all of the plan.
            touched = int(re.findall(r"shared hit=(\d+)", plan)[0])
            assert touched <= PAGES_MAX, plan


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ("null, null, null, 50, null", 50),
        ("null, 'p1', null, 50, null", 50),
        ("'FAILED', null, null, 50, null", 50),
        ("null, 'nowhere', null, 50, null", 0),
        ("'PAUSED', null, null, 50, null", 0),
        ("'COMPLETED', 'nowhere', null, 50, null", 0),
        ("'PAUSED', 'p1', null, 50, null", 0),
        ("null, null, null, 50, '2026-03-01 02:46:36Z'", 5),
        ("null, null, null, 50, '2026-03-02 00:00:00Z'", 0),
    ],
)
async def test_a_list_of_executions_reads_past_few_others(
    database: str, filters: str, found: int
) -> None:
    async with open_database(database, must_be_durable=False) as opened:
        await migrate.apply_migrations(opened)
        await opened.execute_statement(_VARIOUS)
        query = queries.load_queries("projections")["list_executions"]
        async with opened.open_transaction() as transaction:
            await transaction.execute_statement(f"prepare listed as {query}")
            asked = f"execute listed('acme', 'west', {filters})"
            for _ in range(7):  # from the sixth time on a server may use one plan for all
                assert len(await transaction.fetch_rows(asked)) == found
            lines = await transaction.fetch_rows(f"explain (analyze, buffers) {asked}")
            await transaction.execute_statement("deallocate listed")
        plan = "\n".join(record[0] for record in lines)
        # The first line counts for all of the plan, what the function does with it.
        assert int(re.findall(r"shared hit=(\d+)", plan)[0]) <= PAGES_OF_A_LIST_MAX, plan


async def test_a_projector_that_has_an_epoch_reads_the_pages_that_changed_since(
    database: str,
) -> None:
    async with open_database(database, must_be_durable=False) as opened:
        await migrate.apply_migrations(opened)
        await opened.execute_statement(_OLD)
        query = queries.load_queries("projections")["list_behind"]
        async with opened.open_transaction() as transaction:
            await transaction.execute_statement(f"prepare behind as {query}")
            since = "now() - interval '1 minute'"
            wanted = f"execute behind(0, 1, 0, 200, {since})"
            lines = await transaction.fetch_rows(f"explain (analyze, buffers) {wanted}")
        plan = "\n".join(record[0] for record in lines)
        assert "execution_head_recent" in plan, plan
        touched = int(re.findall(r"shared hit=(\d+)", plan)[0])
        whole = "select pg_relation_size('noetl.execution_head') / 8192"
        assert touched < await opened.get_value(whole) / 4, plan


async def test_an_epoch_of_many_shards_compares_each_history_once(database: str) -> None:
    async with open_database(database, must_be_durable=False) as opened:
        await migrate.apply_migrations(opened)
        await opened.execute_statement(_OLD)
        query = queries.load_queries("checkpoints")["commit"]
        shards = list(range(16))
        async with opened.open_transaction() as transaction:
            await transaction.execute_statement(f"prepare committed as {query}")
            wanted = f"execute committed(array{shards}, 16, array{[0] * 16}, '{{}}', 60, 60)"
            lines = await transaction.fetch_rows(f"explain (analyze, buffers) {wanted}")
        plan = "\n".join(record[0] for record in lines)
        touched = int(re.findall(r"shared hit=(\d+)", plan)[0])
        whole = """
            select sum(pg_relation_size(name::regclass)) / 8192
            from unnest(array['noetl.execution_head', 'noetl.projection_position']) as name
        """
        # Epochs have rows and an index of their own, which are few pages for each shard.
        assert touched < await opened.get_value(whole) * 2, plan


@pytest.mark.parametrize(
    ("name", "parameters", "rows"),
    [("list_item_results", "1, 'run', 15000, 100", 100), ("find_outcome", "1, 'run'", 1)],
)
async def test_outcomes_of_items_are_found_without_reading_the_other_items(
    database: str, name: str, parameters: str, rows: int
) -> None:
    async with open_database(database, must_be_durable=False) as opened:
        await migrate.apply_migrations(opened)
        await opened.execute_statement(_ITEMS)
        query = queries.load_queries("ledger")[name]
        async with opened.open_transaction() as transaction:
            await transaction.execute_statement(f"prepare found as {query}")
            wanted = f"execute found({parameters})"
            assert len(await transaction.fetch_rows(wanted)) == rows
            lines = await transaction.fetch_rows(f"explain (analyze, buffers) {wanted}")
            await transaction.execute_statement("deallocate found")
        plan = "\n".join(record[0] for record in lines)
        assert not re.search(r"\bSort +\(", plan), plan
        assert int(re.findall(r"shared hit=(\d+)", plan)[0]) <= rows + PAGES_MAX, plan


_ITEMS = """
insert into noetl.event (
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, producer, node_id, context,
    envelope_checksum
)
select
    n, 1, n, 'acme', 'west', '1', 'execution', '1', 'call.done', 'call.done', 1, now(), 'test',
    'run', jsonb_build_object('item_index', case when n <= 20000 then n * 7919 % 20000 end), 'c'
from generate_series(1, 20001) as n;
analyze noetl.event;
"""
_OLD = """
insert into noetl.execution_head (
    execution_id, tenant_id, organization_id, version, checksum, updated_at
)
select n, 'acme', 'west', 1, 'c', now() - make_interval(secs => 100000 - n)
from generate_series(1, 50000) as n;
insert into noetl.projection_position (execution_id, shard_id, version)
select n, 0, 1 from generate_series(1, 50000) as n;
update noetl.execution_head set version = 2, updated_at = now() where execution_id in (7, 49990);
select brin_summarize_new_values('noetl.execution_head_recent');
analyze noetl.execution_head, noetl.projection_position;
"""
# The root, a leaf and the row's page, for each of at most four scans.
PAGES_OF_A_LIST_MAX = 80
PAGES_MAX = 12
_VARIOUS = """
insert into noetl.execution (
    execution_id, tenant_id, organization_id, path, status, version, envelope_checksum, started_at
)
select
    n, 'acme', 'west', 'p' || n % 3, case when n % 50 = 0 then 'FAILED' else 'COMPLETED' end, 1,
    'c', timestamptz '2026-03-01 00:00:00Z' + n * interval '1 second'
from generate_series(1, 10000) as n;
analyze noetl.execution;
-- As autovacuum does.
select brin_summarize_new_values('noetl.execution_started');
"""
_MANY = """
insert into noetl.execution (
    execution_id, tenant_id, organization_id, path, status, version, envelope_checksum
)
select n, 'acme', 'west', 'p', 'COMPLETED', 1, 'c' from generate_series(1, 10000) as n;
insert into noetl.execution_head (execution_id, tenant_id, organization_id, version, checksum)
select n, 'acme', 'west', 1, 'c' from generate_series(1, 10000) as n;
analyze noetl.execution, noetl.execution_head;
"""
