"""`noetl role`: who has which role, for all playbooks or those of a folder."""

from typing import Annotated, Literal

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client

app = typer.Typer(no_args_is_help=True, help="List, give and take away roles.")

SubjectKind = Literal["person", "group", "service_account", "worker"]


@app.command("ls")
def list_roles(*, server: Server = None, as_json: AsJson = False) -> None:
    """List who has which role, and what the roles allow."""
    with client.open_client(server) as planner:
        answer = planner.get("/api/roles")
    if as_json:
        terminal_output.print_json(answer)
        return
    rows = [
        (
            binding["binding_id"],
            binding["kind"],
            binding["subject"],
            binding["role"],
            binding["path_prefix"] or "all playbooks",
            binding["created_by"],
        )
        for binding in answer["bindings"]
    ]
    terminal_output.print_rows(
        ("ID", "KIND", "SUBJECT", "ROLE", "FOR", "GIVEN BY"),
        rows,
        nothing="Nobody has a role yet; the owner of the installation has all of them.",
    )
    terminal_output.print_line("")
    allowed = [(role["role"], ", ".join(role["permissions"])) for role in answer["roles"]]
    terminal_output.print_rows(("ROLE", "ALLOWS"), allowed, nothing="")


@app.command("grant")
def grant_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, operator, author, ...")],
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="A person's or client's subject, a group, ...")
    ],
    *,
    kind: Annotated[SubjectKind, typer.Option("--kind", help="What the subject is.")] = "person",
    issuer: Annotated[
        str, typer.Option("--issuer", help="Who vouches for it (default: the identity provider).")
    ] = "",
    folder: Annotated[
        str, typer.Option("--folder", help="Only for the playbooks of a folder, as sales/eu.")
    ] = "",
    all_organizations: Annotated[
        bool, typer.Option("--all-organizations", help="In every organization of the tenant.")
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Give a role; it holds within seconds."""
    body = {
        "kind": kind,
        "subject": subject,
        "role": role,
        "issuer": issuer,
        "path_prefix": folder,
        "all_organizations": all_organizations,
    }
    with client.open_client(server) as planner:
        binding = planner.post("/api/roles", body)
    if as_json:
        terminal_output.print_json(binding)
        return
    reach = f"the playbooks of {binding['path_prefix']}" if folder else "all playbooks"
    terminal_output.print_line(
        f"{binding['kind']} {binding['subject']} is {binding['role']} for {reach} "
        f"(binding {binding['binding_id']})"
    )


@app.command("revoke")
def revoke_role(
    binding_id: Annotated[str, typer.Argument(metavar="ID", help="As `noetl role ls` lists it.")],
    *,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Take a role away; what it allowed ends within seconds."""
    with client.open_client(server) as planner:
        binding = planner.delete(f"/api/roles/{client.escape_segment(binding_id)}")
    if as_json:
        terminal_output.print_json(binding)
    else:
        terminal_output.print_line(
            f"{binding['kind']} {binding['subject']} is no longer {binding['role']}"
        )
