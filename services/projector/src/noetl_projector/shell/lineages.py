"""Lineage beside the projection: told from the ledger, kept, and delivered at least once."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from itertools import groupby

import structlog
from msgspec import Struct

from noetl_chassis import instruments, names, redaction
from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Point, reach
from noetl_chassis.together import together
from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import CatalogId, ExecutionId
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.lineage_ports import LineageEndpoint, LineageRefused
from noetl_projector.domain import lineage as telling
from noetl_projector.domain import sharding
from noetl_projector.domain.lineage import LineagePolicy
from noetl_replay.lineage import LINEAGE_VERSION, Lineage, Plan, Told, tell
from noetl_storage.lineage_ports import (
    LineageBehind,
    LineageHistories,
    LineageRow,
    LineageRows,
    Undelivered,
)
from noetl_storage.registry_ports import Catalog

PLANS_MAX = 256
SET_ASIDE_MAX = 1000

# What comes of a history, or a playbook, that no planner of this release would have written.
_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)

log = structlog.get_logger(__name__)


class LineageStores(Struct, frozen=True, kw_only=True):
    """All that lineage is told from and kept in, and who receives it."""

    histories: LineageHistories
    rows: LineageRows
    catalog: Catalog
    endpoint: LineageEndpoint


class Lineages:
    """Tells and delivers the lineage of a projector's shards, off the projector's own way."""

    def __init__(self, *, stores: LineageStores, clock: Clock, policy: LineagePolicy) -> None:
        self._stores = stores
        self._clock = clock
        self._policy = policy
        self._plans: OrderedDict[CatalogId, Plan] = OrderedDict()
        self._set_aside: dict[ExecutionId, None] = {}
        self._failures = 0
        self._silent_until = 0.0

    async def tell(self) -> int:
        """Tell what the ledger has gained, some executions a turn; return how many events."""
        if not self._policy.is_kept:
            return 0
        total = 0
        for shard, shard_count in self._shards():
            for behind in await self._stores.rows.list_behind(
                shard=shard,
                shard_count=shard_count,
                lineage_version=LINEAGE_VERSION,
                # What is set aside stays behind for good and must not hide the others.
                executions_max=self._policy.executions_max + len(self._set_aside),
            ):
                if behind.execution_id not in self._set_aside:
                    total += await self._tell_one(behind)
        return total

    async def deliver(self) -> int:
        """Deliver what was kept, in order within each execution; return how many were taken."""
        if not self._policy.is_kept or self._clock.monotonic() < self._silent_until:
            return 0
        waiting: list[Undelivered] = []
        for shard, shard_count in self._shards():
            waiting += await self._stores.rows.list_undelivered(
                shard=shard, shard_count=shard_count, rows_max=self._policy.deliveries_max
            )
        gate = asyncio.Semaphore(self._policy.deliveries_at_once)
        async with together() as group:
            tasks = [
                group.create_task(self._deliver(gate, list(rows)))
                for _, rows in groupby(waiting, key=lambda row: row.execution_id)
            ]
        taken = [task.result() for task in tasks]
        self._rest(has_failed=None in taken)
        return sum(count or 0 for count in taken)

    def _shards(self) -> list[tuple[int, int]]:
        policy = self._policy
        return sharding.ledger_shards(
            index=policy.index, count=policy.count, shard_count=policy.execution_shard_count
        )

    async def _tell_one(self, behind: LineageBehind) -> int:
        try:
            return await self._take_pages(behind)
        except _FAILURES as failure:
            self._put_aside(behind.execution_id, failure)
        return 0

    def _put_aside(self, execution_id: ExecutionId, failure: Exception) -> None:
        """Leave an execution alone until this process starts again, and say so."""
        self._set_aside[execution_id] = None
        while len(self._set_aside) > SET_ASIDE_MAX:
            del self._set_aside[next(iter(self._set_aside))]
        log.error("lineage not told", execution_id=execution_id, reason=str(failure))

    async def _take_pages(self, behind: LineageBehind) -> int:
        lineage = _begun(behind)
        total, after = 0, behind.kept
        for _ in range(self._policy.pages_max):
            until = min(after + self._policy.page_versions, behind.head)
            envelopes = await self._stores.histories.read_steps(
                behind.execution_id, after_version=after, until_version=until
            )
            rows: list[LineageRow] = []
            for envelope in envelopes:
                # The first event names the playbook that the others are told with.
                told = tell(lineage, [envelope], await self._plan(lineage.catalog_id))
                rows += [_row_of(one, _shown(codec.text(one.event))) for one in told]
            lineage.version = until
            is_kept = await self._stores.rows.keep(
                _at(behind, after),
                rows,
                until=until,
                state=codec.encode(lineage),
                lineage_version=LINEAGE_VERSION,
            )
            await reach(Point.PROJECTOR_LINEAGE_KEPT)
            if not is_kept:
                return total
            instruments.count(names.LINEAGE_TOLD, len(rows))
            total, after = total + len(rows), until
            if until >= behind.head:
                break
        return total

    async def _plan(self, catalog_id: CatalogId) -> Plan:
        """Return what a playbook says of its data; of one that is not there, nothing."""
        if not catalog_id:
            return {}
        if catalog_id not in self._plans:
            try:
                entry = await self._stores.catalog.get(catalog_id)
            except LookupError:
                return {}
            self._plans[catalog_id] = telling.plan_of(entry.model)
            while len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        return self._plans[catalog_id]

    async def _deliver(self, gate: asyncio.Semaphore, rows: Iterable[Undelivered]) -> int | None:
        """Deliver rows of one execution; None when the receiver was not to be had."""
        taken = 0
        async with gate:
            for row in rows:
                try:
                    await self._stores.endpoint.deliver(row.body)
                except MessagingUnavailable as failure:
                    log.warning("lineage not delivered", reason=str(failure))
                    _count("failed")
                    return None
                except LineageRefused as failure:
                    await self._refuse(row, failure)
                else:
                    await reach(Point.PROJECTOR_LINEAGE_DELIVERED)
                    await self._stores.rows.settle(row)
                    _count("delivered")
                    taken += 1
        return taken

    async def _refuse(self, row: Undelivered, failure: LineageRefused) -> None:
        log.error("lineage refused", execution_id=row.execution_id, reason=str(failure))
        await self._stores.rows.settle(row, refusal=str(failure))
        _count("refused")

    def _rest(self, *, has_failed: bool) -> None:
        self._failures = self._failures + 1 if has_failed else 0
        if has_failed:
            rest_s = telling.wait_s(self._failures, self._policy)
            self._silent_until = self._clock.monotonic() + rest_s


def _begun(behind: LineageBehind) -> Lineage:
    if behind.state:
        return codec.decode_as(behind.state, Lineage)
    return Lineage(
        execution_id=behind.execution_id,
        tenant_id=behind.tenant_id,
        organization_id=behind.organization_id,
    )


def _at(behind: LineageBehind, version: int) -> LineageBehind:
    return LineageBehind(
        execution_id=behind.execution_id,
        tenant_id=behind.tenant_id,
        organization_id=behind.organization_id,
        head=behind.head,
        kept=version,
        state=None,
    )


def _row_of(told: Told, body: str) -> LineageRow:
    event = told.event
    return LineageRow(
        version=told.version,
        ordinal=told.ordinal,
        event_type=str(event.event_type),
        event_time=event.event_time,
        run_id=event.run.run_id,
        job=event.job.name,
        body=body,
    )


def _shown(body: str) -> str:
    """Hide sealed values: what leaves the deployment holds none, not even closed ones."""
    return redaction.unsealed_bytes(body.encode()).decode()


def _count(outcome: str) -> None:
    instruments.count(names.LINEAGE_DELIVERIES, labels={names.OUTCOME: outcome})
