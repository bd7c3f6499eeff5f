"""A ledger full of ended executions: appended as a planner appends, with the rows they fold to."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs
from rich.progress import track
from tests.support.builders import STORIES, History
from tests.support.moving import moved, project
from tests.support.storage import Stores, an_append, postgres_stores

from noetl_contracts import ids
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import ShardFence
from noetl_replay.rows import SURFACES
from noetl_storage.postgres.database import Database, open_database

TENANT, ORGANIZATION = TenantId("default"), OrganizationId("default")
OWNER = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
# So many in one append.
TOGETHER = 400
LEASE_S = 24 * 3_600.0
# Of so many executions one tells each of the longer stories, the others a single step.
STORY_EVERY = 20
SINGLE = "single-step"
# A snowflake has room for so many between two executions of one millisecond.
APART = 1 << 22
# As a ledger is that took them over time.
_SETTLE = tuple(
    f"vacuum (analyze) noetl.{table}"
    for table in ("event", "execution", "execution_head", "projection_position", *SURFACES[1:])
)
_BASE = "select noetl.snowflake_floor(now() - interval '1 hour')"


def fill(dsn: str, executions: int) -> dict[str, Any]:
    """Append so many histories beside a running planner; return their ids by story, and a count."""
    return asyncio.run(_fill(dsn, executions))


async def _fill(dsn: str, executions: int) -> dict[str, Any]:
    async with open_database(dsn, connections_max=2, must_be_durable=False) as database:
        stores = postgres_stores(database)
        base = await database.get_value(_BASE)
        fence = await _fence(stores)
        told = {name: tell() for name, tell in STORIES.items()}
        named: dict[str, list[str]] = {name: [] for name in told}
        events = 0
        for start in track(range(0, executions, TOGETHER), "filling"):
            numbers = range(start, min(start + TOGETHER, executions))
            histories = []
            for number in numbers:
                name = story_of(number, tuple(told))
                execution_id = ExecutionId(str(base + number * APART))
                history = moved(told[name], execution_id, **OWNER)
                named[name].append(history.execution_id)
                histories.append(history)
            events += sum(len(item.envelopes) for item in histories)
            await _keep(stores, fence, histories)
        await stores.shards.release_shards(owner=fence.owner, shards=[fence.shard])
        await _settle(database)
    return {"events": events, "ids": named}


def story_of(number: int, names: Sequence[str]) -> str:
    """Choose what an execution tells: nearly all of them a single step."""
    turn, rest = divmod(number, STORY_EVERY)
    return SINGLE if rest else names[turn % len(names)]


async def _fence(stores: Stores) -> ShardFence:
    """Claim a shard beside those that the planners own."""
    count = SHARD_COUNT_DEFAULT + 1
    held = await stores.shards.claim_shards(
        owner="load", lease_s=LEASE_S, shards_max=1, shard_count=count
    )
    return ShardFence(shard=held[0].shard, owner="load", epoch=held[0].epoch)


async def _keep(stores: Stores, fence: ShardFence, histories: Sequence[History]) -> None:
    streams = [structs.replace(history.stream(), **OWNER) for history in histories]
    await stores.ledger.append(an_append(fence, *streams))
    for shard, some in by_shard(histories):
        await project(stores, some, shard=shard)


def by_shard(histories: Sequence[History]) -> Iterator[tuple[int, list[History]]]:
    """Sort histories by the shard that projects them."""
    shards: dict[int, list[History]] = {}
    for history in histories:
        shard = ids.find_shard(history.execution_id, SHARD_COUNT_DEFAULT)
        shards.setdefault(shard, []).append(history)
    yield from shards.items()


async def _settle(database: Database) -> None:
    for statement in _SETTLE:
        await database.execute_statement(statement)
