"""`noetl tenant`: the roles of the database that read one tenant each."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.stack import stores, tenant_readers
from noetl_cli.stack.stores import Dsn
from noetl_cli.stack.tenant_readers import CONNECTIONS_DEFAULT

_PASSWORD_BYTES = 24

app = typer.Typer(no_args_is_help=True, help="Make the database's readers of a tenant.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]


@app.command("create")
def create_tenant(
    name: Name,
    *,
    connections: Annotated[
        int, typer.Option("--connections", min=1, max=1000, help="How many at once.")
    ] = CONNECTIONS_DEFAULT,
    postgres: Dsn = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Make the role that reads a tenant, or give it another password; it is shown once."""
    role, address = tenant_readers.make_reader(
        _find_dsn(directory, postgres),
        name,
        password=secrets.token_hex(_PASSWORD_BYTES),
        connections_max=connections,
    )
    if as_json:
        terminal_output.print_json({"tenant": name, "role": role, "dsn": address})
    else:
        terminal_output.print_line(address)


@app.command("drop")
def drop_tenant(
    name: Name, *, postgres: Dsn = None, directory: Directory = None, as_json: AsJson = False
) -> None:
    """Take the role that reads a tenant away, and end what it runs; its data stays."""
    was_there = tenant_readers.drop_reader(_find_dsn(directory, postgres), name)
    if as_json:
        terminal_output.print_json({"tenant": name, "dropped": was_there})
    else:
        what = "has no reader any more" if was_there else "had no reader"
        terminal_output.print_line(f"Tenant {name} {what}.")


def _find_dsn(directory: Path | None, dsn: str | None) -> str:
    # The payload store is not asked.
    return stores.find_stores(directory, dsn=dsn, url=dsn and "memory://", key_file="").dsn
