"""`noetl audit log`: who administered what, and what was refused."""

from typing import Annotated, Literal

import typer

from noetl_chassis.clock import SystemClock
from noetl_cli import terminal_output
from noetl_cli.audit import administration_log
from noetl_cli.audit.administration_log import RecordQuery
from noetl_cli.commands.options import Server, parse_moment
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client

_HEAD = ("AT (UTC)", "WHO", "DID", "WITH", "ROLE", "FOLDER", "")


def show_log(  # noqa: PLR0913 - one parameter for each option of the command line
    *,
    who: Annotated[
        str | None, typer.Option("--who", help="An id, a name, or the beginning of an API key.")
    ] = None,
    what: Annotated[
        str | None, typer.Option("--what", help="As credential, or credential.written.")
    ] = None,
    outcome: Annotated[
        Literal["done", "refused"] | None, typer.Option("--outcome", help="How it ended.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="From then on: 1h, 7d, a day or a moment.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Up to then: 1h, 7d, a day or a moment.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes; Ctrl-C ends it.")
    ] = False,
    export: Annotated[
        Literal["json", "ocsf"] | None,
        typer.Option("--export", help="All of it, a line of JSON each: as it is, or as OCSF."),
    ] = None,
    server: Server = None,
) -> None:
    """Show who administered what: roles, keys, credentials, playbooks, holds, refusals."""
    if export is not None and follow:
        raise CliError(
            "--export ends with the last record, and --follow does not.",
            way_out="Leave one of them out.",
            exit_code=ExitCode.USAGE,
        )
    record_query = RecordQuery(
        who=who,
        what=what,
        outcome=outcome,
        since=_write_moment("--since", since),
        until=_write_moment("--until", until),
        limit=limit,
    )
    with client.open_client(server) as planner:
        if export is not None:
            for record in administration_log.list_whole_log(planner, record_query):
                terminal_output.print_json(administration_log.build_export(record, export))
            return
        records = administration_log.list_records(planner, record_query)
        rows = [administration_log.format_record(record) for record in records]
        nothing = "No records."
        if not rows and what is not None:
            nothing = f"No records: {administration_log.suggest_what(planner, what)}"
        terminal_output.print_rows(_HEAD, rows, nothing=nothing)
        if not follow:
            return
        last = records[-1]["version"] if records else 0
        try:
            for record in administration_log.follow_records(planner, record_query, last):
                line = "  ".join(administration_log.format_record(record))
                terminal_output.print_line(line.rstrip())
        except KeyboardInterrupt:
            return


def _write_moment(option: str, text: str | None) -> str | None:
    return None if text is None else parse_moment(option, text, SystemClock().now()).isoformat()
