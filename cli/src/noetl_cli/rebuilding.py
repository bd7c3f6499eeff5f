"""Rebuild read models from the ledger while they are read and written.

An execution's rows are replaced in one transaction, so that nobody sees it half. Whoever moved its
position meanwhile is found by it, and the rebuild goes on from there.
"""

from typing import Protocol

from msgspec import Struct

from noetl_cli.failures import CliError
from noetl_contracts import codec, ids
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import ExecutionId
from noetl_replay import diffing, rows
from noetl_replay.checksum import live_surfaces
from noetl_replay.replaying import Replay
from noetl_replay.state import empty
from noetl_storage.audit_ports import Past, Rebuilds
from noetl_storage.ports import LedgerReader, Projections

PAGE_EVENTS = 1000
PAGE_EXECUTIONS = 1000
ROUNDS_MAX = 100
# Beside the surfaces: they are checked for parity, stored results only here.
_RESULTS = "result_ref"

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


class ReadModels(Projections, Rebuilds, Protocol):
    """Read models that can be replaced as well."""


class Rebuilt(Struct, frozen=True, kw_only=True):
    """What became of one execution's read models.

    `differences` is None where the rows stood at another version before.
    """

    execution_id: ExecutionId
    version: int
    rows: int
    differences: int | None


class Rebuilding:
    """Folds whole histories and puts their rows in the place of those that are there."""

    def __init__(
        self, *, ledger: LedgerReader, models: ReadModels, past: Past, shard_count: int
    ) -> None:
        self._ledger = ledger
        self._models = models
        self._past = past
        self._shard_count = shard_count

    async def rebuild(self, execution_id: ExecutionId) -> Rebuilt:
        """Replace one execution's rows; raises a `CliError` when its history does not fold."""
        replay = await self._begin(execution_id)
        for _ in range(ROUNDS_MAX):
            await self._read_on(replay)
            before = await self._rows(execution_id)
            positions = await self._models.list_positions([execution_id])
            version = replay.state.version
            found = await self._models.replace(
                shard=ids.shard_of(execution_id, self._shard_count),
                execution_id=execution_id,
                rows={surface: list(kept.values()) for surface, kept in replay.surfaces.items()},
                version=version,
                results=list(replay.results.values()),
            )
            if found > version:
                await self._drop_future(execution_id, found)
                continue
            await self._past.forget(execution_id)
            return Rebuilt(
                execution_id=execution_id,
                version=version,
                rows=sum(map(len, replay.surfaces.values())) + len(replay.results),
                differences=self._count(before, replay)
                if positions.get(execution_id) == version
                else None,
            )
        raise CliError(
            f"Execution {execution_id} moved on {ROUNDS_MAX} times while it was rebuilt.",
            way_out="Try again when it is quieter, or pause it: noetl pause",
        )

    async def drop_orphans(self) -> list[ExecutionId]:
        """Remove the rows of executions that the ledger does not have; return which they were."""
        gone: list[ExecutionId] = []
        while ahead := await self._models.list_ahead(executions_max=PAGE_EXECUTIONS):
            for execution_id in ahead:
                if await self._ledger.find_head(execution_id) is None:
                    await self._models.clear(execution_id)
                    gone.append(execution_id)
                else:
                    await self.rebuild(execution_id)
        return gone

    async def _drop_future(self, execution_id: ExecutionId, position: int) -> None:
        """Forget rows of versions that the ledger, perhaps restored, does not have."""
        head = await self._ledger.find_head(execution_id)
        if head is None or position > head.version:
            await self._models.clear(execution_id)

    async def _begin(self, execution_id: ExecutionId) -> Replay:
        first = await self._ledger.read(execution_id, events_max=1)
        if not first:
            raise CliError(
                f"The ledger has no execution {execution_id}.",
                way_out="List them with: noetl ls. What was archived needs --payloads.",
            )
        return Replay(empty(execution_id, first[0].tenant_id, first[0].organization_id))

    async def _read_on(self, replay: Replay) -> None:
        execution_id = replay.state.execution_id
        try:
            while page := await self._ledger.read(
                execution_id, after_version=replay.state.version, events_max=PAGE_EVENTS
            ):
                replay.feed(page)
        except _FOLD_FAILURES as failure:
            raise CliError(
                f"Execution {execution_id} does not fold behind version {replay.state.version}: "
                f"{failure}",
                way_out=f"See what was done to it: noetl audit verify {execution_id}",
            ) from failure

    async def _rows(self, execution_id: ExecutionId) -> object:
        live = live_surfaces(
            {
                surface: await self._models.list_rows(surface, execution_id)
                for surface in rows.SURFACES
            }
        )
        results = {row["ref_id"]: row for row in await self._models.list_results(execution_id)}
        return codec.decode(codec.encode({**live, _RESULTS: results}))

    def _count(self, before: object, replay: Replay) -> int:
        after = {**replay.surfaces, _RESULTS: replay.results}
        return len(diffing.compare(before, codec.decode(codec.encode(after))))
