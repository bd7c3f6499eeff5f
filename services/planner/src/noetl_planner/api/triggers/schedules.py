"""Schedules: kept, shown, paused, run by hand; the reaper fires them."""

import asyncio
from datetime import datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import delete, get, post, put
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED
from msgspec import Meta, Struct, structs

from noetl_contracts import codec, spelling
from noetl_contracts.requests import cron, workload_keys
from noetl_contracts.requests import schedules as scheduling
from noetl_contracts.requests.cron import CronRefused, TimezoneRefused
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.schedules import (
    CATCH_UP_MAX,
    CatchUp,
    Overlap,
    Schedule,
    SkippedTimes,
)
from noetl_planner.api.catalog import catalog_entries, input_checks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import RegistryStores
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import views
from noetl_storage.ports.errors import VersionConflict

SCHEDULES_MAX = 1000
FIRINGS_SHOWN = 5
FIRINGS_MAX = 100
SKIPS_SHOWN = 5
# As many as the store keeps of one schedule.
SKIPS_MAX = 100
_SWITCHES_TRIED_MAX = 8
_CRON_HINT = 'write five fields, such as "30 6 * * MON-FRI"'
_TIMEZONE_HINT = "--timezone Europe/Berlin, or leave it out for UTC"

Name = Annotated[str, Meta(pattern=problems.NAME_PATTERN)]
IdempotencyKey = Annotated[
    str | None, HeaderParameter(name="Idempotency-Key", min_length=1, max_length=200)
]


class ScheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run and when; a version of None means the latest at each firing."""

    path: Annotated[str, Meta(min_length=1, max_length=512)]
    cron: Annotated[str, Meta(min_length=1, max_length=cron.EXPRESSION_CHARACTERS_MAX)]
    timezone: Annotated[str, Meta(min_length=1, max_length=80)] = "UTC"
    version: Annotated[int, Meta(ge=1)] | None = None
    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    catch_up: CatchUp = CatchUp.LAST
    catch_up_max: Annotated[int, Meta(ge=1, le=CATCH_UP_MAX)] = 10
    overlap: Overlap = Overlap.ALLOW
    enabled: bool = True


class NamedBody(ScheduleBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule with its name."""

    name: Name


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule as people see it; `next` are the times to come.

    `missed` are the first times that passed more than a minute ago without a firing, by the clock
    of the server; `has_more_missed` when there are others. A paused schedule misses none.
    `skipped` are the newest times that its catch-up or overlap rule passed over, newest first;
    `skipped_count` is how many it passed over so far, at the least.
    It is `suspended` while its author may not start its playbook any more, for the reason told.
    """

    name: str
    path: str
    version: int | None
    cron: str
    timezone: str
    workload: dict[str, Any]
    catch_up: str
    catch_up_max: int
    overlap: str
    enabled: bool
    next_at: datetime | None
    last_at: datetime | None
    last_execution_id: str | None
    next: list[datetime] = msgspec.field(default_factory=list)
    missed: list[datetime] = msgspec.field(default_factory=list)
    has_more_missed: bool = False
    skipped: list[SkippedTimes] = msgspec.field(default_factory=list)
    skipped_count: int = 0
    author: str | None = None
    suspended: str | None = None


class ScheduleList(Struct, frozen=True, kw_only=True):
    """The schedules, by name; `read_at` is the time of the server's clock."""

    schedules: list[ScheduleView]
    read_at: datetime | None = None


class Removed(Struct, frozen=True, kw_only=True):
    """A schedule that is no more."""

    name: str
    removed: bool = True


@get("/schedules", tags=["schedules"])
async def list_schedules(services: Services) -> ScheduleList:
    """List the schedules, each with the times to come, those missed and those passed over."""
    schedules = await _list_all_schedules(services)
    visible = [schedule for schedule in schedules if services.covers_path(schedule.path)]
    now = services.clock.now()
    # A rare day of a leap year is looked for through years of days.
    times = await asyncio.to_thread(_list_times, visible, now)
    skips = await services.registry.schedules.list_skipped_times(
        [schedule.schedule_id for schedule in visible], skips_max=SKIPS_SHOWN
    )
    return ScheduleList(
        schedules=[
            structs.replace(
                await _view_author(services, schedule),
                skipped=skips.get(schedule.schedule_id, []),
                **schedule_times,
            )
            for schedule, schedule_times in zip(visible, times, strict=True)
        ],
        read_at=now,
    )


@post("/schedules", status_code=HTTP_200_OK, tags=["schedules"])
async def create(services: Services, data: JSONBody[NamedBody]) -> ScheduleView:
    """Keep a new schedule; refuses a name that is taken."""
    return await _keep_schedule(services, data.name, data, is_new=True)


@put("/schedules/{name:str}", status_code=HTTP_200_OK, tags=["schedules"])
async def replace(
    services: Services, name: FromPath[str], data: JSONBody[ScheduleBody]
) -> ScheduleView:
    """Keep a schedule under a name, whether or not there was one."""
    return await _keep_schedule(services, problems.check_name(name, "a schedule"), data)


@get("/schedules/{name:str}", tags=["schedules"])
async def show(
    services: Services,
    name: FromPath[str],
    count: Annotated[int, QueryParameter(ge=0, le=FIRINGS_MAX)] = FIRINGS_SHOWN,
    skips: Annotated[int, QueryParameter(ge=0, le=SKIPS_MAX)] = SKIPS_SHOWN,
) -> ScheduleView:
    """Show a schedule, the times to come, and the newest that its rules passed over."""
    schedule = await _get_schedule(services, name)
    skips_by_id = await services.registry.schedules.list_skipped_times(
        [schedule.schedule_id], skips_max=skips
    )
    view = structs.replace(
        await _view_author(services, schedule),
        skipped=skips_by_id.get(schedule.schedule_id, []),
    )
    if not schedule.is_enabled:
        return view
    now = services.clock.now()
    coming = cron.list_due_times(schedule.cron, schedule.timezone, now, times_max=count)
    return structs.replace(view, next=coming, **_list_missed(schedule, now))


@delete("/schedules/{name:str}", status_code=HTTP_200_OK, tags=["schedules"])
async def remove(services: Services, name: FromPath[str]) -> Removed:
    """Remove a schedule; what it has started goes on."""
    schedule = await _get_schedule(services, name)
    async with services.record_change("schedule.removed", schedule.name):
        await services.registry.schedules.remove_schedule(schedule.name, **services.tenant_scope)
    return Removed(name=schedule.name)


@post("/schedules/{name:str}/pause", status_code=HTTP_200_OK, tags=["schedules"])
async def pause(services: Services, name: FromPath[str]) -> ScheduleView:
    """Fire nothing until it is resumed; times that pass meanwhile are not caught up."""
    return await _switch_schedule(services, name, is_enabled=False)


@post("/schedules/{name:str}/resume", status_code=HTTP_200_OK, tags=["schedules"])
async def resume(services: Services, name: FromPath[str]) -> ScheduleView:
    """Fire again, from the next time on; who resumes a suspended one becomes its author."""
    schedule = await _get_schedule(services, name)
    if await services.find_author_fault(schedule.actor, schedule.path) is None:
        return await _switch_schedule(services, name, is_enabled=True)
    return await _take_over_schedule(services, schedule)


@post("/schedules/{name:str}/run", status_code=HTTP_202_ACCEPTED, tags=["schedules"])
async def run(
    services: Services, name: FromPath[str], idempotency_key: IdempotencyKey = None
) -> views.Accepted:
    """Run what a schedule runs, now and besides its times."""
    schedule = await _get_schedule(services, name)
    entry = await catalog_entries.get_playbook_entry(services, schedule.path, schedule.version)
    start_requests.check_requirements(services, entry)
    input_checks.check_inputs(entry, schedule.workload)
    input_checks.check_required_inputs(entry, {workload_keys.SCHEDULE, *schedule.workload})
    workload = scheduling.build_fired_workload(
        schedule.workload, schedule.name, services.clock.now().replace(microsecond=0)
    )
    fact = ExecutionRequested(
        path=entry.path,
        version=entry.version,
        workload=workload,
        requested_by=f"{scheduling.ASKER}{schedule.name}",
    )
    return await start_requests.begin_execution(
        services, fact, entry, key=idempotency_key, is_pinned=schedule.version is not None
    )


async def _keep_schedule(
    services: ApiServices, name: str, body: ScheduleBody, *, is_new: bool = False
) -> ScheduleView:
    entry = await catalog_entries.get_playbook_entry(services, body.path, body.version)
    start_requests.check_requirements(services, entry)
    size = len(codec.encode_canonical(body.workload))
    if size > start_requests.INLINE_BYTES_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="payload_too_large",
            detail=f"the workload takes {size} bytes; a schedule's may take "
            f"{start_requests.INLINE_BYTES_MAX}",
            hint="keep bulk data in a table or an object, and name it in the workload",
        )
    problems.check_depth(body.workload, "the workload")
    if workload_keys.SCHEDULE in body.workload:
        raise problems.build_bad_request_error(
            f"the workload's key {workload_keys.SCHEDULE!r} is set by each firing",
            hint="give that input another name",
        )
    input_checks.check_inputs(entry, body.workload)
    input_checks.check_required_inputs(entry, {workload_keys.SCHEDULE, *body.workload})
    schedule = Schedule(
        schedule_id=services.mint(),
        **services.tenant_scope,
        name=name,
        path=entry.path,
        version=body.version,
        workload=body.workload,
        cron=" ".join(body.cron.split()),
        timezone=body.timezone,
        catch_up=body.catch_up,
        catch_up_max=body.catch_up_max,
        overlap=body.overlap,
        is_enabled=body.enabled,
        actor=services.actor,
    )
    due = _set_next_time(services, schedule)
    async with services.record_change(
        "schedule.written", name, path=entry.path, cron=schedule.cron, timezone=schedule.timezone
    ):
        await _check_name(services, name, is_new=is_new)
        return _view_schedule(await services.registry.schedules.put_schedule(due))


async def _check_name(services: ApiServices, name: str, *, is_new: bool) -> None:
    """Raise a 409 for a name that is taken, for what `is_new` by whomever."""
    schedule = await services.registry.schedules.find_schedule(name, **services.tenant_scope)
    services.check_replaced(None if schedule is None else schedule.path, f"schedule {name!r}")
    if is_new and schedule is not None:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="schedule_exists",
            detail=f"there is a schedule {name!r} already",
            hint=f"noetl schedule put {name} changes it",
        )


def _set_next_time(services: ApiServices, schedule: Schedule) -> Schedule:
    """Set when a schedule is due next; raises a 422 for what names no times."""
    try:
        cron.check_cron(schedule.cron, schedule.timezone)
    except CronRefused as refusal:
        is_timezone = isinstance(refusal, TimezoneRefused)
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="cron_refused",
            detail=str(refusal),
            hint=_TIMEZONE_HINT if is_timezone else _CRON_HINT,
        ) from refusal
    next_at = scheduling.find_next_time(schedule, services.clock.now())
    return structs.replace(schedule, next_at=next_at if schedule.is_enabled else None)


async def _take_over_schedule(services: ApiServices, schedule: Schedule) -> ScheduleView:
    new_schedule = structs.replace(schedule, actor=services.actor, is_enabled=True)
    before = None if schedule.actor is None else schedule.actor.short_name
    async with services.record_change("schedule.resumed", schedule.name, taken_over_from=before):
        return _view_schedule(
            await services.registry.schedules.put_schedule(_set_next_time(services, new_schedule))
        )


def _list_times(schedules: list[Schedule], now: datetime) -> list[dict[str, Any]]:
    """List what comes and what was missed; nothing of a zone that this machine does not have."""
    # Nothing is due within a minute: the same answer is given to all that ask in it.
    minute = now.replace(second=0, microsecond=0)
    listed: list[dict[str, Any]] = []
    for schedule in schedules:
        try:
            coming = _list_coming_times(schedule.cron, schedule.timezone, minute)
            shown = list(coming) if schedule.is_enabled else []
            times = {"next": shown, **_list_missed(schedule, now)}
        except CronRefused:
            times = {}
        listed.append(times)
    return listed


@lru_cache(maxsize=2 * SCHEDULES_MAX)
def _list_coming_times(expression: str, zone: str, after: datetime) -> tuple[datetime, ...]:
    return tuple(cron.list_due_times(expression, zone, after, times_max=FIRINGS_SHOWN))


def _list_missed(schedule: Schedule, now: datetime) -> dict[str, Any]:
    missed = scheduling.list_missed_times(schedule, now, times_max=FIRINGS_SHOWN + 1)
    return {"missed": missed[:FIRINGS_SHOWN], "has_more_missed": len(missed) > FIRINGS_SHOWN}


async def _view_author(services: ApiServices, schedule: Schedule) -> ScheduleView:
    fault = await services.find_author_fault(schedule.actor, schedule.path)
    shown_author = (
        None if fault is None else f"{fault}; noetl schedule resume {schedule.name} takes it over"
    )
    return structs.replace(_view_schedule(schedule), suspended=shown_author)


async def _switch_schedule(services: ApiServices, name: str, *, is_enabled: bool) -> ScheduleView:
    for _ in range(_SWITCHES_TRIED_MAX):
        schedule = await _get_schedule(services, name)
        if schedule.is_enabled == is_enabled:
            return _view_schedule(schedule)
        new_schedule = _set_next_time(services, structs.replace(schedule, is_enabled=is_enabled))
        if await _store_switch(services, new_schedule):
            return _view_schedule(new_schedule)
    raise ApiError(
        HTTPStatus.CONFLICT,
        code="schedule_contended",
        detail=f"others keep changing schedule {name[:128]!r}",
        hint="try again",
    )


async def _store_switch(services: ApiServices, schedule: Schedule) -> bool:
    """Store a switch and its record; False, and neither, when the schedule was changed."""
    action = "schedule.resumed" if schedule.is_enabled else "schedule.paused"
    try:
        async with services.record_change(action, schedule.name):
            await _switch_or_raise(services.registry, schedule)
    except VersionConflict:
        return False
    return True


async def _switch_or_raise(registry: RegistryStores, schedule: Schedule) -> None:
    if not await registry.schedules.switch_schedule(schedule):
        raise VersionConflict(f"schedule {schedule.name!r} was changed meanwhile")


async def _get_schedule(services: ApiServices, name: str) -> Schedule:
    schedule = await services.registry.schedules.find_schedule(name, **services.tenant_scope)
    if schedule is not None:
        services.check_seen_path(schedule.path)
    if schedule is None or not services.covers_path(schedule.path):
        names = [
            schedule.name
            for schedule in await _list_all_schedules(services)
            if services.covers_path(schedule.path)
        ]
        raise problems.build_not_found_error(
            f"there is no schedule {name[:128]!r}",
            hint=spelling.suggest_word(name[:128], names) or "noetl schedule ls",
        )
    return schedule


async def _list_all_schedules(services: ApiServices) -> list[Schedule]:
    return await services.registry.schedules.list_schedules(
        schedules_max=SCHEDULES_MAX, **services.tenant_scope
    )


def _view_schedule(schedule: Schedule) -> ScheduleView:
    return ScheduleView(
        name=schedule.name,
        path=schedule.path,
        version=schedule.version,
        cron=schedule.cron,
        timezone=schedule.timezone,
        workload=schedule.workload,
        catch_up=schedule.catch_up,
        catch_up_max=schedule.catch_up_max,
        overlap=schedule.overlap,
        enabled=schedule.is_enabled,
        next_at=schedule.next_at,
        last_at=schedule.last_at,
        last_execution_id=schedule.last_execution_id,
        skipped_count=schedule.skipped_count,
        author=None if schedule.actor is None else schedule.actor.short_name,
    )


ROUTES = [list_schedules, create, replace, show, remove, pause, resume, run]
