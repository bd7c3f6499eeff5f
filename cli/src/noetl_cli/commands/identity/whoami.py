"""`noetl whoami`: shows who a server takes the caller for."""

from http import HTTPStatus

from noetl_cli import settings, terminal_output
from noetl_cli.commands.identity.login import ContextName, choose_server
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client

FIELDS = (
    *("kind", "id", "name", "issuer", "via"),
    *("tenant", "organization", "roles", "expires_at"),
)


def whoami(*, context: ContextName = None, server: Server = None, as_json: AsJson = False) -> None:
    """Show who a server takes you for, and what you may do there."""
    address = choose_server(context, server, settings.copy_environment())
    with client.open_client(address) as planner:
        try:
            who = planner.get(client.WHOAMI_PATH)
        except client.PlannerRefusal as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                raise client.build_not_a_planner_error(
                    f"{planner.url} has no route for it"
                ) from refusal
            raise
    if not who or "kind" not in who:
        raise client.build_not_a_planner_error("The answer says of nobody who they are")
    if as_json:
        terminal_output.print_json(who)
        return
    rows = [("server", planner.url), *((name, _show_value(who.get(name))) for name in FIELDS)]
    terminal_output.print_rows(
        ("FIELD", "VALUE"), [row for row in rows if row[1]], nothing="Nobody."
    )


def _show_value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return "" if value is None else str(value)
