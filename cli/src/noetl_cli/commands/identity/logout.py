"""`noetl logout`: forgets the tokens of a server."""

from noetl_cli import settings, terminal_output
from noetl_cli.commands.identity.login import ContextName, choose_server
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.identity import person_sign_in, server_origin


def logout(*, context: ContextName = None, server: Server = None, as_json: AsJson = False) -> None:
    """Forget the sign-in or the key of a server, and end it at the identity provider."""
    environ = settings.copy_environment()
    address = choose_server(context, server, environ)
    was_signed_in = person_sign_in.sign_person_out(address, environ)
    origin = server_origin.parse_origin(address)
    if as_json:
        terminal_output.print_json({"server": origin, "was_signed_in": was_signed_in})
    elif was_signed_in:
        terminal_output.print_line(f"Signed out of {origin}.")
    else:
        terminal_output.print_line(f"You were not signed in at {origin}.")
