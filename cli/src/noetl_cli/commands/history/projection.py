"""Rebuild read models from the ledger while they are read and written.

An execution's rows are replaced in one transaction: a reader sees all of them or none. If a
projector has moved the position of the execution meanwhile, the rebuild continues from there.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer
from msgspec import Struct

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory, Organization, Tenant
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.stack import rebuild_records, stores
from noetl_cli.stack.rebuild_records import ReadModels, RebuildTarget
from noetl_cli.stack.stores import KeyFile, StoreAccess, Url
from noetl_cli.terminal_output import show_spinner
from noetl_contracts import codec, ids
from noetl_contracts.errors import NoetlError, Permanent
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ExecutionId
from noetl_replay import comparison, rows
from noetl_replay.comparison import index_live_surfaces
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state
from noetl_storage.archive.archive_reader import ArchivedReader, ArchiveReader
from noetl_storage.ports.history_ports import PastSnapshots
from noetl_storage.ports.ledger_ports import LedgerReader
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.lineage import PostgresLineage
from noetl_storage.postgres.ledger.retention import PostgresArchiveIndex
from noetl_storage.postgres.ledger.snapshots import PostgresPast
from noetl_storage.postgres.read_models.projections import PostgresProjections

PAGE_EVENTS = 1000
PAGE_EXECUTIONS = 1000
ROUNDS_MAX = 100
# Beside the surfaces: they are checked for parity, stored results only here.
_RESULTS = "result_ref"

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


class RebuildResult(Struct, frozen=True, kw_only=True):
    """What became of one execution's read models.

    `differences` is None where the rows stood at another version before.
    """

    execution_id: ExecutionId
    version: int
    rows: int
    differences: int | None


class ProjectionRebuild:
    """Folds whole histories and puts their rows in the place of those that are there."""

    def __init__(
        self, *, ledger: LedgerReader, models: ReadModels, past: PastSnapshots, shard_count: int
    ) -> None:
        self._ledger = ledger
        self._models = models
        self._past = past
        self._shard_count = shard_count

    async def rebuild_execution(self, execution_id: ExecutionId) -> RebuildResult:
        """Replace one execution's rows; raises a `CliError` when its history does not fold."""
        replay = await self._start_replay(execution_id)
        for _ in range(ROUNDS_MAX):
            await self._read_new_events(replay)
            before = await self._read_live_rows(execution_id)
            positions = await self._models.list_positions([execution_id])
            version = replay.state.version
            rows = await self._models.replace_rows(
                shard=ids.find_shard(execution_id, self._shard_count),
                execution_id=execution_id,
                rows={
                    surface: list(rebuilt_rows.values())
                    for surface, rebuilt_rows in replay.surfaces.items()
                },
                version=version,
                results=list(replay.results.values()),
            )
            if rows > version:
                await self._drop_future(execution_id, rows)
                continue
            await self._past.forget_snapshots(execution_id)
            return RebuildResult(
                execution_id=execution_id,
                version=version,
                rows=sum(map(len, replay.surfaces.values())) + len(replay.results),
                differences=self._count_differences(before, replay)
                if positions.get(execution_id) == version
                else None,
            )
        raise CliError(
            f"Execution {execution_id} moved on {ROUNDS_MAX} times while it was rebuilt.",
            way_out="Try again when it is quieter, or pause it: noetl pause",
        )

    async def drop_orphans(self) -> list[ExecutionId]:
        """Remove the rows of executions that the ledger does not have; return which they were."""
        execution_ids: list[ExecutionId] = []
        while ahead := await self._models.list_executions_ahead(executions_max=PAGE_EXECUTIONS):
            for execution_id in ahead:
                if await self._ledger.find_head(execution_id) is None:
                    await self._models.clear_execution(execution_id)
                    execution_ids.append(execution_id)
                else:
                    await self.rebuild_execution(execution_id)
        return execution_ids

    async def _drop_future(self, execution_id: ExecutionId, position: int) -> None:
        """Forget rows of versions that the ledger, perhaps restored, does not have."""
        head = await self._ledger.find_head(execution_id)
        if head is None or position > head.version:
            await self._models.clear_execution(execution_id)

    async def _start_replay(self, execution_id: ExecutionId) -> HistoryReplay:
        first = await self._ledger.read_events(execution_id, events_max=1)
        if not first:
            raise CliError(
                f"The ledger has no execution {execution_id}.",
                way_out="List them with: noetl ls. What was archived needs --payloads.",
            )
        return HistoryReplay(
            build_empty_state(execution_id, first[0].tenant_id, first[0].organization_id)
        )

    async def _read_new_events(self, replay: HistoryReplay) -> None:
        execution_id = replay.state.execution_id
        try:
            while page := await self._ledger.read_events(
                execution_id, after_version=replay.state.version, events_max=PAGE_EVENTS
            ):
                replay.feed_events(page)
        except _FOLD_FAILURES as failure:
            raise CliError(
                f"Execution {execution_id} does not fold behind version {replay.state.version}: "
                f"{failure}",
                way_out=f"See what was done to it: noetl audit verify {execution_id}",
            ) from failure

    async def _read_live_rows(self, execution_id: ExecutionId) -> object:
        live_surfaces = index_live_surfaces(
            {
                surface: await self._models.list_rows(surface, execution_id)
                for surface in rows.SURFACES
            }
        )
        results = {row["ref_id"]: row for row in await self._models.list_results(execution_id)}
        return codec.decode_json(codec.encode_json({**live_surfaces, _RESULTS: results}))

    def _count_differences(self, before: object, replay: HistoryReplay) -> int:
        after = {**replay.surfaces, _RESULTS: replay.results}
        return len(comparison.compare_values(before, codec.decode_json(codec.encode_json(after))))


CONNECT_S = 10.0
PAGE_HEADS = 1000
# Of a projector: who rebuilds writes what it writes, as it.
_OWN_DSN, _OWN_URL = "NOETL_PROJECTOR_POSTGRES_DSN", "NOETL_PROJECTOR_PAYLOAD_URL"
_OWN_ACCESS_KEY = "NOETL_PROJECTOR_PAYLOAD_ACCESS_KEY"
_OWN_SECRET_KEY = "NOETL_PROJECTOR_PAYLOAD_SECRET_KEY"  # noqa: S105 - the name of a variable
_OWN_SEAL_KEY = "NOETL_PROJECTOR_PAYLOAD_SEAL_KEY"

app = typer.Typer(no_args_is_help=True, help="Rebuild what projectors derive from the ledger.")


@app.callback()
def build_projection_group() -> None:
    """Rebuild what projectors derive from the ledger."""


@app.command("rebuild")
def rebuild_projections(  # noqa: PLR0913 - one parameter for each option of the command line
    execution_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Executions to rebuild.")
    ] = None,
    *,
    shard: Annotated[
        int | None, typer.Option("--shard", min=0, help="Those of this shard.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every execution of the tenant.")
    ] = False,
    shard_count: Annotated[
        int,
        typer.Option(
            "--shards", min=1, max=ids.SHARD_COUNT_MAX, help="How many shards executions have."
        ),
    ] = SHARD_COUNT_DEFAULT,
    postgres: Annotated[
        str | None,
        typer.Option(
            "--postgres", help=f"The database, as projector (default: ${_OWN_DSN}, `up`'s)."
        ),
    ] = None,
    payloads: Url = None,
    keys: KeyFile = "",
    tenant: Tenant = None,
    organization: Organization = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Replace rows by what the ledger folds to; nobody sees an execution half rebuilt."""
    named = [_parse_execution_id(execution_id) for execution_id in execution_ids or []]
    if [bool(named), shard is not None, everything].count(True) != 1:
        raise CliError(
            "Say which: executions by id, --shard, or --all.",
            way_out="List executions with: noetl ls",
            exit_code=ExitCode.USAGE,
        )
    if shard is not None and shard >= shard_count:
        raise CliError(
            f"There is no shard {shard}: shards are numbered from 0 to {shard_count - 1}.",
            way_out="Say how many there are with --shards.",
            exit_code=ExitCode.USAGE,
        )
    place = settings.choose_owner(tenant, organization, environ=settings.copy_environment())
    work = _rebuild_executions(
        _find_stores(directory, dsn=postgres, url=payloads, key_file=keys),
        named,
        shard=shard,
        shard_count=shard_count,
        place=place,
        as_json=as_json,
    )
    try:
        asyncio.run(work)
    except NoetlError as failure:
        raise StackError(
            f"The read models cannot be rebuilt: {failure}",
            way_out="Check the stack with: noetl doctor",
        ) from failure


async def _rebuild_executions(
    where: StoreAccess,
    named: list[ExecutionId],
    *,
    shard: int | None,
    shard_count: int,
    place: dict[str, str],
    as_json: bool,
) -> None:
    async with (
        open_database(
            where.dsn,
            application_name="noetl-cli",
            connections_max=2,
            connect_deadline_s=CONNECT_S,
            must_be_durable=False,  # what a projection loses is folded again
        ) as database,
        _open_ledger(where, database) as ledger,
    ):
        models = PostgresProjections(database)
        rebuilding = ProjectionRebuild(
            ledger=ledger,
            models=models,
            past=PostgresPast(database),
            shard_count=shard_count,
        )
        audit, lineage = PostgresLedgerAudit(database), PostgresLineage(database)
        total = different = 0
        rebuilt = RebuildTarget(named=named, shard=shard, place=place)
        owners = await rebuild_records.list_owners(rebuilt, ledger, models, audit)
        async with rebuild_records.record_rebuild(database, rebuilt, owners) as details:
            async for execution_id in _list_chosen_ids(audit, named, place):
                if shard is not None and ids.find_shard(execution_id, shard_count) != shard:
                    continue
                with show_spinner(f"Rebuilding execution {execution_id}", is_quiet=as_json):
                    result = await rebuilding.rebuild_execution(execution_id)
                # Projectors that keep lineage tell it again; what says the same is not sent again.
                await lineage.forget_lineage(execution_id)
                total, different = total + 1, different + bool(result.differences)
                _show_rebuilt(result, as_json=as_json)
            orphans = [] if named or shard is not None else await rebuilding.drop_orphans()
            details |= {"rebuilt": total, "differed": different, "orphans": len(orphans)}
    for execution_id in orphans:
        terminal_output.print_note(f"{execution_id}  is not in the ledger: its rows are removed")
    if not as_json:
        owner = f"tenant {place['tenant_id']}, organization {place['organization_id']}"
        terminal_output.print_line(
            f"{total} of {owner} rebuilt, {different} of them had other rows before."
        )


@asynccontextmanager
async def _open_ledger(where: StoreAccess, database: Database) -> AsyncIterator[LedgerReader]:
    """Open the ledger, and the archive behind it where the payload store is known."""
    ledger, index = PostgresLedger(database), PostgresArchiveIndex(database)
    if not where.url:
        yield ArchivedReader(ledger, ArchiveReader(index, None))
        return
    async with stores.open_payload_store(where) as payloads:
        yield ArchivedReader(ledger, ArchiveReader(index, payloads))


def _find_stores(directory: Any, *, dsn: str | None, url: str | None, key_file: str) -> StoreAccess:
    """Find the stores; a database that is named alone has its ledger, and no archive.

    Where the variables of a projector are set, as in the admin's container, they name both.
    """
    environ = settings.copy_environment()
    if dsn is None and url is None and directory is None and environ.get(_OWN_DSN):
        return StoreAccess(
            dsn=environ[_OWN_DSN],
            url=environ.get(_OWN_URL, ""),
            access_key=environ.get(_OWN_ACCESS_KEY) or None,
            secret_key=environ.get(_OWN_SECRET_KEY) or None,
            key_file=key_file,
            environ={**environ, stores.SEAL_KEY: environ.get(_OWN_SEAL_KEY, "")},
        )
    if dsn is None or url is not None:
        return stores.find_stores(directory, dsn=dsn, url=url, key_file=key_file)
    return StoreAccess(dsn=dsn, url="", access_key=None, secret_key=None, key_file="", environ={})


async def _list_chosen_ids(
    audit: PostgresLedgerAudit, named: list[ExecutionId], place: dict[str, Any]
) -> AsyncIterator[ExecutionId]:
    for execution_id in named:
        yield execution_id
    after: ExecutionId | None = None
    while not named:
        page = await audit.list_histories(**place, after=after, heads_max=PAGE_HEADS)
        for head in page:
            yield head.execution_id
        if len(page) < PAGE_HEADS:
            return
        after = page[-1].execution_id


def _show_rebuilt(result: RebuildResult, *, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json(result)
        return
    outcome = {None: "stood at another version before", 0: "as before"}.get(
        result.differences, f"{result.differences} values differed"
    )
    terminal_output.print_line(
        f"{result.execution_id}  version {result.version}, {result.rows} rows, {outcome}"
    )


def _parse_execution_id(text: str) -> ExecutionId:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**63):
        raise CliError(
            f"{text[:80]!r} is not an execution id.",
            way_out="List them with: noetl ls",
            exit_code=ExitCode.USAGE,
        )
    return ExecutionId(text)
