"""`noetl audit run`: every execution's chain, fold and read models, here or on Spark."""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from msgspec import structs

from noetl_cli import settings, terminal_output
from noetl_cli.audit import audit_sources, engines, report, shares
from noetl_cli.audit.engines import SparkTarget
from noetl_cli.audit.shares import AuditShare, ExecutionAudit
from noetl_cli.commands.history import audit_log
from noetl_cli.commands.options import AsJson, Directory, Organization, Server, Tenant
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.files import output_file
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_cli.settings import AuditAccess
from noetl_cli.stack.home_folder import stack_secrets, state
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.terminal_output import show_spinner
from noetl_contracts import codec
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger.archive_format import find_start_month
from noetl_contracts.ledger.records import HistoryHead
from noetl_replay.audit.history_audit import AuditResult

PAGE_HEADS = 1000

Month = Annotated[
    str | None,
    typer.Option(
        "--month", metavar="YYYY-MM", help="Only executions that began in this month (UTC)."
    ),
]


def run_audit(  # noqa: PLR0913 - one parameter for each option of the command line
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
    report.check_report_path(output)
    whole = _owner_share(tenant, organization, reads_live=live)
    access = _find_access(directory, dsn=postgres, url=payloads)
    began = time.perf_counter()
    try:
        with show_spinner("Auditing", is_quiet=as_json):
            choice = _ExecutionFilter(execution_ids, month)
            audit = asyncio.run(
                _audit_executions(whole, access, choice, engine, master=master, conf=conf)
            )
    except NoetlError as failure:
        raise StackError(
            f"The audit cannot be made: {failure}", way_out="Check the stack with: noetl doctor"
        ) from failure
    seconds = time.perf_counter() - began
    summary = report.summarize_audit(audit, engine=engine, seconds=seconds)
    if output is not None:
        report.write_report(output, summary, audit)
    if as_json:
        damaged = [item for item in audit if not item.is_ok]
        terminal_output.print_json({**structs.asdict(summary), "damage": damaged})
    else:
        for line in report.report_lines(summary, audit):
            terminal_output.print_line(line)
    if summary.damaged:
        raise typer.Exit(ExitCode.FAILED)


class _ExecutionFilter:
    """Which executions are meant."""

    def __init__(self, named: Sequence[str] | None, month: str | None) -> None:
        self.named = set(named or ())
        self.month = month

    def accepts_audit(self, audit: ExecutionAudit) -> bool:
        is_named = not self.named or audit.execution_id in self.named
        return is_named and self.month in (None, find_start_month(audit.execution_id))

    def check_names(self, audits: Sequence[ExecutionAudit]) -> None:
        """Refuse a name that nothing bears; raises a `CliError`."""
        missing = self.named - {audit.execution_id for audit in audits}
        if missing:
            raise CliError(
                f"Neither ledger nor archive has an execution {min(missing)[:80]}.",
                way_out="List them with: noetl audit heads",
                exit_code=ExitCode.USAGE,
            )


async def _audit_executions(
    whole: AuditShare,
    access: AuditAccess,
    choice: _ExecutionFilter,
    engine: str,
    *,
    master: str,
    conf: str,
) -> list[AuditResult]:
    audits = [audit for audit in await _plan_audits(whole, access) if choice.accepts_audit(audit)]
    choice.check_names(audits)
    events = sum(audit.event_count for audit in audits)
    owner = f"tenant {whole.tenant_id}, organization {whole.organization_id}"
    terminal_output.print_note(f"{len(audits)} executions of {owner}, about {events} events")
    if engine == engines.LOCAL:
        cut = shares.split_shares(audits, whole, processes=1)
        return await engines.audit_locally(access, cut, terminal_output.print_note)
    with tempfile.TemporaryDirectory(prefix="noetl-audit-") as folder:
        return await engines.audit_on_spark(
            SparkTarget(master=master, folder=Path(folder) / "spark", conf=conf),
            access,
            lambda processes: shares.split_shares(audits, whole, processes=processes),
            terminal_output.print_note,
        )


async def _plan_audits(whole: AuditShare, access: AuditAccess) -> list[ExecutionAudit]:
    async with audit_sources.open_sources(access) as sources:
        heads: list[HistoryHead] = []
        if sources.audit is not None:
            while page := await sources.audit.list_histories(
                tenant_id=whole.tenant_id,
                organization_id=whole.organization_id,
                after=heads[-1].execution_id if heads else None,
                heads_max=PAGE_HEADS,
            ):
                heads += page
        return shares.plan_audits(heads, await audit_sources.list_manifests(sources, whole))


def _owner_share(tenant: str | None, organization: str | None, *, reads_live: bool) -> AuditShare:
    place = settings.choose_owner(tenant, organization, environ=settings.copy_environment())
    return AuditShare(
        tenant_id=TenantId(place["tenant_id"]),
        organization_id=OrganizationId(place["organization_id"]),
        audits=[],
        reads_live=reads_live,
    )


def _find_access(directory: Any, *, dsn: str | None, url: str | None) -> AuditAccess:
    """Find ledger and archive: what was named, what the environment says, or the running stack."""
    audit_access = settings.read_audit_access()
    if dsn or url or audit_access.dsn or audit_access.payload_url:
        return structs.replace(
            audit_access, dsn=dsn or audit_access.dsn, payload_url=url or audit_access.payload_url
        )
    home = StackHome(root=settings.choose_home(directory, environ=settings.copy_environment()))
    current = state.find_state(home)
    if current is None or "postgres" not in current.urls:
        raise StackError(
            f"No stack runs in {home.root}.",
            way_out="Start it with `noetl up`, or name a ledger with --postgres, an archive with "
            "--payloads, or both. "
            f"{settings.OTHER_HOME_OR_DIR}.",
        )
    keyring = stack_secrets.load_or_make_keyring(home) if "s3" in current.urls else None
    return AuditAccess(
        dsn=current.urls["postgres"],
        payload_url=current.urls.get("payloads", ""),
        payload_access_key="" if keyring is None else keyring.s3_access_key,
        payload_secret_key="" if keyring is None else keyring.s3_secret_key,
        payload_seal_key=audit_access.payload_seal_key,
    )


app = typer.Typer(
    no_args_is_help=True,
    help="Show who administered what, and check that histories are as they were written.",
)

app.command("run")(run_audit)
app.command("log")(audit_log.show_log)

HEADS_BYTES_MAX = 1024 * 1024 * 1024


class HeadsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where every history of a tenant ended when the file was written."""

    tenant_id: str
    organization_id: str
    heads: list[HistoryHead]


@app.command("heads")
def export_heads(
    *,
    output: Annotated[Path, typer.Option("--output", help="The file to write.")],
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Write down where every history ends; keep the file where no ledger's owner can write."""
    with client.open_client(server, tenant=tenant, organization=organization) as planner:
        place = client.get_owner(planner)
        heads_file = HeadsFile(**place, heads=list(_list_heads(planner, place)))
    output_file.write_output_file(output, [codec.encode_json(heads_file)])
    if as_json:
        terminal_output.print_json({"output": str(output), "histories": len(heads_file.heads)})
    else:
        terminal_output.print_line(f"{output}: the ends of {len(heads_file.heads)} histories.")


@app.command("verify")
def verify_histories(
    execution_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Executions (default: all).")
    ] = None,
    *,
    exported: Annotated[
        Path | None, typer.Option("--heads", help="A file of `noetl audit heads`.")
    ] = None,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Follow the chain of checksums, and name every event that was changed, removed or moved."""
    with client.open_client(server, tenant=tenant, organization=organization) as planner:
        place = client.get_owner(planner)
        heads = {} if exported is None else _read_heads(exported, place)
        chosen = execution_ids or _list_execution_ids(planner, place, heads)
        total = bad = 0
        for execution_id in chosen:
            with show_spinner(f"Following the history of {execution_id}", is_quiet=as_json):
                verdict = _verify_history(planner, place, execution_id, heads.get(execution_id))
            total, bad = total + 1, bad + (not verdict["is_whole"])
            _show_verdict(verdict, as_json=as_json)
    if not as_json:
        histories = "1 history" if total == 1 else f"{total} histories"
        terminal_output.print_line(f"{histories} followed, {bad} not as written.")
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def _verify_history(
    planner: PlannerClient, place: dict[str, str], execution_id: str, head: HistoryHead | None
) -> Any:
    exported_head = {} if head is None else {"version": head.version, "checksum": head.checksum}
    return planner.get(
        f"/api/audit/executions/{client.escape_segment(execution_id)}", **place, **exported_head
    )


def _show_verdict(verdict: Any, *, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json(verdict)
        return
    if verdict.get("dropped"):
        terminal_output.print_note(verdict["dropped"])
    for finding in verdict["findings"]:
        terminal_output.print_line(
            f"{verdict['execution_id']}: {finding['damage']}: {finding['message']}"
        )


def _list_execution_ids(
    planner: PlannerClient, place: dict[str, str], history_heads: dict[str, HistoryHead]
) -> Iterator[str]:
    """Name every history that is there, then those of the exported heads that are not."""
    missing = dict(history_heads)
    for head in _list_heads(planner, place):
        missing.pop(head.execution_id, None)
        yield head.execution_id
    yield from missing


def _list_heads(planner: PlannerClient, place: dict[str, str]) -> Iterator[HistoryHead]:
    after: str | None = None
    while True:
        page = planner.get("/api/audit/heads", **place, after=after)
        try:
            heads = [codec.convert_value(head, HistoryHead) for head in page["heads"]]
        except msgspec.ValidationError as failure:
            raise client.build_not_a_planner_error(
                f"The answer has another shape ({failure})"
            ) from failure
        yield from heads
        after = page["next_after"]
        if after is None:
            return


def _read_heads(path: Path, place: dict[str, str]) -> dict[str, HistoryHead]:
    try:
        if path.stat().st_size > HEADS_BYTES_MAX:
            raise CliError(f"{path} is too large to be a file of heads.")
        heads = codec.decode_as(path.read_bytes(), HeadsFile)
    except OSError as failure:
        raise CliError(
            f"{path} cannot be read: {failure.strerror}.",
            way_out="Write it with: noetl audit heads --output FILE",
            exit_code=ExitCode.USAGE,
        ) from failure
    except (msgspec.DecodeError, RecursionError) as failure:
        raise CliError(
            f"{path} is no file of heads: {failure}",
            way_out="Write it with: noetl audit heads --output FILE",
            exit_code=ExitCode.USAGE,
        ) from failure
    if codec.to_builtins(heads) | place != codec.to_builtins(heads):
        raise CliError(
            f"{path} is about tenant {heads.tenant_id!r}, organization {heads.organization_id!r}.",
            way_out="Name them with --tenant and --organization.",
            exit_code=ExitCode.USAGE,
        )
    return {head.execution_id: head for head in heads.heads}
