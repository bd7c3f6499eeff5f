"""`noetl approve`: decide what a playbook asks for."""

import getpass
from http import HTTPStatus
from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.errors import CliError
from noetl_cli.files import command_inputs
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient, PlannerRefusal

_APPROVALS_MAX = 1000


def approve(
    approval_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="See noetl approvals; or an execution that asks for one alone."
        ),
    ],
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
        try:
            answer = _send_decision(planner, approval_id, body)
        except PlannerRefusal as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise
            approval_id = _find_approval_of_execution(planner, approval_id, refused)
            answer = _send_decision(planner, approval_id, body)
    if as_json:
        terminal_output.print_json(answer)
    elif answer["repeated"]:
        terminal_output.print_line(f"{approval_id} was decided so before.")
    else:
        terminal_output.print_line(f"{approval_id} is decided: {decision}.")


def _send_decision(planner: PlannerClient, approval_id: str, body: dict[str, Any]) -> Any:
    return planner.post(f"/api/approvals/{client.escape_segment(approval_id)}", body)


def _find_approval_of_execution(
    planner: PlannerClient, execution_id: str, refused: PlannerRefusal
) -> str:
    """Find the only approval that an execution asks for; raises `CliError` otherwise."""
    approvals = planner.get("/api/approvals", limit=_APPROVALS_MAX)["approvals"]
    waiting = [approval for approval in approvals if approval["execution_id"] == execution_id]
    if len(approvals) == _APPROVALS_MAX:
        raise CliError(
            f"{_APPROVALS_MAX:,} approvals or more are asked for: which of them is meant cannot "
            "be told by an execution.",
            way_out=f"Name the approval: noetl approvals --limit {_APPROVALS_MAX}",
            exit_code=refused.exit_code,
        )
    if not waiting:
        raise CliError(
            refused.message,
            way_out="See which approvals are asked for: noetl approvals",
            exit_code=refused.exit_code,
        )
    if len(waiting) > 1:
        named = ", ".join(f"{item['approval_id']} ({item['step']})" for item in waiting)
        raise CliError(
            f"Execution {execution_id} asks for {len(waiting)} approvals: {named}.",
            way_out=f"Decide one of them: noetl approve {waiting[0]['approval_id']}",
            exit_code=refused.exit_code,
        )
    return str(waiting[0]["approval_id"])
