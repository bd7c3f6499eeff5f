"""`noetl resume`: let a held execution go on."""

from noetl_cli import client, render
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server


def resume(
    execution_id: ExecutionArgument, *, server: Server = None, as_json: AsJson = False
) -> None:
    """Let a held execution go on exactly where it was."""
    address = f"/api/executions/{client.escaped(execution_id)}/resume"
    with client.open_client(server) as planner:
        answer = planner.post(address, {})
    if as_json:
        render.json_line(answer)
    elif answer["accepted"]:
        render.line(f"{answer['execution_id']} goes on.")
    else:
        render.line(f"{answer['execution_id']} has already ended: {answer['status']}.")
