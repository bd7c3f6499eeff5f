"""`noetl projection`: rebuild read models from the ledger while everything runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from noetl_cli import render, settings, stores
from noetl_cli.commands.options import AsJson, Directory, Organization, Tenant
from noetl_cli.failures import CliError, ExitCode, StackError
from noetl_cli.rebuilding import Rebuilding, Rebuilt
from noetl_cli.spinner import show_spinner
from noetl_cli.stores import KeyFile, Place, Url
from noetl_contracts import ids
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ExecutionId
from noetl_storage.archive.reading import Archive, ArchivedReader
from noetl_storage.ports import LedgerReader
from noetl_storage.postgres.audit import PostgresLedgerAudit
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.ledger import PostgresLedger
from noetl_storage.postgres.lineage import PostgresLineage
from noetl_storage.postgres.projections import PostgresProjections
from noetl_storage.postgres.retention import PostgresArchiveIndex
from noetl_storage.postgres.snapshots import PostgresPast

CONNECT_S = 10.0
PAGE_HEADS = 1000

app = typer.Typer(no_args_is_help=True, help="Rebuild what projectors derive from the ledger.")


@app.callback()
def group() -> None:
    """Rebuild what projectors derive from the ledger."""


@app.command("rebuild")
def rebuild(  # noqa: PLR0913 - one parameter for each option of the command line
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
        typer.Option("--postgres", help="The database, as projector (default: `up`'s)."),
    ] = None,
    payloads: Url = None,
    keys: KeyFile = "",
    tenant: Tenant = None,
    organization: Organization = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Replace rows by what the ledger folds to; nobody sees an execution half rebuilt."""
    named = [_checked(one) for one in execution_ids or []]
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
    place = settings.place(tenant, organization, environ=settings.environment())
    work = _rebuild(
        _stores(directory, dsn=postgres, url=payloads, key_file=keys),
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


async def _rebuild(
    where: Place,
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
        rebuilding = Rebuilding(
            ledger=ledger,
            models=PostgresProjections(database),
            past=PostgresPast(database),
            shard_count=shard_count,
        )
        audit, lineage = PostgresLedgerAudit(database), PostgresLineage(database)
        total = different = 0
        async for execution_id in _chosen(audit, named, place):
            if shard is not None and ids.shard_of(execution_id, shard_count) != shard:
                continue
            with show_spinner(f"Rebuilding execution {execution_id}", is_quiet=as_json):
                done = await rebuilding.rebuild(execution_id)
            # Projectors that keep lineage tell it again; what says the same is not sent again.
            await lineage.forget(execution_id)
            total, different = total + 1, different + bool(done.differences)
            _show(done, as_json=as_json)
        gone = [] if named or shard is not None else await rebuilding.drop_orphans()
    for execution_id in gone:
        render.note(f"{execution_id}  is not in the ledger: its rows are removed")
    if not as_json:
        owner = f"tenant {place['tenant_id']}, organization {place['organization_id']}"
        render.line(f"{total} of {owner} rebuilt, {different} of them had other rows before.")


@asynccontextmanager
async def _open_ledger(where: Place, database: Database) -> AsyncIterator[LedgerReader]:
    """Open the ledger, and the archive behind it where the payload store is known."""
    ledger, index = PostgresLedger(database), PostgresArchiveIndex(database)
    if not where.url:
        yield ArchivedReader(ledger, Archive(index, None))
        return
    async with stores.open_store(where) as payloads:
        yield ArchivedReader(ledger, Archive(index, payloads))


def _stores(directory: Any, *, dsn: str | None, url: str | None, key_file: str) -> Place:
    """Find the stores; a database that is named alone has its ledger, and no archive."""
    if dsn is None or url is not None:
        return stores.find(directory, dsn=dsn, url=url, key_file=key_file)
    return Place(dsn=dsn, url="", access_key=None, secret_key=None, key_file="", environ={})


async def _chosen(
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


def _show(done: Rebuilt, *, as_json: bool) -> None:
    if as_json:
        render.json_line(done)
        return
    told = {None: "stood at another version before", 0: "as before"}.get(
        done.differences, f"{done.differences} values differed"
    )
    render.line(f"{done.execution_id}  version {done.version}, {done.rows} rows, {told}")


def _checked(text: str) -> ExecutionId:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**63):
        raise CliError(
            f"{text[:80]!r} is not an execution id.",
            way_out="List them with: noetl ls",
            exit_code=ExitCode.USAGE,
        )
    return ExecutionId(text)
