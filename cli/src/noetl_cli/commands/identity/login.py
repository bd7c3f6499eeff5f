"""`noetl login`: signs a person in at the server's identity provider."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.identity import contexts, person_sign_in
from noetl_cli.planner import client

ContextName = Annotated[
    str | None, typer.Option("--context", help="A context's server (default: the one in use).")
]


def login(
    *,
    with_browser: Annotated[
        bool, typer.Option("--browser", help="Use a browser on this machine, and no code.")
    ] = False,
    context: ContextName = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Sign in at a server, with a code in any browser; tokens are kept and renewed.

    They go to the system's keyring where one opens, else to a file of this user alone.
    """
    environ = settings.copy_environment()
    address = choose_server(context, server, environ)
    with client.open_unsigned_client(address) as planner:
        config = planner.get(person_sign_in.CONFIG_PATH)
    server_sign_in = person_sign_in.read_server_sign_in(config, address)
    signed_in = person_sign_in.sign_person_in(
        address, server_sign_in, with_browser=with_browser, environ=environ
    )
    if as_json:
        terminal_output.print_json(signed_in)
        return
    until = datetime.fromtimestamp(signed_in.expires_s, UTC).astimezone()
    terminal_output.print_line(f"Signed in at {signed_in.server} as {signed_in.name}.")
    terminal_output.print_note(
        f"The token is good until {until:%H:%M}, then renewed. Kept in {signed_in.kept_in}."
    )


def choose_server(context: str | None, server: str | None, environ: dict[str, str]) -> str:
    """Choose whom a verb is about: the argument, a named context, or what every verb calls."""
    if server is None and context is not None and context != contexts.LOCAL:
        known_contexts = contexts.read_contexts(environ)
        return contexts.get_context(known_contexts, context).server
    return client.get_server_address(server)
