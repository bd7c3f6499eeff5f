"""`noetl approve`: decide what a playbook asks for."""

import getpass
from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.files import command_inputs
from noetl_cli.planner import client


def approve(
    approval_id: Annotated[str, typer.Argument(metavar="ID", help="See noetl approvals.")],
    *,
    decision: Annotated[
        str, typer.Option("--decision", "-d", help="One of the options that are offered.")
    ] = "approve",
    comment: Annotated[str | None, typer.Option("--comment", help="Why; kept forever.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="JSON for the playbook to read.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Decide an approval; the first decision counts."""
    body = {"decision": decision, "comment": comment, "by": getpass.getuser()}
    if data is not None:
        body["data"] = command_inputs.read_json(data, option="--data")
    with client.open_client(server) as planner:
        answer = planner.post(f"/api/approvals/{client.escape_segment(approval_id)}", body)
    if as_json:
        terminal_output.print_json(answer)
    elif answer["repeated"]:
        terminal_output.print_line(f"{approval_id} was decided so before.")
    else:
        terminal_output.print_line(f"{approval_id} is decided: {decision}.")
