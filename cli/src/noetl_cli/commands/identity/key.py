"""`noetl key`: API keys of service accounts and workers."""

from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client
from noetl_cli.stack.home_folder import stack_secrets
from noetl_contracts import codec

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")


@app.command("create")
def create_key(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Whose key it is.")],
    *,
    role: Annotated[
        str | None, typer.Option("--role", help="A role to give to the account, as operator.")
    ] = None,
    folder: Annotated[
        str, typer.Option("--folder", help="The role only for the playbooks of a folder.")
    ] = "",
    days: Annotated[
        int, typer.Option("--days", min=0, help="How long it opens anything; 0: for good.")
    ] = 90,
    worker: Annotated[
        bool, typer.Option("--worker", help="For a worker that asks for commands over HTTP.")
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key; it is shown once."""
    body = {"account": account, "path_prefix": folder, "days": days, "worker": worker}
    if role is not None:
        body["role"] = role
    with client.open_client(server) as planner:
        made = planner.post("/api/keys", body)
    if as_json:
        terminal_output.print_json(made)
        return
    terminal_output.print_line(made["key"])
    until = "for good" if made["expires_at"] is None else f"until {made['expires_at'][:10]}"
    terminal_output.print_note(
        f"The key of {made['account']} is valid {until}; nobody can show it again."
    )
    if role is None and not worker:
        terminal_output.print_note(
            f"It opens what the roles of {made['account']} allow. No role was given with it: "
            f"noetl role ls shows them, noetl role grant operator {made['account']} gives one."
        )


@app.command("ls")
def list_keys(*, server: Server = None, as_json: AsJson = False) -> None:
    """List API keys: never the keys themselves."""
    with client.open_client(server) as planner:
        keys = planner.get("/api/keys")["keys"]
    if as_json:
        terminal_output.print_json(keys)
        return
    rows = [
        (
            key["key_prefix"],
            key["account"],
            key["kind"],
            "revoked" if key["revoked_at"] else (key["expires_at"] or "for good")[:10],
            (key["used_at"] or "never")[:16],
            key["created_by"],
        )
        for key in keys
    ]
    terminal_output.print_rows(
        ("KEY", "ACCOUNT", "KIND", "VALID UNTIL", "LAST USED", "MADE BY"),
        rows,
        nothing="No API keys.",
    )


@app.command("revoke")
def revoke_key(
    key_prefix: Annotated[
        str, typer.Argument(metavar="KEY", help="Its beginning, as `noetl key ls` lists it.")
    ],
    *,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key; what it opened ends within seconds."""
    with client.open_client(server) as planner:
        revoked = planner.delete(f"/api/keys/{client.escape_segment(key_prefix)}")
    if as_json:
        terminal_output.print_json(revoked)
    else:
        terminal_output.print_line(f"{revoked['key_prefix']} of {revoked['account']} is revoked")


@app.command("owner")
def make_owner_token(*, as_json: AsJson = False) -> None:
    """Make a token for the owner of an installation, and what its planner is told of it."""
    token = stack_secrets.make_owner_token()
    digest = codec.digest_hex(token.encode())
    if as_json:
        terminal_output.print_json({"token": token, "sha256": digest})
        return
    terminal_output.print_line(token)
    terminal_output.print_note(f"Tell the planner: NOETL_PLANNER_OWNER_TOKEN_SHA256={digest}")
