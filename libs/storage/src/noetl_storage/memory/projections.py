"""The read models in memory."""

import copy
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from operator import itemgetter
from typing import Any, TypeVar

from noetl_contracts import ids
from noetl_contracts.commands.worker_pools import LANES
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import (
    STEP_KIND,
    CheckpointCommitted,
    FrameBins,
    IssuedCommand,
    LeasedCommand,
    LiveCommandCount,
    OpenWait,
    OverdueCommand,
    StoredLineageLink,
)
from noetl_contracts.status import CommandStatus, FrameStatus
from noetl_storage.ledger import frame_bins
from noetl_storage.ledger.surfaces import (
    KEY_BY_SURFACE,
    LIVE_COMMAND,
    LIVE_EXECUTION,
    list_latest_rows,
    read_issued_command,
    read_leased_command,
    read_open_waits,
    read_stored_link,
)
from noetl_storage.memory.store import MemoryStore, Row

V = TypeVar("V")
_UNCHANGING = frozenset({str, int, float, bool, bytes, datetime, type(None)})
_EVER = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryProjections:
    """Keeps rows and positions together; positions are compared and swapped."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def list_positions(self, execution_ids: Sequence[ExecutionId]) -> dict[str, int]:
        """Return the version up to which each execution is projected; absent means 0."""
        position_by_execution = self._store.position_by_execution
        return {
            execution: position_by_execution[execution]
            for execution in execution_ids
            if execution in position_by_execution
        }

    async def apply_rows(
        self,
        *,
        shard: int,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        positions: Mapping[str, tuple[int, int]],
        results: Sequence[Mapping[str, Any]] = (),
    ) -> list[str]:
        """Write rows by surface and move positions (from, to), at once."""
        position_by_execution = self._store.position_by_execution
        moved_positions = {
            execution: new
            for execution, (old, new) in positions.items()
            if position_by_execution.get(execution, 0) == old
        }
        for surface, latest_rows in list_latest_rows(rows, of=moved_positions.keys()).items():
            row_by_key = self._get_surface(surface)
            key = KEY_BY_SURFACE[surface]
            row_by_key.update(
                {(row["execution_id"], row[key]): copy_row(dict(row)) for row in latest_rows}
            )
        for row in results:
            if row["execution_id"] in moved_positions:
                self._store.result_by_id.setdefault(row["ref_id"], copy_row(dict(row)))
        position_by_execution.update(moved_positions)
        self._store.checkpoint_by_shard[shard] = self._store.now()
        return [execution for execution in positions if execution not in moved_positions]

    async def list_executions_behind(
        self,
        *,
        shard: int,
        shard_count: int,
        older_than_s: float,
        executions_max: int,
        since: datetime | None = None,
    ) -> list[ExecutionId]:
        """Return executions of a shard whose ledger is ahead of the projection for too long."""
        before = self._store.now() - timedelta(seconds=older_than_s)
        positions = self._store.position_by_execution
        behind = [
            (moved_at, ExecutionId(execution))
            for execution, moved_at in self._store.head_moved_at.items()
            if moved_at < before
            and (since is None or moved_at >= since)
            and self._store.head_by_execution[execution].version > positions.get(execution, 0)
            and ids.find_shard(ExecutionId(execution), shard_count) == shard
        ]
        return [execution for _, execution in sorted(behind)[:executions_max]]

    async def list_rows(
        self,
        surface: str,
        execution_id: ExecutionId,
        *,
        after: str | None = None,
        rows_max: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows of one surface for one execution after a key, in key order."""
        rows = [
            (_build_sort_key(key[1]), row)
            for key, row in self._get_surface(surface).items()
            if key[0] == execution_id
            and (after is None or _build_sort_key(key[1]) > _build_sort_key(after))
        ]
        rows.sort(key=itemgetter(0))
        return [copy_row(row) for _, row in rows[:rows_max]]

    async def list_frames(
        self,
        execution_id: ExecutionId,
        *,
        stage_id: str | None,
        status: str | None,
        offset: int,
        frames_max: int,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a window of an execution's frames in key order, and how many there are."""
        rows = [
            row
            for row in await self.list_rows("frame", execution_id)
            if stage_id in {None, row["stage_id"]} and status in {None, row["status"]}
        ]
        return rows[offset : offset + frames_max], len(rows)

    async def bin_frames(self, execution_id: ExecutionId, *, bins_max: int) -> FrameBins:
        """Share out the frames of each stage over at most so many bins."""
        rows = await self.list_rows("frame", execution_id)
        return frame_bins.bin_frames(rows, bins_max=bins_max)

    async def clear_execution(self, execution_id: ExecutionId) -> None:
        """Forget one execution's rows and position, to be projected again."""
        self._store.position_by_execution.pop(execution_id, None)
        for surface in KEY_BY_SURFACE:
            row_by_key = self._get_surface(surface)
            for key in [key for key in row_by_key if key[0] == execution_id]:
                del row_by_key[key]
        for ref_id in [row["ref_id"] for row in await self.list_results(execution_id)]:
            del self._store.result_by_id[ref_id]

    async def replace_rows(
        self,
        *,
        shard: int,
        execution_id: ExecutionId,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        version: int,
        results: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Replace all of one execution's rows and its position, unless it is further already."""
        position = self._store.position_by_execution.get(execution_id, 0)
        if position > version:
            return position
        await self.clear_execution(execution_id)
        await self.apply_rows(
            shard=shard, rows=rows, positions={execution_id: (0, version)}, results=results
        )
        return version

    async def list_results(self, execution_id: ExecutionId) -> list[dict[str, Any]]:
        """Return an execution's stored results as they were written, in the order of their ids."""
        result_by_id = self._store.result_by_id.values()
        rows = [copy_row(row) for row in result_by_id if row["execution_id"] == execution_id]
        return sorted(rows, key=lambda row: int(row["ref_id"]))

    async def trace_results(
        self, execution_id: ExecutionId, step: str, *, links_max: int
    ) -> list[StoredLineageLink]:
        """Return the latest stored result of a step, the one that led to it, and so on, back."""
        rows = {row["ref_id"]: row for row in await self.list_results(execution_id)}
        of_step = [row for row in rows.values() if row["step_name"] == step]
        row, links = of_step[-1] if of_step else None, list[StoredLineageLink]()
        while row is not None and len(links) < links_max:
            links.append(read_stored_link(row))
            row = rows.get(row["parent_ref_id"] or "")
        return links

    async def list_executions_ahead(self, *, executions_max: int) -> list[ExecutionId]:
        """Return executions whose projection is ahead of the ledger, which cannot be."""
        heads = self._store.head_by_execution
        ahead = [
            ExecutionId(execution)
            for execution, version in self._store.position_by_execution.items()
            if execution not in heads or version > heads[execution].version
        ]
        return sorted(ahead, key=int)[:executions_max]

    async def list_executions(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        status: str | None,
        path: str | None,
        before: ExecutionId | None,
        since: datetime | None = None,
        executions_max: int,
    ) -> list[dict[str, Any]]:
        """Return executions, newest first; `since` leaves out those that began before it."""
        rows = [
            row
            for row in self._get_surface("execution").values()
            if (row["tenant_id"], row["organization_id"]) == (tenant_id, organization_id)
            and (status is None or row["status"] == status)
            and (path is None or row["path"] == path)
            and (before is None or int(row["execution_id"]) < int(before))
            and (since is None or row["started_at"] is None or row["started_at"] >= since)
        ]
        rows.sort(key=lambda row: int(row["execution_id"]), reverse=True)
        return copy_row(rows[:executions_max])

    async def list_overdue(self, *, grace_s: float, commands_max: int) -> list[OverdueCommand]:
        """Return live commands of which nothing was heard for `grace_s`, the longest silent first.

        At most `commands_max` that wait and as many that run in each place: a tenant's part of a
        lane of a pool.
        """
        before = self._store.now() - timedelta(seconds=grace_s)
        executions = self._get_surface("execution")
        overdue = [
            row
            for row in self._get_surface("command").values()
            if row["status"] in LIVE_COMMAND
            and row["heard_at"] is not None
            and row["heard_at"] < before
            and _is_execution_live(executions.get((row["execution_id"], row["execution_id"])))
        ]
        overdue.sort(key=lambda row: row["heard_at"])
        counter_by_queue: defaultdict[tuple[str, ...], count[int]] = defaultdict(count)
        return [
            OverdueCommand(
                execution_id=row["execution_id"],
                tenant_id=row["tenant_id"],
                organization_id=row["organization_id"],
                command_id=row["command_id"],
                attempt=row["attempts"],
                status=row["status"],
                pool=row["pool"],
                lane=row["lane"],
            )
            for row in overdue
            if next(counter_by_queue[_get_queue_key(row)]) < commands_max
        ]

    async def count_live_commands(self) -> list[LiveCommandCount]:
        """Count live executions' commands that wait or run, by tenant, organization and stage."""
        executions = self._get_surface("execution")
        kind_by_stage = {
            (row["execution_id"], row["stage_id"]): row["kind"]
            for row in self._get_surface("stage").values()
        }
        counts = Counter(
            (
                row["tenant_id"],
                row["organization_id"],
                kind_by_stage.get((row["execution_id"], row.get("stage_id")), STEP_KIND),
                row["status"],
            )
            for row in self._get_surface("command").values()
            if row["status"] in LIVE_COMMAND
            and _is_execution_live(executions.get((row["execution_id"], row["execution_id"])))
        )
        return [
            LiveCommandCount(
                tenant_id=tenant_id,
                organization_id=organization_id,
                stage_kind=stage_kind,
                status=status,
                commands=commands,
            )
            for (tenant_id, organization_id, stage_kind, status), commands in counts.items()
        ]

    async def list_commands(
        self, execution_id: ExecutionId, command_ids: Sequence[CommandId]
    ) -> list[dict[str, Any]]:
        """Return the rows of these commands of an execution that are there, in any order."""
        surface = self._get_surface("command")
        keys = [(execution_id, command_id) for command_id in command_ids]
        return [copy_row(surface[key]) for key in keys if key in surface]

    async def find_frame(self, execution_id: ExecutionId, frame_id: str) -> dict[str, Any] | None:
        """Return the row of one frame, or None: a late commit over HTTP says what ended it."""
        return copy_row(self._get_surface("frame").get((execution_id, frame_id)))

    async def list_issued(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        execution_id: ExecutionId | None = None,
        stage_id: str | None = None,
        commands_max: int,
    ) -> list[IssuedCommand]:
        """Return commands that nobody has begun, the longest waiting first."""
        rows = [
            row
            for row in self._list_issued_rows(tenant_id, organization_id)
            if execution_id in (None, row["execution_id"]) and stage_id in (None, row["stage_id"])
        ]
        rows.sort(key=lambda row: row["heard_at"])
        return [read_issued_command(row) for row in rows[:commands_max]]

    async def list_urgent(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        pools: Sequence[str],
        commands_max: int,
    ) -> list[IssuedCommand]:
        """Return commands of pools that nobody has begun, by lane and how long they wait."""
        rows = [
            row
            for row in self._list_issued_rows(tenant_id, organization_id)
            if row["pool"] in pools
        ]
        rows.sort(key=lambda row: (LANES.index(row["lane"]), row["heard_at"]))
        return [read_issued_command(row) for row in rows[:commands_max]]

    async def list_leased(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        worker_id: str | None = None,
        execution_id: ExecutionId | None = None,
        commands_max: int,
    ) -> list[LeasedCommand]:
        """Return commands that workers run, the longest running first."""
        executions = self._get_surface("execution")
        rows = [
            row
            for row in self._get_surface("command").values()
            if row["status"] == CommandStatus.RUNNING
            and (row["tenant_id"], row["organization_id"]) == (tenant_id, organization_id)
            and worker_id in (None, row["worker_id"])
            and execution_id in (None, row["execution_id"])
            and _is_execution_live(executions.get((row["execution_id"], row["execution_id"])))
        ]
        rows.sort(key=lambda row: (int(row["started_event_id"] or 2**63), int(row["command_id"])))
        return [self._read_leased_row(row) for row in rows[:commands_max]]

    def _read_leased_row(self, command: Row) -> LeasedCommand:
        execution_id = command["execution_id"]
        stage = self._get_surface("stage").get((execution_id, command["stage_id"]), {})
        frame_ids = [
            row["frame_id"]
            for row in self._get_surface("frame").values()
            if (row["execution_id"], row["command_id"]) == (execution_id, command["command_id"])
            and row["status"] in (FrameStatus.CLAIMED, FrameStatus.RUNNING)
        ]
        return read_leased_command(
            {
                **command,
                "path": self._get_surface("execution")[execution_id, execution_id]["path"],
                "frame_id": max(frame_ids, key=int, default=None),
                "frame_policy": stage.get("frame_policy"),
            }
        )

    def _list_issued_rows(self, tenant_id: TenantId, organization_id: OrganizationId) -> list[Row]:
        executions = self._get_surface("execution")
        return [
            row
            for row in self._get_surface("command").values()
            if row["status"] == CommandStatus.ISSUED
            and (row["tenant_id"], row["organization_id"]) == (tenant_id, organization_id)
            and _is_execution_unpaused(executions.get((row["execution_id"], row["execution_id"])))
        ]

    async def list_waits(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        address: str | None = None,
        mode: str | None = None,
        execution_id: ExecutionId | None = None,
        waits_max: int,
    ) -> list[OpenWait]:
        """Return commands that wait for a message, the longest waiting first."""
        open_waits = [
            wait
            for wait in read_open_waits(self._get_surface("command").values())
            if (wait.tenant_id, wait.organization_id) == (tenant_id, organization_id)
            and address in (None, wait.wait.address)
            and mode in (None, wait.wait.mode)
            and execution_id in (None, wait.execution_id)
        ]
        return open_waits[:waits_max]

    async def list_stalled(
        self, *, older_than_s: float, executions_max: int
    ) -> list[dict[str, Any]]:
        """Return running executions without any event for too long."""
        before = self._store.now() - timedelta(seconds=older_than_s)
        stalled = [
            row
            for row in self._get_surface("execution").values()
            if row["status"] in LIVE_EXECUTION
            and row["updated_at"] is not None
            and row["updated_at"] < before
        ]
        random.shuffle(stalled)
        return copy_row(stalled[:executions_max])

    async def list_overdue_waits(self, *, over_s: float, waits_max: int) -> list[dict[str, Any]]:
        """Return waits whose time has been over for so long, those that began first."""
        before = self._store.now() - timedelta(seconds=over_s)
        overdue = [
            row
            for row in self._get_surface("command").values()
            if row["status"] == CommandStatus.PARKED
            and row.get("wait") is not None
            and row["heard_at"] + timedelta(seconds=row["wait"]["timeout_s"]) < before
        ]
        overdue.sort(key=itemgetter("heard_at"))
        names = ("command_id", "execution_id", "tenant_id", "organization_id")
        return [{name: row[name] for name in names} for row in overdue[:waits_max]]

    def _get_surface(self, surface: str) -> dict[tuple[str, str], Row]:
        if surface not in KEY_BY_SURFACE:
            raise KeyError(f"no surface {surface!r}: there are {', '.join(KEY_BY_SURFACE)}")
        return self._store.row_by_key_by_surface.setdefault(surface, {})


def _build_sort_key(key: str) -> tuple[int, str]:
    """Order keys as the database does: numbers by their value."""
    return (len(key) if key.isdigit() else 0, key)


def _get_queue_key(command: Row) -> tuple[str, ...]:
    """Return the queue of which `list_overdue` lists at most so many commands."""
    return command["status"], command["pool"], command["lane"], command["tenant_id"]


def _is_execution_live(execution: Row | None) -> bool:
    return execution is not None and execution["ended_at"] is None


def _is_execution_unpaused(execution: Row | None) -> bool:
    return (
        _is_execution_live(execution) and execution is not None and execution["status"] != "PAUSED"
    )


def copy_row(value: V) -> V:
    """Copy a row, or a list of rows, however deep; as `copy.deepcopy`, in a fifth of its time."""
    return _copy_value(value)  # type: ignore[no-any-return]  # a copy is of the same type


def _copy_value(value: Any) -> Any:
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is dict:
        return {key: _copy_value(item) for key, item in value.items()}
    if kind is list:
        return [_copy_value(item) for item in value]
    return copy.deepcopy(value)


class MemoryCheckpoints:
    """Keeps the last few epochs of each shard."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def list_latest_epochs(
        self, shards: Sequence[int], *, shard_count: int
    ) -> list[CheckpointCommitted]:
        """Return the latest epoch of each shard that has one, by shard."""
        epochs = self._store.epochs_by_shard
        shard_epochs = [epochs.get((shard, shard_count), []) for shard in sorted(shards)]
        return [checkpoints[-1] for checkpoints in shard_epochs if checkpoints]

    async def commit_epochs(
        self,
        event_by_shard: Mapping[int, int],
        *,
        shard_count: int,
        set_aside: Sequence[ExecutionId],
        horizon_s: float,
        epochs_max: int,
    ) -> list[CheckpointCommitted]:
        """Commit the next epoch of each shard, projected up to an event at least; by shard."""
        now = self._store.now()
        committed = []
        for shard, event_id in sorted(event_by_shard.items()):
            checkpoints = self._store.epochs_by_shard.setdefault((shard, shard_count), [])
            before = checkpoints[-1].through_at if checkpoints else _EVER
            behind = self._list_behind_times(shard, shard_count, since=before, but=set_aside)
            through = min([now - timedelta(seconds=horizon_s), *behind])
            checkpoints.append(
                CheckpointCommitted(
                    shard=shard,
                    shard_count=shard_count,
                    epoch=checkpoints[-1].epoch + 1 if checkpoints else 1,
                    last_event_id=max(
                        event_id, checkpoints[-1].last_event_id if checkpoints else 0
                    ),
                    through_at=max(through, before),
                    committed_at=now,
                    set_aside=sorted(
                        (
                            execution_id
                            for execution_id in set_aside
                            if ids.find_shard(execution_id, shard_count) == shard
                        ),
                        key=int,
                    ),
                )
            )
            del checkpoints[:-epochs_max]
            committed.append(checkpoints[-1])
        return committed

    def _list_behind_times(
        self, shard: int, shard_count: int, *, since: datetime, but: Sequence[ExecutionId]
    ) -> list[datetime]:
        """List when histories of a shard changed that are ahead of the projection."""
        store = self._store
        return [
            moved_at
            for execution, moved_at in store.head_moved_at.items()
            if moved_at >= since
            and execution not in but
            and ids.find_shard(ExecutionId(execution), shard_count) == shard
            and store.head_by_execution[execution].version
            > store.position_by_execution.get(execution, 0)
        ]
