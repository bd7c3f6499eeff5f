"""`noetl approve`: decide what a playbook asks for."""

import getpass
from typing import Annotated

import typer

from noetl_cli import client, inputs, render
from noetl_cli.commands.options import AsJson, Server


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
        body["data"] = inputs.read_json(data, option="--data")
    with client.open_client(server) as planner:
        answer = planner.post(f"/api/approvals/{client.escaped(approval_id)}", body)
    if as_json:
        render.json_line(answer)
    elif answer["repeated"]:
        render.line(f"{approval_id} was decided so before.")
    else:
        render.line(f"{approval_id} is decided: {decision}.")
