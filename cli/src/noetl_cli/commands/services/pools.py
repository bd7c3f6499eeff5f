"""`noetl pools`: lists the pools, with waiting and running commands."""

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client

_SERVED_TEXTS = {True: "yes", False: "no", None: "not known"}


def pools(*, server: Server = None, as_json: AsJson = False) -> None:
    """List the pools, how they are served, and what waits in their lanes."""
    with client.open_client(server) as planner:
        listed = planner.get("/api/pools")["pools"]
    if as_json:
        terminal_output.print_json(listed)
        return
    rows = [
        (
            item["name"],
            item["transport"],
            _SERVED_TEXTS[item["served"]],
            str(sum(lane["pending"] for lane in item["lanes"])),
            str(sum(lane["unsettled"] for lane in item["lanes"])),
        )
        for item in listed
    ]
    terminal_output.print_rows(
        ("POOL", "TRANSPORT", "SERVED", "WAITING", "RUNNING"), rows, nothing="No pools."
    )
