"""Derives lineage from the ledger, stores it, and delivers it to an endpoint at least once."""

import asyncio
from collections.abc import Iterable
from itertools import groupby

import structlog
from msgspec import Struct

from noetl_chassis import redaction
from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_chassis.observability import instruments, names
from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import CatalogId, ExecutionId
from noetl_contracts.lru_cache import LruCache
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import LineageEndpoint, LineageRefused
from noetl_projector.domain import policy as lineage_policy
from noetl_projector.domain import shard_ownership
from noetl_projector.domain.policy import LineagePolicy
from noetl_replay.lineage import (
    LINEAGE_VERSION,
    LineageEvent,
    LineageState,
    Plan,
    build_lineage_events,
)
from noetl_storage.ports.history_ports import (
    LineageBehind,
    LineageHistories,
    LineageRow,
    LineageRows,
    UndeliveredRow,
)
from noetl_storage.ports.registry_ports import Catalog

PLANS_MAX = 256
SET_ASIDE_MAX = 1000

# Errors of a history or a playbook that no planner of this release would have written.
_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)

log = structlog.get_logger(__name__)


class LineageStores(Struct, frozen=True, kw_only=True):
    """The stores that lineage is derived from and kept in, and the endpoint that receives it."""

    histories: LineageHistories
    rows: LineageRows
    catalog: Catalog
    endpoint: LineageEndpoint


class LineageRelay:
    """Derives and delivers the lineage of a projector's shards, beside the projection."""

    def __init__(self, *, stores: LineageStores, clock: Clock, policy: LineagePolicy) -> None:
        self._stores = stores
        self._clock = clock
        self._policy = policy
        self._plans = LruCache[CatalogId, Plan](entries_max=PLANS_MAX)
        self._set_aside: dict[ExecutionId, None] = {}
        self._failures = 0
        self._paused_until_s = 0.0

    async def record_lineage(self) -> int:
        """Build and store the run events of some executions; return how many events."""
        if not self._policy.is_kept:
            return 0
        total = 0
        for shard, shard_count in self._list_shards():
            for behind in await self._stores.rows.list_lineage_behind(
                shard=shard,
                shard_count=shard_count,
                lineage_version=LINEAGE_VERSION,
                # What is set aside stays behind for good and must not hide the others.
                executions_max=self._policy.executions_max + len(self._set_aside),
            ):
                if behind.execution_id not in self._set_aside:
                    total += await self._record_execution(behind)
        return total

    async def deliver_lineage(self) -> int:
        """Deliver what was kept, in order within each execution; return how many were taken."""
        if not self._policy.is_kept or self._clock.monotonic_s() < self._paused_until_s:
            return 0
        waiting: list[UndeliveredRow] = []
        for shard, shard_count in self._list_shards():
            waiting += await self._stores.rows.list_undelivered_rows(
                shard=shard, shard_count=shard_count, rows_max=self._policy.deliveries_max
            )
        gate = asyncio.Semaphore(self._policy.deliveries_at_once)
        async with open_task_group() as group:
            tasks = [
                group.create_task(self._deliver_rows(gate, list(rows)))
                for _, rows in groupby(waiting, key=lambda row: row.execution_id)
            ]
        delivered_counts = [task.result() for task in tasks]
        self._update_backoff(has_failed=None in delivered_counts)
        return sum(count or 0 for count in delivered_counts)

    def _list_shards(self) -> list[tuple[int, int]]:
        policy = self._policy
        return shard_ownership.list_ledger_shards(
            index=policy.index, count=policy.count, shard_count=policy.execution_shard_count
        )

    async def _record_execution(self, behind: LineageBehind) -> int:
        try:
            return await self._record_pages(behind)
        except _FAILURES as failure:
            self._set_aside_execution(behind.execution_id, failure)
        return 0

    def _set_aside_execution(self, execution_id: ExecutionId, failure: Exception) -> None:
        """Leave an execution alone until this process starts again, and say so."""
        self._set_aside[execution_id] = None
        while len(self._set_aside) > SET_ASIDE_MAX:
            del self._set_aside[next(iter(self._set_aside))]
        log.error("lineage not recorded", execution_id=execution_id, reason=str(failure))

    async def _record_pages(self, behind: LineageBehind) -> int:
        lineage = _load_lineage(behind)
        total, after = 0, behind.kept_version
        for _ in range(self._policy.pages_max):
            until = min(after + self._policy.page_versions, behind.head)
            envelopes = await self._stores.histories.read_steps(
                behind.execution_id, after_version=after, until_version=until
            )
            rows: list[LineageRow] = []
            for envelope in envelopes:
                # The first event names the playbook that the others are told with.
                lineage_events = build_lineage_events(
                    lineage, [envelope], await self._find_plan(lineage.catalog_id)
                )
                rows += [
                    _build_row(lineage_event, _redact_body(codec.encode_text(lineage_event.event)))
                    for lineage_event in lineage_events
                ]
            lineage.version = until
            is_kept = await self._stores.rows.keep_rows(
                _build_position(behind, after),
                rows,
                until=until,
                state=codec.encode_json(lineage),
                lineage_version=LINEAGE_VERSION,
            )
            await pass_failpoint(Failpoint.PROJECTOR_LINEAGE_KEPT)
            if not is_kept:
                return total
            instruments.add_to_counter(names.LINEAGE_TOLD, len(rows))
            total, after = total + len(rows), until
            if until >= behind.head:
                break
        return total

    async def _find_plan(self, catalog_id: CatalogId) -> Plan:
        """Return what a playbook says of its data; of one that is not there, nothing."""
        if not catalog_id:
            return {}
        plan = self._plans.find_value(catalog_id)
        if plan is None:
            try:
                entry = await self._stores.catalog.get_entry(catalog_id)
            except LookupError:
                return {}
            plan = lineage_policy.read_lineage_plan(entry.model)
            self._plans.keep_value(catalog_id, plan)
        return plan

    async def _deliver_rows(
        self, gate: asyncio.Semaphore, rows: Iterable[UndeliveredRow]
    ) -> int | None:
        """Deliver rows of one execution; None when the receiver was not to be had."""
        delivered_count = 0
        async with gate:
            for row in rows:
                try:
                    await self._stores.endpoint.deliver_event(row.body)
                except MessagingUnavailable as failure:
                    log.warning("lineage not delivered", reason=str(failure))
                    _count_deliveries("failed")
                    return None
                except LineageRefused as failure:
                    await self._settle_refused(row, failure)
                else:
                    await pass_failpoint(Failpoint.PROJECTOR_LINEAGE_DELIVERED)
                    await self._stores.rows.settle_row(row)
                    _count_deliveries("delivered")
                    delivered_count += 1
        return delivered_count

    async def _settle_refused(self, row: UndeliveredRow, failure: LineageRefused) -> None:
        log.error("lineage refused", execution_id=row.execution_id, reason=str(failure))
        await self._stores.rows.settle_row(row, refusal=str(failure))
        _count_deliveries("refused")

    def _update_backoff(self, *, has_failed: bool) -> None:
        self._failures = self._failures + 1 if has_failed else 0
        if has_failed:
            retry_wait_s = lineage_policy.compute_retry_wait_s(self._failures, self._policy)
            self._paused_until_s = self._clock.monotonic_s() + retry_wait_s


def _load_lineage(behind: LineageBehind) -> LineageState:
    if behind.state:
        return codec.decode_as(behind.state, LineageState)
    return LineageState(
        execution_id=behind.execution_id,
        tenant_id=behind.tenant_id,
        organization_id=behind.organization_id,
    )


def _build_position(behind: LineageBehind, version: int) -> LineageBehind:
    return LineageBehind(
        execution_id=behind.execution_id,
        tenant_id=behind.tenant_id,
        organization_id=behind.organization_id,
        head=behind.head,
        kept_version=version,
        state=None,
    )


def _build_row(lineage_event: LineageEvent, body: str) -> LineageRow:
    event = lineage_event.event
    return LineageRow(
        version=lineage_event.version,
        ordinal=lineage_event.ordinal,
        event_type=str(event.event_type),
        event_time=event.event_time,
        run_id=event.run.run_id,
        job=event.job.name,
        body=body,
    )


def _redact_body(body: str) -> str:
    """Hide sealed values: what leaves the deployment holds none, not even closed ones."""
    return redaction.mask_sealed_bytes(body.encode()).decode()


def _count_deliveries(outcome: str) -> None:
    instruments.add_to_counter(names.LINEAGE_DELIVERIES, labels={names.OUTCOME: outcome})
