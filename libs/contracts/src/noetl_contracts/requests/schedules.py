"""Schedules: playbooks started by time, and which nominal times are due."""

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests import cron, workload_keys
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.starts import build_start_request

CATCH_UP_MAX = 1000
# So many missed times are counted to the last one; of more only those that may be fired.
COUNTED_MAX = 100
# A firing this late still counts as on time: what a sweep, or the change of the leader, takes.
ON_TIME_S = 60.0
# What `requested_by` begins with, before the schedule's name.
ASKER = "schedule "
_FIRST_LOOK = timedelta(hours=1)


class CatchUp(StrEnum):
    """What becomes of times that passed while nobody looked: none, the last, or all of them."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


class Overlap(StrEnum):
    """Whether a firing may begin while the one before it runs."""

    ALLOW = "allow"
    SKIP = "skip"


class SkipReason(StrEnum):
    """The rule of a schedule that let times go by without an execution."""

    CATCH_UP = "catch_up"
    OVERLAP = "overlap"


class SkippedTimes(Struct, frozen=True, kw_only=True):
    """Nominal times from `first_at` to `last_at` that a schedule passed over for one reason.

    `times` is how many, at the least unless `is_exact`. `running_execution_id` is what still ran
    where the reason is an overlap; `skipped_at` is when the schedule was moved on, the last time.
    """

    first_at: datetime
    last_at: datetime
    times: int
    is_exact: bool = True
    reason: SkipReason
    running_execution_id: ExecutionId | None = None
    skipped_at: datetime


class Schedule(Struct, frozen=True, kw_only=True):
    """A playbook and when to run it; a version of None means the latest at each firing.

    `revision` grows with every change, so that nobody fires what was changed meanwhile. `next_at`
    is the earliest nominal time that has been neither fired nor passed over. `skipped_count` is how
    many were passed over by its rules so far, at the least. `actor` is who put it.
    """

    schedule_id: str
    tenant_id: TenantId
    organization_id: OrganizationId
    name: str
    path: str
    version: int | None = None
    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    cron: str
    timezone: str = "UTC"
    catch_up: CatchUp = CatchUp.LAST
    catch_up_max: int = 10
    overlap: Overlap = Overlap.ALLOW
    is_enabled: bool = True
    revision: int = 1
    next_at: datetime | None = None
    last_at: datetime | None = None
    last_execution_id: ExecutionId | None = None
    skipped_count: int = 0
    actor: Actor | None = None


class DueFirings(Struct, frozen=True, kw_only=True):
    """Nominal times to fire, in order, and those before them that are passed over."""

    fire: list[datetime]
    skipped: SkippedTimes | None
    next_at: datetime | None


def find_due_firings(schedule: Schedule, now: datetime) -> DueFirings:
    """Return the nominal times that a schedule must fire at `now`, by its catch-up rule.

    Of very many missed times only the most recent are computed: then their count is not exact.
    """
    if not schedule.is_enabled or schedule.next_at is None or schedule.next_at > now:
        return DueFirings(fire=[], skipped=None, next_at=schedule.next_at)
    owed = _list_recent_times(schedule, schedule.next_at, now)
    match schedule.catch_up:
        case CatchUp.SKIP:
            on_time = now - timedelta(seconds=ON_TIME_S)
            fire = [time for time in owed if time >= on_time]
        case CatchUp.LAST:
            fire = owed[-1:]
        case CatchUp.ALL:
            fire = owed[-schedule.catch_up_max :]
    return DueFirings(
        fire=fire,
        skipped=_describe_caught_up(schedule.next_at, owed[: len(owed) - len(fire)], now),
        next_at=find_next_time(schedule, now),
    )


def list_missed_times(schedule: Schedule, now: datetime, *, times_max: int) -> list[datetime]:
    """Return the first due times that passed and were neither fired nor passed over.

    A paused schedule misses none.
    """
    late_at = now - timedelta(seconds=ON_TIME_S)
    if not schedule.is_enabled or schedule.next_at is None or schedule.next_at >= late_at:
        return []
    before_first = schedule.next_at - timedelta(seconds=1)
    times = cron.iterate_due_times(schedule.cron, schedule.timezone, before_first)
    return list(islice(takewhile(lambda time: time < late_at, times), times_max))


def find_next_time(schedule: Schedule, moment: datetime) -> datetime | None:
    """Return the next nominal time after a moment, or None when there is none."""
    return next(cron.iterate_due_times(schedule.cron, schedule.timezone, moment), None)


def build_fired_workload(
    workload: Mapping[str, Any], name: str, nominal_at: datetime
) -> dict[str, Any]:
    """Return the workload with the name of the schedule and its nominal time."""
    moment = nominal_at.astimezone(UTC).isoformat()
    return {**workload, workload_keys.SCHEDULE: {"name": name, "nominal_at": moment}}


def build_firing_key(schedule: Schedule, nominal_at: datetime) -> str:
    """Name one firing for good: asking twice for it is asking once."""
    return f"schedule/{schedule.schedule_id}/{int(nominal_at.timestamp())}"


def build_firing_actor(schedule: Schedule) -> Actor:
    """Return a schedule as the actor of what it starts, for who put it."""
    return actors.build_caused_actor(
        ActorKind.SCHEDULE, Via.SCHEDULE, schedule.schedule_id, schedule.name, schedule.actor
    )


def build_firing_request(
    schedule: Schedule,
    nominal_at: datetime,
    *,
    execution_id: ExecutionId,
    routes: IngestRoutes,
    producer: str,
) -> Request:
    """Ask for the execution of one nominal time."""
    return build_start_request(
        ExecutionRequested(
            path=schedule.path,
            version=schedule.version,
            workload=build_fired_workload(schedule.workload, schedule.name, nominal_at),
            requested_by=f"{ASKER}{schedule.name}",
        ),
        owner=(schedule.tenant_id, schedule.organization_id),
        actor=build_firing_actor(schedule),
        execution_id=execution_id,
        routes=routes,
        producer=producer,
        key=build_firing_key(schedule, nominal_at),
    )


def _describe_caught_up(
    first: datetime, passed_over: list[datetime], now: datetime
) -> SkippedTimes | None:
    """Describe the times from the first to the last that the catch-up rule leaves out."""
    if not passed_over:
        return None
    is_cut = passed_over[0] > first
    return SkippedTimes(
        first_at=first,
        last_at=passed_over[-1],
        times=len(passed_over) + int(is_cut),
        is_exact=not is_cut,
        reason=SkipReason.CATCH_UP,
        skipped_at=now,
    )


def _list_recent_times(schedule: Schedule, first: datetime, now: datetime) -> list[datetime]:
    """Return the due times from the first to now, of very many the latest ones.

    There are more than may be fired, so that the last one that is passed over is among them.
    Looks back ever further, so that a year without a look costs no year of minutes.
    """
    fired_max = schedule.catch_up_max if schedule.catch_up is CatchUp.ALL else 1
    enough = max(fired_max, COUNTED_MAX)
    before_first = first - timedelta(seconds=1)
    window = _FIRST_LOOK
    while True:
        start = max(now - window, before_first)
        instants: deque[datetime] = deque(maxlen=CATCH_UP_MAX + 1)
        for time in cron.iterate_due_times(schedule.cron, schedule.timezone, start):
            if time > now:
                break
            instants.append(time)
        if len(instants) > enough or start == before_first:
            return list(instants)
        window *= 2
