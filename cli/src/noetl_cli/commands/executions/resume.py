"""`noetl resume`: let a held execution go on."""

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.planner import client


def resume(
    execution_id: ExecutionArgument, *, server: Server = None, as_json: AsJson = False
) -> None:
    """Let a held execution go on exactly where it was."""
    address = f"/api/executions/{client.escape_segment(execution_id)}/resume"
    with client.open_client(server) as planner:
        answer = planner.post(address, {})
    if as_json:
        terminal_output.print_json(answer)
    elif answer["accepted"]:
        terminal_output.print_line(f"{answer['execution_id']} goes on.")
    else:
        terminal_output.print_line(
            f"{answer['execution_id']} has already ended: {answer['status']}."
        )
