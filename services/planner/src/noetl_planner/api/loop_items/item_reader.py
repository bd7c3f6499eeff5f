"""Items of loops whose units are items: each has a command, and an outcome in the ledger."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET, structs

from noetl_contracts import codec, ids
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.errors import TRIES_MAX
from noetl_contracts.events.command_events import CommandReissued
from noetl_contracts.events.step_events import CallError, ItemEnd
from noetl_contracts.status import CommandStatus
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.loop_items.loop_record import LoopRecord
from noetl_planner.api.loop_items.views import ItemState, ItemView, view_item_input
from noetl_planner.domain.decision import idempotency_keys
from noetl_planner.loops.taken_units import TakenResults
from noetl_playbook.views import error_view
from noetl_replay.state import CommandState

# Items that one answer looks at, also where it finds few.
LOOKED_AT_MAX = 10_000
_WINDOW = 1_000

ViewPage = tuple[list[ItemView], int, bool]


class ItemReader:
    """Lists the items of one epoch of a loop."""

    def __init__(self, services: ApiServices, record: LoopRecord) -> None:
        self._services = services
        self._record = record
        self._total = record.started.total or 0

    async def list_items(self, state: ItemState | None, *, after: int, limit: int) -> ViewPage:
        """Return items after an index, up to which index was looked, and whether more follow."""
        if state is ItemState.FAILED:
            return await self._list_failed(after, limit)
        item_views: list[ItemView] = []
        last, looked = after, 0
        while len(item_views) < limit and last + 1 < self._total and looked < LOOKED_AT_MAX:
            size = limit - len(item_views) if state is None else _WINDOW
            end = min(self._total, last + 1 + size)
            window = await self._read_item_window(last + 1, end)
            matching = [view for view in window if state in (None, view.state)]
            item_views += matching[: limit - len(item_views)]
            looked += end - last - 1
            last = item_views[-1].index if len(item_views) == limit else end - 1
        return await self._complete_views(item_views), last, last + 1 < self._total

    async def _list_failed(self, after: int, limit: int) -> ViewPage:
        errors = await self._services.history.ledger.list_failed_items(
            self._record.execution_id, self._record.run_id, after_index=after, results_max=limit + 1
        )
        item_views = await self._complete_views(
            [self._view_ended_item(error) for error in errors[:limit]]
        )
        last = item_views[-1].index if item_views else max(after, self._total - 1)
        return item_views, last, len(errors) > limit

    async def _read_item_window(self, first: int, end: int) -> list[ItemView]:
        """Show the items from `first` up to `end`, without what takes looking further."""
        record = self._record
        ended = await self._services.history.ledger.list_item_results(
            record.execution_id, record.run_id, after_index=first - 1, results_max=end - first
        )
        by_index = {event.item_index: self._view_ended_item(event) for event in ended}
        for command in record.state.commands.values():
            if command.run_id == record.run_id and command.item_index is not None:
                for index in _list_open_items(command):
                    by_index.setdefault(index, _view_open_item(command, index))
        if record.started.taken is not None:
            taken_results = TakenResults(self._services.payloads, record.started.taken)
            async for item in taken_results.read_items(first=first, end=end):
                by_index[item.index] = ItemView(
                    index=item.index,
                    state=ItemState.COMPLETED,
                    record="item",
                    taken_from=record.started.taken.execution_id,
                )
        return [
            by_index.get(index) or self._view_missing_item(index) for index in range(first, end)
        ]

    def _view_ended_item(self, event: ItemEnd) -> ItemView:
        index = event.item_index or 0
        is_failed = isinstance(event, CallError)
        tries = event.error.tries if isinstance(event, CallError) else event.tries
        batch = event.in_batch
        return ItemView(
            index=index,
            state=ItemState.FAILED if is_failed else ItemState.COMPLETED,
            record="item",
            attempts=1 if batch is None else batch.attempt,
            error=error_view.show_error_summary(event.error)
            if isinstance(event, CallError)
            else None,
            tries=codec.to_builtins(tries),
            command_id=event.command_id if batch is None else batch.command_id,
            worker_id=None if batch is None else batch.worker_id,
            duration=None if batch is None else _sum_durations(batch.tasks),
        )

    def _view_missing_item(self, index: int) -> ItemView:
        loop_state = self._record.live
        is_waiting = loop_state is not None and (
            index >= loop_state.next_index
            or (loop_state.returned is not UNSET and index in loop_state.returned)
        )
        return ItemView(
            index=index,
            state=ItemState.PENDING if is_waiting else ItemState.CANCELLED,
            record="item",
        )

    async def _complete_views(self, views: Sequence[ItemView]) -> list[ItemView]:
        """Add inputs, and what the commands tell."""
        record = self._record
        names = {
            view.index: ids.CommandId(view.command_id)
            if view.command_id is not None
            else ids.derive_command_id(record.run_id, f"item-{view.index}")
            for view in views
            if view.state is not ItemState.PENDING and view.taken_from is None
        }
        rows = await self._services.history.projections.list_commands(
            record.execution_id, list(names.values())
        )
        row_by_id = {str(row["command_id"]): row for row in rows}
        collection = record.open_collection(self._services)
        item_views: list[ItemView] = []
        for view in views:
            row = row_by_id.get(names.get(view.index, ""))
            about = {} if row is None else _describe_command(row)
            attempts = int(about.get("attempts", view.attempts))
            if attempts > 1 and view.command_id is not None:
                about["tries"] = [
                    *await self._list_command_losses(view.command_id, attempts),
                    *view.tries,
                ]
            inputs = await view_item_input(collection, view.index)
            item_views.append(structs.replace(view, **about, **inputs))
        return item_views

    async def _list_command_losses(self, command_id: str, attempts: int) -> list[dict[str, Any]]:
        """Tell the latest attempts that ended with their worker."""
        command_losses: list[dict[str, Any]] = []
        for attempt in range(max(2, attempts - TRIES_MAX + 1), attempts + 1):
            key = idempotency_keys.build_reissued_key(ids.CommandId(command_id), attempt)
            event = await self._services.history.ledger.find_by_key(self._record.execution_id, key)
            if event is not None and isinstance(event.event, CommandReissued):
                lost = event.event
                command_losses.append(
                    {
                        "attempt": attempt - 1,
                        "kind": "worker_lost",
                        "message": lost.reason,
                        "at": event.event_time,
                        "worker_id": lost.previous_worker,
                    }
                )
        return command_losses


def _list_open_items(command: CommandState) -> list[int]:
    """List the items of a command that have not ended."""
    if command.batch is not UNSET:
        return command.batch
    return [] if command.item_index is None else [command.item_index]


def _sum_durations(tasks: MetricsByTask) -> float:
    return sum(metrics.duration_ms for metrics in tasks.values()) / 1000


def _view_open_item(command: CommandState, index: int) -> ItemView:
    is_waiting = command.status is CommandStatus.ISSUED or index != _list_open_items(command)[0]
    return ItemView(
        index=index,
        state=ItemState.PENDING if is_waiting else ItemState.RUNNING,
        record="item",
        attempts=command.attempt,
        issued_at=command.issued_at,
        worker_id=command.worker_id,
        command_id=command.command_id,
    )


def _describe_command(row: dict[str, Any]) -> dict[str, Any]:
    """Say what a command tells of its item; of a batch each item has told the rest itself."""
    if str(row["unit"]).startswith("batch-"):
        return {"issued_at": row["issued_at"], "ended_at": row["completed_at"]}
    issued_at: datetime | None = row["issued_at"]
    ended_at: datetime | None = row["completed_at"]
    is_timed = issued_at is not None and ended_at is not None
    return {
        "attempts": row["attempts"],
        "issued_at": issued_at,
        "ended_at": ended_at,
        "duration": round((ended_at - issued_at).total_seconds(), 3) if is_timed else None,  # type: ignore[operator]  # both are there
        "worker_id": row["worker_id"],
        "command_id": str(row["command_id"]),
    }
