"""`noetl tenant`: what tenants may use, and the roles of the database that read one each."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory, Server
from noetl_cli.errors import CliError
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_cli.stack import stores, tenant_readers
from noetl_cli.stack.home_folder import options
from noetl_cli.stack.stores import Dsn
from noetl_cli.stack.tenant_readers import CONNECTIONS_DEFAULT

_PASSWORD_BYTES = 24

app = typer.Typer(
    no_args_is_help=True, help="Bound and suspend tenants, and make the database's readers of one."
)

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
        outcome = "has no reader any more" if was_there else "had no reader"
        terminal_output.print_line(f"Tenant {name} {outcome}.")


@app.command("database")
def create_database(
    name: Name,
    *,
    postgres: Annotated[
        str, typer.Option(help="DSN of a role that may create roles, with the database to make.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make a tenant's own database, and roles that open no other; their passwords are shown once.

    Roles that are there get other passwords.
    """
    options.check_only_tenant(name, postgres_dsn=postgres)
    address_by_role = tenant_readers.make_own_database(
        postgres, name, path=settings.copy_environment().get("PATH", "")
    )
    if as_json:
        terminal_output.print_json({"tenant": name, "dsns": address_by_role})
        return
    for address in address_by_role.values():
        terminal_output.print_line(address)


@app.command("quota")
def show_quota(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The tenant (default: show all).")
    ] = None,
    *,
    running: Annotated[
        int | None, typer.Option("--running", min=0, help="Executions that run at most.")
    ] = None,
    calls: Annotated[
        float | None, typer.Option("--calls", min=0.001, help="Calls of the API a second.")
    ] = None,
    stored: Annotated[
        int | None, typer.Option("--stored", min=0, help="Bytes in the payload store.")
    ] = None,
    is_lifted: Annotated[bool, typer.Option("--none", help="Bound the tenant no more.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show what tenants may use at most, or set it for one; it holds within seconds."""
    limits = {"running_max": running, "calls_per_s": calls, "stored_bytes_max": stored}
    is_bound = any(bound is not None for bound in limits.values())
    is_change = is_lifted or is_bound
    if is_change and name is None:
        raise CliError("no tenant is named", way_out="noetl tenant quota NAME --running N")
    if is_lifted and is_bound:
        raise CliError("--none goes with no other bound", way_out="leave it out")
    with client.open_client(server) as planner:
        if is_change:
            # A bound that is not named stays.
            body = {bound: it for bound, it in limits.items() if is_lifted or it is not None}
            planner.patch(f"/api/quotas/{client.escape_segment(name or '')}", body)
        quotas = list(_iterate_quotas(planner, name))
    if as_json:
        terminal_output.print_json(quotas)
        return
    rows = [
        (
            quota["tenant"],
            f"{quota['running']:,}",
            _show_bound(quota["running_max"]),
            _show_bound(quota["calls_per_s"]),
            _show_stored(quota),
            _show_bound(quota["stored_bytes_max"]),
            "yes" if quota["suspended"] else "-",
        )
        for quota in quotas
    ]
    terminal_output.print_rows(
        ("TENANT", "RUNNING", "AT MOST", "CALLS A SECOND", "STORED BYTES", "AT MOST", "SUSPENDED"),
        rows,
        nothing=f"Tenant {name} is not bounded." if name else "No tenant is bounded.",
    )


@app.command("suspend")
def suspend_tenant(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Let nothing of a tenant begin: starts are refused, schedules wait, what runs goes on."""
    _switch_tenant(name, "suspend", server=server, as_json=as_json)


@app.command("resume")
def resume_tenant(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Let a suspended tenant begin executions again; schedules catch up as they say."""
    _switch_tenant(name, "resume", server=server, as_json=as_json)


def _switch_tenant(name: str, verb: str, *, server: str | None, as_json: bool) -> None:
    with client.open_client(server) as planner:
        answer = planner.post(f"/api/tenants/{client.escape_segment(name)}/{verb}", {})
    if as_json:
        terminal_output.print_json(answer)
    else:
        outcome = "is suspended" if answer["suspended"] else "begins executions again"
        terminal_output.print_line(f"Tenant {name} {outcome}.")


def _iterate_quotas(planner: PlannerClient, tenant: str | None) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        page = planner.get("/api/quotas", tenant=tenant, after=after)
        yield from page["quotas"]
        after = page["next_after"]


def _show_stored(quota: dict[str, Any]) -> str:
    if quota["stored_bytes_max"] is None:
        return "-"
    return "not counted" if quota["stored_bytes"] is None else f"{quota['stored_bytes']:,}"


def _show_bound(bound: float | None) -> str:
    return "-" if bound is None else f"{bound:,.15g}"


def _find_dsn(directory: Path | None, dsn: str | None) -> str:
    # The payload store is not asked.
    return stores.find_stores(directory, dsn=dsn, url=dsn and "memory://", key_file="").dsn
