"""`noetl worker`: the users of the broker that workers are."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.stack.home_folder.home import write_privately
from noetl_cli.stack.servers import nats
from noetl_contracts import subjects
from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_contracts.commands.worker_pools import POOL_HINT, is_pool_name
from noetl_contracts.subjects import SharesMalformed
from noetl_messaging.streams.worker_permissions import WorkerUser, find_user

app = typer.Typer(no_args_is_help=True, help="Make the broker's users of workers.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user: letters, digits, '_', '-'.")]
Pool = Annotated[str, typer.Option("--pool", help="The pool whose commands it takes.")]
Shares = Annotated[
    list[str] | None,
    typer.Option("--share", help="A tenant with its own share of the pool; repeatable."),
]
Tenants = Annotated[
    list[str] | None,
    typer.Option("--tenant", help="Take the commands of this tenant alone; repeatable."),
]
Broker = Annotated[str, typer.Option("--broker", help="The broker's host and port.")]
Folder = Annotated[
    Path | None,
    typer.Option("--write", help="Write NAME.conf and NAME.env into this folder, readable by you."),
]


@app.callback()
def explain_workers() -> None:
    """Make the broker's users of workers."""


@app.command("enroll")
def enroll_worker(
    name: Name,
    *,
    pool: Pool = DEFAULT_POOL,
    shares: Shares = None,
    tenants: Tenants = None,
    broker: Broker = "127.0.0.1:4222",
    folder: Folder = None,
) -> None:
    """Make a user for workers: its entry in the broker's configuration, and its settings.

    The broker is told with `nats-server --signal reload`. The password is shown once.
    """
    user = _build_user(name, pool, shares=shares or [], tenants=tenants or [])
    password = secrets.token_hex(24)
    entry = f"# An entry of authorization.users.\n{nats.render_user(name, password, user)}\n"
    environ = "".join(
        f"{key}={value}\n" for key, value in _list_settings(user, password, broker).items()
    )
    if folder is None:
        terminal_output.print_text(f"{entry}\n# The worker's environment.\n{environ.rstrip()}")
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(
            f"The folder {folder} cannot be made: {error.strerror or error}.",
            way_out="Choose a writable folder with --write.",
        ) from error
    for path, text in ((folder / f"{name}.conf", entry), (folder / f"{name}.env", environ)):
        write_privately(path, text.encode())
        terminal_output.print_line(str(path))


def _build_user(name: str, pool: str, *, shares: list[str], tenants: list[str]) -> WorkerUser:
    if find_user(f"nats://{name}@broker") != name or name in nats.USERS:
        raise CliError(
            f"{name[:80]!r} cannot name a worker.",
            way_out="Use 1 to 64 letters, digits, '_' or '-', and no name of a service.",
            exit_code=ExitCode.USAGE,
        )
    if not is_pool_name(pool):
        raise CliError(
            f"{pool[:80]!r} cannot name a pool.",
            way_out=f"{POOL_HINT[0].upper()}{POOL_HINT[1:]}.",
            exit_code=ExitCode.USAGE,
        )
    if shares and tenants:
        raise CliError(
            "--share and --tenant exclude each other.",
            way_out="A worker of some tenants alone needs --tenant for each of them.",
            exit_code=ExitCode.USAGE,
        )
    named = tuple(tenants or shares)
    try:
        is_plain = tuple(subjects.parse_tenant_shares(named)) == named
    except SharesMalformed:
        is_plain = False
    if not is_plain:
        raise CliError(
            f"--tenant, --share: {', '.join(named)[:80]!r} are no names of tenants.",
            way_out="Name each tenant once, without a weight.",
            exit_code=ExitCode.USAGE,
        )
    return WorkerUser(name=name, pool=pool, tenants=named, only_tenants=bool(tenants))


def _list_settings(user: WorkerUser, password: str, broker: str) -> dict[str, str]:
    settings = {
        "NOETL_WORKER_NATS_URL": f"nats://{user.name}:{password}@{broker}",
        "NOETL_WORKER_POOL": user.pool,
    }
    if user.tenants:
        settings["NOETL_WORKER_TENANTS"] = ",".join(user.tenants)
    if user.only_tenants:
        settings["NOETL_WORKER_ONLY_TENANTS"] = "true"
    return settings
