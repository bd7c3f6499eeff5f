"""`noetl audit run`: every execution's chain, fold and read models, here or on Spark."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec import structs

from noetl_cli import render, settings
from noetl_cli.auditing import engines, reading, reporting, shares
from noetl_cli.auditing.engines import SparkPlace
from noetl_cli.auditing.shares import Audit, Share
from noetl_cli.commands.options import AsJson, Directory, Organization, Tenant
from noetl_cli.failures import CliError, ExitCode, StackError
from noetl_cli.settings import AuditAccess
from noetl_cli.spinner import show_spinner
from noetl_cli.stack import keyring, state
from noetl_cli.stack.home import Home
from noetl_contracts.archives import month_of
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger import Head
from noetl_replay.auditing import Audited

PAGE_HEADS = 1000

Month = Annotated[
    str | None,
    typer.Option(
        "--month", metavar="YYYY-MM", help="Only executions that began in this month (UTC)."
    ),
]


def run(  # noqa: PLR0913 - one parameter for each option of the command line
    execution_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="Executions (default: all of the tenant and organization)."
        ),
    ] = None,
    *,
    engine: Annotated[
        Literal["local", "spark"], typer.Option("--engine", help="This process, or Spark.")
    ] = "local",
    master: Annotated[
        str, typer.Option("--master", help="Spark's master, as local[4] or spark://host:7077.")
    ] = "local[*]",
    conf: Annotated[
        str, typer.Option("--conf", help="Spark settings, as key=value;key=value.")
    ] = "",
    month: Month = None,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Compare with the read models.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write a row an execution: .parquet or .json.")
    ] = None,
    postgres: Annotated[
        str | None, typer.Option("--postgres", help="The ledger's address (default: `up`'s).")
    ] = None,
    payloads: Annotated[
        str | None,
        typer.Option("--payloads", help="Where the archive is (default: `up`'s payload store)."),
    ] = None,
    tenant: Tenant = None,
    organization: Organization = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Audit executions from the ledger and its archive; exit code 1 if one is damaged."""
    reporting.check_output(output)
    whole = _whole(tenant, organization, reads_live=live)
    access = _access(directory, dsn=postgres, url=payloads)
    began = time.perf_counter()
    try:
        with show_spinner("Auditing", is_quiet=as_json):
            choice = _Choice(execution_ids, month)
            found = asyncio.run(_audit(whole, access, choice, engine, master=master, conf=conf))
    except NoetlError as failure:
        raise StackError(
            f"The audit cannot be made: {failure}", way_out="Check the stack with: noetl doctor"
        ) from failure
    seconds = time.perf_counter() - began
    summary = reporting.summarize(found, engine=engine, seconds=seconds)
    if output is not None:
        reporting.write(output, summary, found)
    if as_json:
        damaged = [one for one in found if not one.is_ok]
        render.json_line({**structs.asdict(summary), "damage": damaged})
    else:
        for line in reporting.lines(summary, found):
            render.line(line)
    if summary.damaged:
        raise typer.Exit(ExitCode.FAILED)


class _Choice:
    """Which executions are meant."""

    def __init__(self, named: Sequence[str] | None, month: str | None) -> None:
        self.named = set(named or ())
        self.month = month

    def takes(self, audit: Audit) -> bool:
        is_named = not self.named or audit.execution_id in self.named
        return is_named and self.month in (None, month_of(audit.execution_id))

    def check(self, audits: Sequence[Audit]) -> None:
        """Refuse a name that nothing bears; raises a `CliError`."""
        missing = self.named - {one.execution_id for one in audits}
        if missing:
            raise CliError(
                f"Neither ledger nor archive has an execution {min(missing)[:80]}.",
                way_out="List them with: noetl audit heads",
                exit_code=ExitCode.USAGE,
            )


async def _audit(
    whole: Share, access: AuditAccess, choice: _Choice, engine: str, *, master: str, conf: str
) -> list[Audited]:
    audits = [one for one in await _plan(whole, access) if choice.takes(one)]
    choice.check(audits)
    events = sum(one.events for one in audits)
    owner = f"tenant {whole.tenant_id}, organization {whole.organization_id}"
    render.note(f"{len(audits)} executions of {owner}, about {events} events")
    if engine == engines.LOCAL:
        cut = shares.cut(audits, whole, processes=1)
        return await engines.audit_here(access, cut, render.note)
    with tempfile.TemporaryDirectory(prefix="noetl-audit-") as folder:
        return await engines.audit_on_spark(
            SparkPlace(master=master, folder=Path(folder) / "spark", conf=conf),
            access,
            lambda processes: shares.cut(audits, whole, processes=processes),
            render.note,
        )


async def _plan(whole: Share, access: AuditAccess) -> list[Audit]:
    async with reading.open_sources(access) as sources:
        heads: list[Head] = []
        if sources.audit is not None:
            while page := await sources.audit.list_histories(
                tenant_id=whole.tenant_id,
                organization_id=whole.organization_id,
                after=heads[-1].execution_id if heads else None,
                heads_max=PAGE_HEADS,
            ):
                heads += page
        return shares.plan(heads, await reading.list_manifests(sources, whole))


def _whole(tenant: str | None, organization: str | None, *, reads_live: bool) -> Share:
    place = settings.place(tenant, organization, environ=settings.environment())
    return Share(
        tenant_id=TenantId(place["tenant_id"]),
        organization_id=OrganizationId(place["organization_id"]),
        audits=[],
        reads_live=reads_live,
    )


def _access(directory: Any, *, dsn: str | None, url: str | None) -> AuditAccess:
    """Find ledger and archive: what was named, what the environment says, or the running stack."""
    told = settings.audit_access()
    if dsn or url or told.dsn or told.payload_url:
        return structs.replace(told, dsn=dsn or told.dsn, payload_url=url or told.payload_url)
    home = Home(root=settings.home(directory, environ=settings.environment()))
    current = state.find(home)
    if current is None or "postgres" not in current.urls:
        raise StackError(
            f"No stack runs in {home.root}.",
            way_out="Start it with `noetl up`, or name a ledger with --postgres, an archive with "
            "--payloads, or both.",
        )
    own = keyring.load_or_make(home) if "s3" in current.urls else None
    return AuditAccess(
        dsn=current.urls["postgres"],
        payload_url=current.urls.get("payloads", ""),
        payload_access_key="" if own is None else own.s3_access_key,
        payload_secret_key="" if own is None else own.s3_secret_key,
        payload_seal_key=told.payload_seal_key,
    )
