"""Look for what should have happened and did not; report it, or repair it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_chassis.observability import instruments, names, tracing
from noetl_contracts import ids, subjects
from noetl_contracts.ledger.records import HistoryHead, OverdueCommand
from noetl_contracts.requests import inbox
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetters, Hints, QueueSnapshot, Streams
from noetl_reaper import domain
from noetl_reaper.domain import QueueState, SuspectKey
from noetl_reaper.sweeps import report_spans
from noetl_storage.ports.ledger_ports import Instances, LedgerReader, Projections, Requests

ROLE = "reaper"
# Far longer than anything is asked for again under the same name.
FORGOTTEN_AFTER_S = 3600.0
Duty = Callable[[], Awaitable[None]]
OUTBOX_POKE = subjects.build_hint_subject("outbox")

log = structlog.get_logger(__name__)


class Partitions(Protocol):
    """Where coming events will be kept."""

    async def ensure_partitions(self, months: int) -> int:
        """Make the partitions of the coming months; return how many were missing."""


class ReaperTables(Struct, frozen=True, kw_only=True):
    """All of storage that the reaper may touch."""

    instances: Instances
    requests: Requests
    projections: Projections
    ledger: LedgerReader
    partitions: Partitions


# Gauges that the leader alone measures: a former leader has only old values of them.
LEADERS_GAUGES = (names.DLQ_MESSAGES, names.COMMAND_BACKLOG, names.BACKLOG_DETAIL)


class Reaper:
    """Owns the search for what was lost; of all instances one leads."""

    def __init__(
        self,
        *,
        tables: ReaperTables,
        streams: Streams,
        letters: DeadLetters,
        hints: Hints,
        clock: Clock,
        owner: str,
        policy: domain.ReaperPolicy,
        bounds: domain.SweepBounds,
    ) -> None:
        self._tables = tables
        self._streams = streams
        self._letters = letters
        self._hints = hints
        self._clock = clock
        self._owner = owner
        self._policy = policy
        self._bounds = bounds
        self._suspected_at: dict[SuspectKey, int] = {}
        self._mark_by_late: dict[SuspectKey, int] = {}
        self._reported: set[SuspectKey] = set()
        self._more: list[Duty] = []
        self.is_leading = False

    def add_duty(self, duty: Duty) -> None:
        """Do this as well in every sweep that leads, after all else."""
        self._more.append(duty)

    async def sweep(self) -> bool:
        """Do every duty once if this instance leads; raises the first failure when all are done."""
        is_leader = await self._tables.instances.claim_role(
            role=ROLE, owner=self._owner, lease_s=self._bounds.leader_lease_s
        )
        self.is_leading = is_leader
        instruments.set_gauge(names.IS_LEADER, int(is_leader))
        if not is_leader:
            self._suspected_at, self._mark_by_late = {}, {}
            for metric in LEADERS_GAUGES:
                instruments.clear_gauge(metric)
            return False
        await pass_failpoint(Failpoint.REAPER_LED)
        with tracing.start_recorded_span(names.SPAN_SWEEP, attributes={}):
            failures = [
                failure for duty in self._list_duties() if (failure := await _attempt_duty(duty))
            ]
        await pass_failpoint(Failpoint.REAPER_SWEPT)
        if failures:
            raise failures[0]
        return True

    def _list_duties(self) -> list[Duty]:
        return [
            self.repair_streams,
            self.report_lost_commands,
            self.redrive_requests,
            self.forget_requests,
            self.wake_stalled,
            self.wake_overdue_waits,
            self.hand_over_letters,
            self.collect_dead_letters,
            self.ensure_partitions,
            *self._more,
        ]

    async def repair_streams(self) -> None:
        """Make again what JetStream has lost."""
        changed = await self._streams.ensure_streams()
        if changed:
            instruments.add_to_counter(names.TOPOLOGY_REPAIRED, len(changed))
            log.warning("streams repaired", repaired=changed)

    async def report_lost_commands(self) -> None:
        """Report commands whose lease passed in this turn's and the turn before's view alike."""
        suspects = await self._list_suspects()
        executions = sorted({command.execution_id for command in suspects})
        positions = await self._tables.projections.list_positions(executions)
        lost = domain.confirm_lost_commands(
            suspects, suspected_at=self._suspected_at, position_by_execution=positions
        )
        heads = {head.execution_id: head.version for head in await self._list_heads(suspects)}
        self._suspected_at = {
            domain.build_suspect_key(command): self._suspected_at.get(
                domain.build_suspect_key(command), heads.get(command.execution_id, 0)
            )
            for command in suspects
        }
        unreported = [
            overdue_command
            for overdue_command in lost
            if domain.build_suspect_key(overdue_command) not in self._reported
        ]
        for command in unreported:
            await self._report_lost(command)
            log.warning(
                "command lost",
                execution_id=command.execution_id,
                command_id=command.command_id,
                attempt=command.attempt,
                status=command.status,
            )
            await pass_failpoint(Failpoint.REAPER_REPORTED)
        self._reported = {domain.build_suspect_key(command) for command in lost}
        await self._count_sent_requests(len(unreported), names.LEASES_EXPIRED)

    async def _report_lost(self, command: OverdueCommand) -> None:
        parent = await report_spans.find_execution_trace(self._tables.ledger, command.execution_id)
        with report_spans.open_report_span(command, parent) as traceparent:
            await self._tables.requests.submit_request(
                domain.build_lost_request(command, self._policy, traceparent=traceparent)
            )

    async def redrive_requests(self) -> None:
        """Send requests again that no planner has settled."""
        redriven = await self._tables.requests.redrive_requests(
            older_than_s=self._bounds.request_age_s, requests_max=self._bounds.requests_max
        )
        await self._count_sent_requests(redriven, names.REQUESTS_REDRIVEN)

    async def forget_requests(self) -> None:
        """Delete what this role asked for and planners have long settled."""
        await self._tables.requests.forget_requests(
            settled_for_s=FORGOTTEN_AFTER_S,
            requests_max=self._bounds.requests_max,
        )

    async def wake_stalled(self) -> None:
        """Wake executions that have been silent for too long."""
        rows = await self._tables.projections.list_stalled(
            older_than_s=self._policy.stalled_age_s, executions_max=self._bounds.executions_max
        )
        now = self._clock.now()
        stalled = domain.read_stalled_rows(rows)
        for execution in stalled:
            await self._tables.requests.submit_request(
                domain.build_wake_request(execution, self._policy, now)
            )
        await self._count_sent_requests(len(stalled), names.EXECUTIONS_NUDGED)

    async def wake_overdue_waits(self) -> None:
        """Wake executions whose waits are over: the timer of a planner that died went with it."""
        rows = await self._tables.projections.list_overdue_waits(
            over_s=self._policy.grace_s, waits_max=self._bounds.executions_max
        )
        now = self._clock.now()
        for row, execution in zip(rows, domain.read_stalled_rows(rows), strict=True):
            await self._tables.requests.submit_request(
                domain.build_wait_over_request(execution, str(row["command_id"]), self._policy, now)
            )
        await self._count_sent_requests(len(rows), names.EXECUTIONS_NUDGED)

    async def hand_over_letters(self) -> None:
        """Deliver inbox messages that came before their command waited, or were not delivered."""
        handed = 0
        for match in await self._tables.requests.list_matches(
            matches_max=self._bounds.requests_max
        ):
            request = inbox.build_delivery_request(
                match.letter,
                match.wait,
                routes=self._policy.routes,
                producer=domain.REQUEST_KIND,
            )
            handed += await self._tables.requests.deliver_message(
                match.letter.letter_id, open_wait=inbox.build_wait_name(match.wait), request=request
            )
        await self._count_sent_requests(handed, names.LETTERS_HANDED_OVER)

    async def collect_dead_letters(self) -> None:
        """Store messages without deliveries left as dead letters; measure how many there are."""
        for letter in await self._letters.collect_given_up(letters_max=self._bounds.letters_max):
            labels = {names.STREAM: letter.stream, names.CONSUMER: letter.consumer}
            instruments.add_to_counter(names.DEAD_LETTERS_BURIED, labels=labels)
            log.error("message given up", stream=letter.stream, consumer=letter.consumer)
        instruments.set_gauge(names.DLQ_MESSAGES, await self._letters.count_letters())

    async def ensure_partitions(self) -> None:
        """Keep the ledger ready for the months to come."""
        made = await self._tables.partitions.ensure_partitions(self._bounds.partition_months)
        if made:
            log.info("ledger partitions created", partitions=made)

    async def _list_suspects(self) -> list[OverdueCommand]:
        queues = await self._streams.list_queues()
        show_backlogs(queues)
        states = {
            queue.consumer: QueueState(
                pending=queue.pending,
                unsettled=queue.unsettled,
                stream_created_at=queue.stream_created_at,
                settled_sequence=queue.settled_sequence,
                last_delivered_at=queue.last_delivered_at,
            )
            for queue in queues
        }
        latest = max((q.last_sequence for q in queues if q.stream == topology.COMMANDS), default=0)
        now = self._clock.now()
        created_at = [q.stream_created_at for q in queues if q.stream == topology.COMMANDS]
        stranded_s = domain.find_stranded_after_s(max(created_at, default=None), self._policy, now)
        overdue = await self._list_overdue(domain.compute_overdue_after_s(self._policy))
        if stranded_s is not None:
            overdue += domain.select_not_begun(await self._list_overdue(stranded_s))
        late = {
            domain.build_suspect_key(overdue_command): overdue_command
            for overdue_command in overdue
        }
        self._mark_by_late = {key: self._mark_by_late.get(key, latest) for key in late}
        return [
            command
            for key, command in late.items()
            if domain.is_suspect_command(
                command,
                facts=states.get(self._name_planner_queue(command)),
                commands=states.get(self._name_worker_queue(command)),
                mark=self._mark_by_late[key],
                policy=self._policy,
                now=now,
            )
        ]

    async def _list_overdue(self, silent_s: float) -> list[OverdueCommand]:
        return await self._tables.projections.list_overdue(
            grace_s=silent_s, commands_max=self._bounds.commands_max
        )

    def _name_worker_queue(self, command: OverdueCommand) -> str:
        share = self._policy.routes.find_share(command.tenant_id)
        return topology.build_worker_consumer(command.pool, command.lane, share)

    def _name_planner_queue(self, command: OverdueCommand) -> str:
        routes = self._policy.routes
        shard = ids.find_shard(command.execution_id, routes.shard_count)
        return topology.build_planner_consumer(shard, routes.find_share(command.tenant_id))

    async def _list_heads(self, suspects: list[OverdueCommand]) -> list[HistoryHead]:
        executions = sorted({command.execution_id for command in suspects})
        return await self._tables.ledger.list_heads(executions) if executions else []

    async def _count_sent_requests(self, requests: int, metric: names.Metric) -> None:
        """Count what was written and wake the outbox for it."""
        if requests:
            instruments.add_to_counter(metric, requests)
            await self._hints.notify(OUTBOX_POKE)


async def _attempt_duty(duty: Duty) -> Exception | None:
    """Let one duty fail without keeping the others from being done."""
    try:
        await duty()
    except Exception as failure:  # noqa: BLE001 - the other duties are due after any failure
        log.warning(
            "duty failed",
            duty=_get_duty_name(duty),
            error=type(failure).__name__,
            reason=str(failure),
        )
        return failure
    return None


def _get_duty_name(duty: Duty) -> str:
    return str(getattr(duty, "__qualname__", duty))


def show_backlogs(queues: Iterable[QueueSnapshot]) -> None:
    """Show the backlog of every lane of every pool that is served by JetStream."""
    backlog: Counter[tuple[str, str]] = Counter()
    for queue in queues:
        served = topology.find_pool(queue.consumer) if queue.stream == topology.COMMANDS else None
        if served is not None:
            # What tenants with a share of their own have to do counts as the pool's.
            backlog[served] += queue.pending + queue.unsettled
    for (pool, lane), count in backlog.items():
        labels = {names.POOL: pool, names.LANE: lane}
        instruments.set_gauge(names.COMMAND_BACKLOG, count, labels=labels)
