"""`noetl credential`: what playbooks name in `auth`, sealed by the planner."""

from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import client, credential_test, inputs, render, tables
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.spinner import show_spinner

app = typer.Typer(no_args_is_help=True, help="Keep, test, list and end credentials.")

POSTGRES = "postgres"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name that playbooks use.")]


@app.command("put")
def put(
    name: Name,
    *,
    kind: Annotated[
        str | None, typer.Option("--type", help="postgres, bearer, basic, api_key, generic, ...")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="A field as name=value; repeat it.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Fields as JSON or YAML; - is stdin.")
    ] = None,
    is_target: Annotated[
        bool,
        typer.Option("--target", help="The database of `noetl up` for your own data."),
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a credential; a name that exists gets a new version."""
    if is_target:
        if kind not in {None, POSTGRES} or data or file or server:
            raise _wrong_options(
                "--target is a whole credential, of the stack on this machine.",
                "Leave out --type, --data, --file and --server.",
            )
        kind, fields = POSTGRES, {"dsn": client.find_target_database()}
    elif kind is None:
        raise _wrong_options("A credential needs --type.", "Say --type postgres, bearer, ...")
    else:
        fields = inputs.read_fields(data=data or [], file=file)
    with client.open_client(server) as planner:
        kept = planner.post("/api/credentials", {"name": name, "type": kind, "data": fields})
    if as_json:
        render.json_line(kept)
    else:
        render.line(f"{kept['name']} version {kept['version']} ({kept['type']})")


def _wrong_options(text: str, way_out: str) -> CliError:
    return CliError(text, way_out=way_out, exit_code=ExitCode.USAGE)


@app.command("ls")
def list_credentials(*, server: Server = None, as_json: AsJson = False) -> None:
    """List credentials with the names of their fields; values never leave the planner."""
    with client.open_client(server) as planner:
        found = planner.get("/api/credentials")["credentials"]
    if as_json:
        render.json_line(found)
        return
    rows = [
        (
            one["name"],
            one["type"],
            f"v{one['version']}",
            ", ".join(one["fields"]) if one["fields"] is not None else "sealed with another key",
        )
        for one in found
    ]
    tables.show(("NAME", "TYPE", "VERSION", "FIELDS"), rows, nothing="No credentials.")


@app.command("test")
def check_credential(
    name: Name,
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="An address that wants it, or s3://BUCKET; kept in the history."
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Whose workers open it (default: default).")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, max=600, help="Seconds until it is given up.")
    ] = 90,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Have a worker open a credential, and say what it found.

    Exit codes: 0 it opens, 1 it does not, 2 it cannot be tested, 124 no worker has ended the test.
    """
    with (
        client.open_client(server) as planner,
        show_spinner(f"A worker tests {name}", is_quiet=as_json),
    ):
        tested = credential_test.run_test(planner, name, url=url, pool=pool, timeout_s=timeout_s)
    credential_test.show(tested, as_json=as_json)


@app.command("rm")
def remove(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """End a credential: nothing opens it from now on."""
    with client.open_client(server) as planner:
        ended = planner.delete(f"/api/credentials/{client.escaped(name)}")
    if as_json:
        render.json_line(ended)
    else:
        render.line(f"{ended['name']} is ended.")
