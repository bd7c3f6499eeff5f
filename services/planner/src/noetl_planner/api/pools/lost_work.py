"""Tells of work whose worker is not heard any more: who held it, since when, and who goes on.

A worker that is killed says nothing: its commands stay as they are until their leases end, and
after that they wait for a worker of their pool, for ever where none comes.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from noetl_contracts.commands.worker_pools import SILENT_S
from noetl_contracts.events.command_events import REASONS_WITHOUT_LOSS, CommandReissued
from noetl_contracts.ids import CommandId, ExecutionId, WorkerId
from noetl_contracts.ledger.records import IssuedCommand, LeasedCommand
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.pools import pool_waits
from noetl_planner.domain.decision import idempotency_keys

COMMANDS_MAX = 500
# Commands that wait again are looked up one by one.
LOOKED_UP_MAX = 20
LOST_MAX = 8
STEPS_MAX = 20


class LostWork(Struct, frozen=True, kw_only=True):
    """Commands of one execution that a worker held which is not heard any more.

    `is_held`: their leases may not have ended, and `since` is the last sign of life of any of them.
    Otherwise they wait for another worker, `since` the first of them was given up. `is_served`
    tells whether a worker serves their pool, null where that is not known; `reason` says what they
    wait for, and what to do.
    """

    worker_id: str
    pool: str
    lane: str
    steps: list[str]
    commands: int
    is_held: bool
    since: datetime
    is_served: bool | None
    reason: str


class _LostCommand(Struct, frozen=True, kw_only=True):
    """A command, who held it, and since when nothing comes of it."""

    worker_id: str
    pool: str
    lane: str
    step: str
    is_held: bool
    since: datetime


async def list_lost_work(
    services: ApiServices, execution_id: ExecutionId, late: Iterable[IssuedCommand]
) -> list[LostWork]:
    """List what of an execution was with workers that are silent, by worker and place.

    `late` are its commands that wait for a worker for longer than a moment.
    """
    leased = await services.history.projections.list_leased(
        **services.tenant_scope, execution_id=execution_id, commands_max=COMMANDS_MAX
    )
    lost = [
        _LostCommand(
            worker_id=command.worker_id or "",
            pool=command.pool,
            lane=command.lane,
            step=command.step,
            is_held=True,
            since=command.heard_at,
        )
        for command in leased
        if is_holder_silent(services, command)
    ]
    lost += await _list_given_up(services, execution_id, late)
    return [await _explain_group(services, group) for group in _group_commands(lost)[:LOST_MAX]]


def is_holder_silent(services: ApiServices, command: LeasedCommand) -> bool:
    """Tell whether nothing is heard of a command, nor of the worker that holds it."""
    silence = services.clock.now() - command.heard_at
    if command.pool in services.pools.by_http:
        # Workers over HTTP are heard by their commands alone.
        return silence > timedelta(seconds=services.limits.command_lease_s)
    presence = services.shards.worker_presence
    is_silent = presence.is_silent(WorkerId(command.worker_id or ""))
    return silence > timedelta(seconds=SILENT_S) and is_silent is True


async def _list_given_up(
    services: ApiServices, execution_id: ExecutionId, late: Iterable[IssuedCommand]
) -> list[_LostCommand]:
    """List commands that wait again since their worker was given up."""
    command_by_id = {command.command_id: command for command in late}
    rows = await services.history.projections.list_commands(execution_id, list(command_by_id))
    again = [
        (command_by_id[CommandId(str(row["command_id"]))], row["attempts"])
        for row in rows
        if (row["attempts"] or 0) > 1
    ]
    lost = [
        await _find_loss(services, command, attempt) for command, attempt in again[:LOOKED_UP_MAX]
    ]
    return [command for command in lost if command is not None]


async def _find_loss(
    services: ApiServices, command: IssuedCommand, attempt: int
) -> _LostCommand | None:
    """Return who held a command before it waited again; None where it was not lost."""
    key = idempotency_keys.build_reissued_key(command.command_id, attempt)
    envelope = await services.history.ledger.find_by_key(command.execution_id, key)
    event = None if envelope is None else envelope.event
    if not isinstance(event, CommandReissued) or event.reason in REASONS_WITHOUT_LOSS:
        return None
    if event.previous_worker is None:
        return None
    return _LostCommand(
        worker_id=event.previous_worker,
        pool=command.pool,
        lane=command.lane,
        step=command.step,
        is_held=False,
        since=command.since,
    )


def _group_commands(commands: Iterable[_LostCommand]) -> list[list[_LostCommand]]:
    """Put together what one worker held of one place, the largest groups first."""
    groups: dict[tuple[str, str, str, bool], list[_LostCommand]] = {}
    for command in commands:
        key = (command.worker_id, command.pool, command.lane, command.is_held)
        groups.setdefault(key, []).append(command)
    return sorted(groups.values(), key=len, reverse=True)


async def _explain_group(services: ApiServices, group: list[_LostCommand]) -> LostWork:
    first = group[0]
    place = await pool_waits.explain_place(services, first.pool, first.lane, commands=len(group))
    reason = place.reason
    if first.is_held and place.is_served:
        reason = f"another worker of pool {first.pool!r} is given it once the lease has ended"
    times = [command.since for command in group]
    return LostWork(
        worker_id=first.worker_id,
        pool=first.pool,
        lane=first.lane,
        steps=list(dict.fromkeys(command.step for command in group))[:STEPS_MAX],
        commands=len(group),
        is_held=first.is_held,
        since=max(times) if first.is_held else min(times),
        is_served=place.is_served,
        reason=reason,
    )
