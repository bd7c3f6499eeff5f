"""`noetl payloads`: what lies in the payload store that nobody mentions, and keys that turn."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from msgspec import Struct

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals.credential_seal import KeyUnusable
from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Directory, parse_duration
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.files import output_file
from noetl_cli.stack import administered_work, erasure, stores
from noetl_cli.stack.administered_work import Work
from noetl_cli.stack.stores import Dsn, KeyFile, StoreAccess, Url
from noetl_cli.terminal_output import show_spinner
from noetl_contracts import codec
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.payloads import key_turns
from noetl_storage.payloads.garbage import TTL_MIN, GarbageAge, GarbageCollector, GarbageSweep
from noetl_storage.payloads.key_turns import KeyTurn
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger.payload_references import PostgresPayloadReferences

T = TypeVar("T")

STATEMENT_S = 600.0
SHOWN_MAX = 20

app = typer.Typer(no_args_is_help=True, help="Collect payloads, and seal them with another key.")


class OpenStores(Struct, frozen=True, kw_only=True):
    """Both stores, open."""

    database: Database
    payloads: PayloadStore
    references: PostgresPayloadReferences


@app.command("gc")
def collect_garbage(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    ttl: Annotated[
        str, typer.Option("--ttl", help="How long a payload stays that nothing mentions.")
    ] = "7d",
    shelf: Annotated[
        str, typer.Option("--shelf", help="How long it can then still be read and come back.")
    ] = "1d",
    postgres: Dsn = None,
    payloads: Url = None,
    keys: KeyFile = "",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Put payloads aside that nothing mentions, and remove those that nobody has missed."""
    patience = GarbageAge(ttl=parse_duration("--ttl", ttl), shelf=parse_duration("--shelf", shelf))
    if patience.ttl < TTL_MIN:
        raise CliError(
            "--ttl is at least one hour: what was just stored is mentioned a little later.",
            way_out="Give a longer time, as 7d.",
            exit_code=ExitCode.USAGE,
        )

    async def sweep_owners(opened: OpenStores) -> list[GarbageSweep]:
        collector = GarbageCollector(
            shelf=opened.payloads, references=opened.references, garbage_age=patience
        )
        now = SystemClock().now()
        sweeps = []
        for owner in await opened.references.list_owners():
            if dry_run:
                sweeps.append(await collector.sweep_owner(owner, now=now, is_dry_run=True))
                continue
            async with _record_work(opened, administered_work.COLLECTION, owner) as details:
                sweep = await collector.sweep_owner(owner, now=now, is_dry_run=False)
                details |= {"shelved": sweep.shelved, "purged": sweep.purged}
                details |= {"named_removed": sweep.removed, "restored": sweep.restored}
            sweeps.append(sweep)
        return sweeps

    place = stores.find_stores(directory, dsn=postgres, url=payloads, key_file=keys)
    with show_spinner("Looking for payloads that nothing mentions", is_quiet=as_json):
        garbage = _run_with_stores(sweep_owners, place)
    if as_json:
        terminal_output.print_json([_sweep_summary(item, is_dry_run=dry_run) for item in garbage])
        return
    for item in garbage:
        _print_sweep(item, is_dry_run=dry_run)
    if not garbage:
        terminal_output.print_line("There is no history, and so nothing to collect.")


@app.command("rotate")
def rotate_keys(
    *,
    postgres: Dsn = None,
    payloads: Url = None,
    keys: KeyFile = "",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Seal every payload with the newest key; what was never sealed is sealed as well.

    References keep their digests. Run it again after a failure: it goes on where it ended.
    """

    async def turn_keys(opened: OpenStores) -> list[KeyTurn]:
        now = SystemClock().now()
        turns = []
        for owner in await opened.references.list_owners():
            async with _record_work(opened, administered_work.ROTATION, owner) as details:
                turn = await key_turns.turn_owner_key(opened.payloads, owner, now=now)
                details |= {"sealed": turn.sealed, "unchanged": turn.unchanged}
                details |= {"destroyed": turn.destroyed}
            turns.append(turn)
        return turns

    place = stores.find_stores(directory, dsn=postgres, url=payloads, key_file=keys)
    with show_spinner("Sealing the payloads", is_quiet=as_json):
        turns = _run_with_stores(turn_keys, place)
    for turn in turns:
        _print_turn(turn, as_json=as_json)


def _print_turn(turn: KeyTurn, *, as_json: bool) -> None:
    owner = turn.owner
    if as_json:
        terminal_output.print_json(
            {
                "tenant_id": owner.tenant_id,
                "organization_id": owner.organization_id,
                "sealed": turn.sealed,
                "unchanged": turn.unchanged,
                "destroyed": turn.destroyed,
                "older_until": turn.older_until,
            }
        )
        return
    whom = f"{owner.tenant_id}/{owner.organization_id}"
    terminal_output.print_line(
        f"{whom}: {turn.sealed} sealed with the newest key, {turn.unchanged} were already."
    )
    if turn.destroyed:
        terminal_output.print_line(f"  {len(turn.destroyed)} older keys were destroyed.")
    if turn.older_until is not None:
        terminal_output.print_line(
            f"  Run this again after {turn.older_until:%F %R} UTC, which destroys the older key."
        )


@app.command("erase")
def erase_tenant(  # noqa: PLR0913 - one parameter for each option of the command line
    tenant: Annotated[str, typer.Option("--tenant", help="Whose payloads.")],
    organization: Annotated[str, typer.Option("--organization", help="Whose payloads.")],
    certificate: Annotated[
        Path, typer.Option("--certificate", help="The new file that says what was erased.")
    ],
    *,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do it: nobody can take it back.")] = False,
    keeps_histories: Annotated[
        bool,
        typer.Option("--keep-histories", help="Although the ledger still holds small results."),
    ] = False,
    postgres: Dsn = None,
    payloads: Url = None,
    keys: KeyFile = "",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Destroy a tenant's keys, so that its payloads can never be opened again."""
    owner = Owner(tenant_id=TenantId(tenant), organization_id=OrganizationId(organization))
    if not is_sure:
        raise CliError(
            f"This destroys what {tenant}/{organization} has stored, for good.",
            way_out="Say --yes if that is meant.",
            exit_code=ExitCode.USAGE,
        )
    if certificate.exists():
        raise CliError(
            f"{certificate} is there already.",
            way_out="Name a new file with --certificate.",
            exit_code=ExitCode.USAGE,
        )
    # What is destroyed cannot be certified again.
    output_file.check_output_file(certificate)
    place = stores.find_stores(directory, dsn=postgres, url=payloads, key_file=keys)
    with show_spinner("Destroying the keys", is_quiet=as_json):
        written = _run_with_stores(
            lambda opened: erasure.erase_tenant(
                opened.database, opened.payloads, owner=owner, keeps_histories=keeps_histories
            ),
            place,
        )
    output_file.write_output_file(certificate, [msgspec.json.format(codec.encode_json(written))])
    if as_json:
        terminal_output.print_json(written)
    else:
        terminal_output.print_line(
            f"{tenant}/{organization}: {written.objects} objects are erased, "
            f"{len(written.key_ids)} keys destroyed. The certificate is {certificate}."
        )


def _record_work(
    opened: OpenStores, work: Work, owner: Owner
) -> AbstractAsyncContextManager[dict[str, Any]]:
    target = f"{owner.tenant_id}/{owner.organization_id}"
    return administered_work.record_work(opened.database, work, target, owner=owner)


def _run_with_stores(question: Callable[[OpenStores], Awaitable[T]], place: StoreAccess) -> T:
    async def open_and_run() -> T:
        async with _open_stores(place) as opened:
            return await question(opened)

    try:
        return asyncio.run(open_and_run())
    except KeyUnusable as failure:
        raise stores.build_unusable_keys_error(failure) from failure
    except NoetlError as failure:
        raise StackError(
            f"The payloads cannot be looked after: {failure}",
            way_out="Nothing is lost. Check the stack with `noetl doctor` and run this again.",
        ) from failure


@asynccontextmanager
async def _open_stores(place: StoreAccess) -> AsyncIterator[OpenStores]:
    async with stores.open_stores(place, statement_s=STATEMENT_S) as (database, payloads):
        references = PostgresPayloadReferences(database)
        yield OpenStores(database=database, payloads=payloads, references=references)


def _sweep_summary(sweep: GarbageSweep, *, is_dry_run: bool) -> dict[str, Any]:
    return {
        "tenant_id": sweep.owner.tenant_id,
        "organization_id": sweep.owner.organization_id,
        "dry_run": is_dry_run,
        "held_since": sweep.held_since,
        "payloads": sweep.contents,
        "bytes": sweep.contents_bytes,
        "garbage": len(sweep.garbage),
        "garbage_bytes": sweep.count_garbage_bytes,
        "shelved": sweep.shelved,
        "restored": sweep.restored,
        "purged": sweep.purged,
        "purged_bytes": sweep.purged_bytes,
        "named_garbage": len(sweep.names),
        "named_removed": sweep.removed,
        "left_to_another": sweep.is_left_to_another,
    }


def _print_sweep(sweep: GarbageSweep, *, is_dry_run: bool) -> None:
    whom = f"{sweep.owner.tenant_id}/{sweep.owner.organization_id}"
    if sweep.is_left_to_another:
        terminal_output.print_line(
            f"{whom}: another process collects here right now. Run this again later."
        )
        return
    terminal_output.print_line(
        f"{whom}: {sweep.contents} payloads of {sweep.contents_bytes} bytes; nothing mentions "
        f"{len(sweep.garbage)} of {sweep.count_garbage_bytes} bytes."
    )
    if sweep.held_since is not None:
        terminal_output.print_line(
            f"  What was written since {sweep.held_since:%F %T} UTC waits: work goes on."
        )
    rows = [
        (content.sha256, str(content.stored_bytes), f"{content.modified_at:%F %T}")
        for content in sweep.garbage[:SHOWN_MAX]
    ]
    if is_dry_run and rows:
        terminal_output.print_rows(("SHA256", "BYTES", "WRITTEN"), rows, nothing="")
    if sweep.names:
        are = "would be" if is_dry_run else "were"
        terminal_output.print_line(
            f"  {len(sweep.names)} named objects that nothing needs {are} removed."
        )
    if not is_dry_run:
        terminal_output.print_line(
            f"  {sweep.shelved} put aside, {sweep.restored} brought back, {sweep.purged} removed "
            f"({sweep.purged_bytes} bytes)."
        )
