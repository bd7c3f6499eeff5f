"""`noetl payloads`: what lies in the payload store that nobody mentions, and keys that turn."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import typer
from msgspec import Struct

from noetl_chassis.clock import SystemClock
from noetl_chassis.sealing import KeyUnusable
from noetl_cli import render, stores, tables
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.failures import CliError, ExitCode, StackError
from noetl_cli.spinner import show_spinner
from noetl_cli.stores import Dsn, KeyFile, Place, Url
from noetl_contracts.errors import NoetlError
from noetl_playbook import coercion
from noetl_storage.payload_ports import Owner
from noetl_storage.payloads.collecting import TTL_MIN, Collector, Patience, Sweep
from noetl_storage.payloads.stored import StoredPayloads
from noetl_storage.postgres.payload_references import PostgresPayloadReferences

T = TypeVar("T")

STATEMENT_S = 600.0
SHOWN_MAX = 20

app = typer.Typer(no_args_is_help=True, help="Collect payloads, and seal them with another key.")


class Opened(Struct, frozen=True, kw_only=True):
    """Both stores, open."""

    payloads: StoredPayloads
    references: PostgresPayloadReferences


@app.command("gc")
def collect(
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
    patience = Patience(ttl=_duration("--ttl", ttl), shelf=_duration("--shelf", shelf))
    if patience.ttl < TTL_MIN:
        raise CliError(
            "--ttl is at least one hour: what was just stored is mentioned a little later.",
            way_out="Give a longer time, as 7d.",
            exit_code=ExitCode.USAGE,
        )

    async def sweep(opened: Opened) -> list[Sweep]:
        collector = Collector(
            shelf=opened.payloads, references=opened.references, patience=patience
        )
        now = SystemClock().now()
        return [
            await collector.sweep(owner, now=now, is_dry_run=dry_run)
            for owner in await opened.references.list_owners()
        ]

    place = stores.find(directory, dsn=postgres, url=payloads, key_file=keys)
    with show_spinner("Looking for payloads that nothing mentions", is_quiet=as_json):
        found = _ask(sweep, place)
    if as_json:
        render.json_line([_summary(one, is_dry_run=dry_run) for one in found])
        return
    for one in found:
        _print(one, is_dry_run=dry_run)
    if not found:
        render.line("There is no history, and so nothing to collect.")


@app.command("rotate")
def rotate(
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

    async def reseal(opened: Opened) -> list[tuple[Owner, int, int]]:
        return [
            (owner, *await opened.payloads.reseal(owner))
            for owner in await opened.references.list_owners()
        ]

    place = stores.find(directory, dsn=postgres, url=payloads, key_file=keys)
    with show_spinner("Sealing the payloads", is_quiet=as_json):
        done = _ask(reseal, place)
    for owner, changed, kept in done:
        if as_json:
            whose = {"tenant_id": owner.tenant_id, "organization_id": owner.organization_id}
            render.json_line({**whose, "sealed": changed, "unchanged": kept})
        else:
            whom = f"{owner.tenant_id}/{owner.organization_id}"
            render.line(f"{whom}: {changed} sealed with the newest key, {kept} were already.")


def _ask(question: Callable[[Opened], Awaitable[T]], place: Place) -> T:
    async def answer() -> T:
        async with _open(place) as opened:
            return await question(opened)

    try:
        return asyncio.run(answer())
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
async def _open(place: Place) -> AsyncIterator[Opened]:
    async with stores.open_both(place, statement_s=STATEMENT_S) as (database, payloads):
        yield Opened(payloads=payloads, references=PostgresPayloadReferences(database))


def _duration(option: str, text: str) -> timedelta:
    seconds = coercion.duration_s(text)
    if seconds is None or seconds <= 0:
        raise CliError(
            f"{option} {text!r:.40} is no length of time.",
            way_out="Write it as 12h, 7d, or a number of seconds.",
            exit_code=ExitCode.USAGE,
        )
    return timedelta(seconds=seconds)


def _summary(found: Sweep, *, is_dry_run: bool) -> dict[str, Any]:
    return {
        "tenant_id": found.owner.tenant_id,
        "organization_id": found.owner.organization_id,
        "dry_run": is_dry_run,
        "held_since": found.held_since,
        "payloads": found.contents,
        "bytes": found.contents_bytes,
        "garbage": len(found.garbage),
        "garbage_bytes": found.garbage_bytes,
        "shelved": found.shelved,
        "restored": found.restored,
        "purged": found.purged,
        "purged_bytes": found.purged_bytes,
        "named_garbage": len(found.names),
        "named_removed": found.removed,
        "left_to_another": found.is_left_to_another,
    }


def _print(found: Sweep, *, is_dry_run: bool) -> None:
    whom = f"{found.owner.tenant_id}/{found.owner.organization_id}"
    if found.is_left_to_another:
        render.line(f"{whom}: another process collects here right now. Run this again later.")
        return
    render.line(
        f"{whom}: {found.contents} payloads of {found.contents_bytes} bytes; nothing mentions "
        f"{len(found.garbage)} of {found.garbage_bytes} bytes."
    )
    if found.held_since is not None:
        render.line(f"  What was written since {found.held_since:%F %T} UTC waits: work goes on.")
    rows = [
        (content.sha256, str(content.stored_bytes), f"{content.modified_at:%F %T}")
        for content in found.garbage[:SHOWN_MAX]
    ]
    if is_dry_run and rows:
        tables.show(("SHA256", "BYTES", "WRITTEN"), rows, nothing="")
    if found.names:
        are = "would be" if is_dry_run else "were"
        render.line(f"  {len(found.names)} named objects that nothing needs {are} removed.")
    if not is_dry_run:
        render.line(
            f"  {found.shelved} put aside, {found.restored} brought back, {found.purged} removed "
            f"({found.purged_bytes} bytes)."
        )
