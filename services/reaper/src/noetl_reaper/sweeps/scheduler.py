"""Starts what is due by the clock: each nominal time once, or as the schedule's policy says."""

from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from msgspec import Struct, structs

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_contracts import subjects
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import schedules
from noetl_contracts.requests.cron import CronRefused
from noetl_contracts.requests.schedules import Overlap, Schedule, SkippedTimes, SkipReason
from noetl_messaging.streams.ports import Hints
from noetl_reaper.sweeps.node_lease import NodeLease
from noetl_storage.ports.ledger_ports import Projections
from noetl_storage.ports.registry_ports import Schedules

PRODUCER = "scheduler"
FIRED, PASSED, OVERLAPPED, UNREADABLE = "fired", "passed_over", "overlapped", "unreadable"
_OUTCOMES = {SkipReason.CATCH_UP: PASSED, SkipReason.OVERLAP: OVERLAPPED}
# An execution that no projection shows after this long was refused before it began.
UNSEEN_S = 3600.0

log = structlog.get_logger(__name__)


class SchedulerLimits(Struct, frozen=True, kw_only=True):
    """How much one turn looks at, and over how many shards executions are spread."""

    schedules_max: int
    routes: IngestRoutes


class Scheduler:
    """Fires schedules that are due; a second scheduler finds their nominal times already fired."""

    def __init__(
        self,
        *,
        schedules: Schedules,
        projections: Projections,
        hints: Hints,
        clock: Clock,
        numbers: NodeLease,
        limits: SchedulerLimits,
    ) -> None:
        self._schedules = schedules
        self._projections = projections
        self._hints = hints
        self._clock = clock
        self._numbers = numbers
        self._limits = limits

    async def fire_due(self) -> None:
        """Fire every schedule whose time has come; raises what the store raises."""
        now = self._clock.now()
        due = await self._schedules.list_due_schedules(
            now=now, schedules_max=self._limits.schedules_max
        )
        if not due:
            return
        mint = await self._numbers.lease_node()
        fired = 0
        for schedule in due:
            fired += await self._settle_schedule(schedule, now, mint)
        if fired:
            await self._hints.notify(subjects.build_hint_subject("outbox"))

    async def _settle_schedule(
        self, schedule: Schedule, now: datetime, mint: Callable[[], str]
    ) -> int:
        """Do what one schedule owes; return how many executions it began."""
        try:
            owed = schedules.find_due_firings(schedule, now)
        except CronRefused as refusal:
            # Time zones come and go with the machine's database of them.
            instruments.add_to_counter(names.SCHEDULE_TIMES, labels={names.OUTCOME: UNREADABLE})
            log.warning("schedule cannot be read", schedule=schedule.name, reason=str(refusal))
            return 0
        if owed.skipped is not None:
            first = owed.fire[0] if owed.fire else owed.next_at
            await self._pass_over_times(schedule, owed.skipped, next_at=first)
            schedule = structs.replace(schedule, next_at=first)
        fired_count = 0
        for place, nominal_at in enumerate(owed.fire):
            after = owed.fire[place + 1] if place + 1 < len(owed.fire) else owed.next_at
            execution_id = await self._fire_schedule(
                schedule, nominal_at, after, ExecutionId(mint())
            )
            fired_count += execution_id is not None
            schedule = structs.replace(
                schedule,
                next_at=after,
                last_execution_id=execution_id or schedule.last_execution_id,
            )
        return fired_count

    async def _fire_schedule(
        self,
        schedule: Schedule,
        nominal_at: datetime,
        next_at: datetime | None,
        execution_id: ExecutionId,
    ) -> ExecutionId | None:
        if schedule.overlap is Overlap.SKIP and await self._is_previous_running(schedule):
            overlapped = SkippedTimes(
                first_at=nominal_at,
                last_at=nominal_at,
                times=1,
                reason=SkipReason.OVERLAP,
                running_execution_id=schedule.last_execution_id,
                skipped_at=self._clock.now(),
            )
            await self._pass_over_times(schedule, overlapped, next_at=next_at)
            return None
        request = schedules.build_firing_request(
            schedule,
            nominal_at,
            execution_id=execution_id,
            routes=self._limits.routes,
            producer=PRODUCER,
        )
        fired_id = await self._schedules.fire_schedule(
            schedule, nominal_at=nominal_at, next_at=next_at, request=request
        )
        if fired_id is not None:
            instruments.add_to_counter(names.SCHEDULE_TIMES, labels={names.OUTCOME: FIRED})
            log.info(
                "schedule fired",
                schedule=schedule.name,
                nominal_at=nominal_at.isoformat(),
                execution_id=fired_id,
            )
        return fired_id

    async def _pass_over_times(
        self, schedule: Schedule, skipped: SkippedTimes, *, next_at: datetime | None
    ) -> None:
        if await self._schedules.skip_times(schedule, skipped, next_at=next_at):
            outcome, times = _OUTCOMES[skipped.reason], skipped.times
            instruments.add_to_counter(names.SCHEDULE_TIMES, times, labels={names.OUTCOME: outcome})
            log.warning("schedule skipped", schedule=schedule.name, times=times, why=outcome)

    async def _is_previous_running(self, schedule: Schedule) -> bool:
        """Tell whether the execution of the firing before has not ended."""
        before = schedule.last_execution_id
        if before is None:
            return False
        rows = await self._projections.list_rows("execution", before)
        if rows:
            return rows[0].get("ended_at") is None
        begun_at = datetime.fromtimestamp(identity.read_minted_at_ms(before) / 1000, UTC)
        return (self._clock.now() - begun_at).total_seconds() < UNSEEN_S
