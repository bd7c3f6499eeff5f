"""`noetl open`: open the console in a browser, signed in with what this command line shows."""

import webbrowser
from typing import Annotated
from urllib.parse import urlencode

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient, PlannerRefusal

CODES_PATH = "/auth/codes"
# People of an identity provider sign in on the page; without authentication nobody has to.
_NO_TOKEN = "token_refused"  # noqa: S105 - a code of errors


def open(  # noqa: A001 - the verb's own name
    execution_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The run to see; else all of them.")
    ] = None,
    *,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the address, and open nothing.")
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Open the console in a browser, signed in.

    The address holds a code that works once, within a minute. The token does not leave this
    command.
    """
    with client.open_client(server) as planner:
        page = _name_page(execution_id)
        address = f"{planner.url.rstrip('/')}/console{page}"
        code = _find_code(planner)
        if code is not None:
            words = urlencode({"code": code, "next": page})
            # Behind the #: browsers send that to no server, and the page takes it away at once.
            address = f"{planner.url.rstrip('/')}/console/open#{words}"
    if as_json:
        terminal_output.print_json({"url": address, "signed_in": code is not None})
        return
    is_open = not print_only and webbrowser.open(address)
    if is_open:
        terminal_output.print_line(f"Opened {planner.url.rstrip('/')}/console{page}")
        return
    if not print_only:
        terminal_output.print_note("No browser opens here. Within a minute, open:")
    terminal_output.print_line(address)


def _name_page(execution_id: str | None) -> str:
    if execution_id is None:
        return "/runs"
    if not (execution_id.isascii() and execution_id.isdigit()):
        raise CliError(
            f"{execution_id[:80]!r} is not an execution id: it is a number.",
            way_out="noetl ls lists them",
            exit_code=ExitCode.USAGE,
        )
    return f"/runs/{execution_id}"


def _find_code(planner: PlannerClient) -> str | None:
    """Ask for a code; None where nothing here is a token that a session could begin with."""
    try:
        return str(planner.post(CODES_PATH, {})["code"])
    except PlannerRefusal as refusal:
        if refusal.code == _NO_TOKEN:
            return None
        raise
