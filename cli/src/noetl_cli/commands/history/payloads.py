"""`noetl payloads`: what lies in the payload store that nobody mentions, and keys that turn."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import typer
from msgspec import Struct

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals.credential_seal import KeyUnusable
from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Directory, parse_duration
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.stack import stores
from noetl_cli.stack.stores import Dsn, KeyFile, StoreAccess, Url
from noetl_cli.terminal_output import show_spinner
from noetl_contracts.errors import NoetlError
from noetl_storage.payloads.garbage import TTL_MIN, GarbageAge, GarbageCollector, GarbageSweep
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres.ledger.payload_references import PostgresPayloadReferences

T = TypeVar("T")

STATEMENT_S = 600.0
SHOWN_MAX = 20

app = typer.Typer(no_args_is_help=True, help="Collect payloads, and seal them with another key.")


class OpenStores(Struct, frozen=True, kw_only=True):
    """Both stores, open."""

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
        return [
            await collector.sweep_owner(owner, now=now, is_dry_run=dry_run)
            for owner in await opened.references.list_owners()
        ]

    place = stores.find_stores(directory, dsn=postgres, url=payloads, key_file=keys)
    with show_spinner("Looking for payloads that nothing mentions", is_quiet=as_json):
        found = _run_with_stores(sweep_owners, place)
    if as_json:
        terminal_output.print_json([_sweep_summary(one, is_dry_run=dry_run) for one in found])
        return
    for one in found:
        _print_sweep(one, is_dry_run=dry_run)
    if not found:
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

    async def reseal_payloads(opened: OpenStores) -> list[tuple[Owner, int, int]]:
        return [
            (owner, *await opened.payloads.reseal_owner(owner))
            for owner in await opened.references.list_owners()
        ]

    place = stores.find_stores(directory, dsn=postgres, url=payloads, key_file=keys)
    with show_spinner("Sealing the payloads", is_quiet=as_json):
        done = _run_with_stores(reseal_payloads, place)
    for owner, changed, kept in done:
        if as_json:
            whose = {"tenant_id": owner.tenant_id, "organization_id": owner.organization_id}
            terminal_output.print_json({**whose, "sealed": changed, "unchanged": kept})
        else:
            whom = f"{owner.tenant_id}/{owner.organization_id}"
            terminal_output.print_line(
                f"{whom}: {changed} sealed with the newest key, {kept} were already."
            )


def _run_with_stores(question: Callable[[OpenStores], Awaitable[T]], place: StoreAccess) -> T:
    async def open_and_run() -> T:
        async with _open_stores(place) as opened:
            return await question(opened)

    try:
        return asyncio.run(open_and_run())
    except KeyUnusable as failure:
        raise CliError(
            f"The keys cannot be used: {failure}",
            way_out=f"Give a file with --keys, or set {stores.SEAL_KEY}.",
            exit_code=ExitCode.USAGE,
        ) from failure
    except NoetlError as failure:
        raise StackError(
            f"The payloads cannot be looked after: {failure}",
            way_out="Nothing is lost. Check the stack with `noetl doctor` and run this again.",
        ) from failure


@asynccontextmanager
async def _open_stores(place: StoreAccess) -> AsyncIterator[OpenStores]:
    async with stores.open_stores(place, statement_s=STATEMENT_S) as (database, payloads):
        yield OpenStores(payloads=payloads, references=PostgresPayloadReferences(database))


def _sweep_summary(found: GarbageSweep, *, is_dry_run: bool) -> dict[str, Any]:
    return {
        "tenant_id": found.owner.tenant_id,
        "organization_id": found.owner.organization_id,
        "dry_run": is_dry_run,
        "held_since": found.held_since,
        "payloads": found.contents,
        "bytes": found.contents_bytes,
        "garbage": len(found.garbage),
        "garbage_bytes": found.count_garbage_bytes,
        "shelved": found.shelved,
        "restored": found.restored,
        "purged": found.purged,
        "purged_bytes": found.purged_bytes,
        "named_garbage": len(found.names),
        "named_removed": found.removed,
        "left_to_another": found.is_left_to_another,
    }


def _print_sweep(found: GarbageSweep, *, is_dry_run: bool) -> None:
    whom = f"{found.owner.tenant_id}/{found.owner.organization_id}"
    if found.is_left_to_another:
        terminal_output.print_line(
            f"{whom}: another process collects here right now. Run this again later."
        )
        return
    terminal_output.print_line(
        f"{whom}: {found.contents} payloads of {found.contents_bytes} bytes; nothing mentions "
        f"{len(found.garbage)} of {found.count_garbage_bytes} bytes."
    )
    if found.held_since is not None:
        terminal_output.print_line(
            f"  What was written since {found.held_since:%F %T} UTC waits: work goes on."
        )
    rows = [
        (content.sha256, str(content.stored_bytes), f"{content.modified_at:%F %T}")
        for content in found.garbage[:SHOWN_MAX]
    ]
    if is_dry_run and rows:
        terminal_output.print_rows(("SHA256", "BYTES", "WRITTEN"), rows, nothing="")
    if found.names:
        are = "would be" if is_dry_run else "were"
        terminal_output.print_line(
            f"  {len(found.names)} named objects that nothing needs {are} removed."
        )
    if not is_dry_run:
        terminal_output.print_line(
            f"  {found.shelved} put aside, {found.restored} brought back, {found.purged} removed "
            f"({found.purged_bytes} bytes)."
        )
