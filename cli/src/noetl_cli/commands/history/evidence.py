"""`noetl evidence`: what proves a run where no server is."""

from pathlib import Path
from typing import Annotated

import typer

from noetl_chassis.clock import SystemClock
from noetl_cli import terminal_output
from noetl_cli.audit import dossier, dossier_check, dossier_page
from noetl_cli.audit.dossier import DossierSeal
from noetl_cli.audit.dossier_check import DossierCheck
from noetl_cli.audit.dossier_collector import PAYLOAD_BYTES, DossierCollector
from noetl_cli.commands.history import replay
from noetl_cli.commands.options import AsJson, ExecutionArgument, Organization, Server, Tenant
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.local import history
from noetl_cli.planner import client
from noetl_cli.terminal_output import show_spinner
from noetl_contracts import codec
from noetl_replay.audit.chain import ChainFinding

app = typer.Typer(no_args_is_help=True, help="Take a run's evidence to where no server is.")


@app.command("export")
def export_evidence(
    execution_id: ExecutionArgument,
    *,
    html: Annotated[
        bool, typer.Option("--html", help="One page that shows the run and checks itself.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="The new folder; with --html, or file.")
    ] = None,
    payload_bytes: Annotated[
        int | None,
        typer.Option(
            "--payload-bytes",
            min=0,
            help=f"With --html: payloads of so many bytes in all (default: {PAYLOAD_BYTES}).",
        ),
    ] = None,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's evidence into a folder, or into one page that opens without a server.

    noetl evidence export ID --html, noetl evidence export ID --output evidence/
    """
    if not html:
        if payload_bytes is not None:
            raise CliError(
                "--payload-bytes bounds a page: a folder has no payloads.",
                way_out="Add --html.",
                exit_code=ExitCode.USAGE,
            )
        replay.verify_execution(
            execution_id,
            output=output,
            tenant=tenant,
            organization=organization,
            server=server,
            as_json=as_json,
        )
        return
    if history.find_history(execution_id, server=server) is not None:
        raise replay.build_no_payloads_error(execution_id)
    file = dossier.choose_file(output, execution_id)
    with (
        client.open_client(server, tenant=tenant, organization=organization) as planner,
        show_spinner("Gathering the dossier", is_quiet=as_json),
    ):
        collector = DossierCollector(
            planner,
            execution_id,
            payload_bytes=PAYLOAD_BYTES if payload_bytes is None else payload_bytes,
            clock=SystemClock(),
        )
        page = dossier.get_page(planner)
        seal, blocks = collector.collect_blocks()
    sealed = dossier.encode_block(seal)
    dossier.write_page(file, dossier.fill_page(page, sealed, blocks))
    _print_dossier(file, seal, sealed, collector.findings, as_json=as_json)
    if collector.findings:
        raise typer.Exit(ExitCode.FAILED)


@app.command("check")
def check_evidence(
    place: Annotated[
        Path, typer.Argument(metavar="FILE", help="A page of evidence, or a folder of it.")
    ],
    *,
    seal: Annotated[
        str, typer.Option("--seal", metavar="DIGEST", help="The seal that export has printed.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check evidence without a server or a browser: exit code 0 as sealed, 1 changed, 2 none.

    noetl evidence check dossier-ID.html, noetl evidence check FILE --seal DIGEST
    """
    if place.is_dir():
        if seal:
            raise CliError(
                "--seal is of a page: a folder has none.",
                way_out=f"noetl evidence check {place}",
                exit_code=ExitCode.USAGE,
            )
        replay.check_evidence(place, as_json=as_json)
        return
    with show_spinner(f"Checking {place}", is_quiet=as_json):
        check = dossier_check.check_dossier(dossier_page.read_blocks(place), wanted_seal=seal)
    if as_json:
        terminal_output.print_json({"file": str(place), **codec.to_builtins(check)})
    else:
        _print_check(place, check)
    if check.findings:
        raise typer.Exit(ExitCode.FAILED)


def _print_check(file: Path, check: DossierCheck) -> None:
    if check.seal is not None:
        terminal_output.print_line(
            f"{file}: execution {check.seal.execution_id} of {check.seal.path}, exported by "
            f"{check.seal.exported_by} at {check.seal.created_at:%Y-%m-%d %H:%M:%SZ}"
        )
        terminal_output.print_line(f"  seal  {check.seal_digest}")
    terminal_output.print_line(
        f"  checked  {check.events:,} events, {check.payloads:,} payloads, {check.chunks:,} chunks "
        "of logs"
    )
    if check.concealed:
        terminal_output.print_line(
            f"  {check.concealed:,} events hold masked values: of these only the place is proven"
        )
    for finding in check.findings:
        terminal_output.print_line(f"  {finding.name}: {finding.message}")
    if not check.findings:
        terminal_output.print_line("  all is as it was sealed")


def _print_dossier(
    file: Path, seal: DossierSeal, sealed: str, findings: list[ChainFinding], *, as_json: bool
) -> None:
    summary = {
        "file": str(file),
        "head": seal.head,
        "seal": codec.digest_hex(sealed.encode()),
        "left_out": seal.left_out,
        "findings": findings,
    }
    if as_json:
        terminal_output.print_json(summary)
        return
    terminal_output.print_line(f"{file}: open it in a browser.")
    terminal_output.print_line(f"  head  version {seal.head.version}, {seal.head.checksum}")
    terminal_output.print_line(f"  seal  {summary['seal']}")
    for text in seal.left_out:
        terminal_output.print_line(f"  not in it: {text}")
    for finding in findings:
        terminal_output.print_line(f"  {finding.damage}: {finding.message}")
    terminal_output.print_line(f"  check it: noetl evidence check {file} --seal {summary['seal']}")
