"""`noetl up`: start the stack, or attach to the one that runs."""

import shlex
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import typer
from msgspec.structs import replace

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.stack import control
from noetl_cli.stack.home_folder import home, options
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.home_folder.state import ProcessPhase, StackPhase, StackState
from noetl_cli.terminal_output import show_spinner

Count = Annotated[int, typer.Option(min=0, max=64, help="How many of these processes.")]
AllowedPlaces = Annotated[
    list[str] | None,
    typer.Option("--allow-http", metavar="HOST:PORT", help="Let http tasks ask this place, too."),
]
OnlyTenant = Annotated[
    str | None,
    typer.Option(metavar="TENANT", help="Serve this tenant alone, in a database of its own."),
]
ChangedSettings = Annotated[
    list[str] | None, typer.Option("--set", help="WORKER_LEASE_S=5 sets NOETL_WORKER_LEASE_S.")
]
MARKS = {
    ProcessPhase.STARTING: "starting",
    ProcessPhase.READY: "ready",
    ProcessPhase.RESTARTING: "restarting",
    ProcessPhase.STOPPED: "stopped",
}


def up(  # noqa: PLR0913 - one parameter for each option of the command line
    *,
    directory: Directory = None,
    workers: Count = 1,
    planners: Count = 1,
    projectors: Count = 1,
    outboxes: Count = 1,
    reapers: Count = 1,
    no_s3: Annotated[
        bool, typer.Option("--no-s3", help="Keep payloads in files instead of S3.")
    ] = False,
    servers_only: Annotated[
        bool, typer.Option("--servers-only", help="Start the servers without the services.")
    ] = False,
    postgres: Annotated[
        str | None, typer.Option(help="Use this PostgreSQL: DSN of a role that may create roles.")
    ] = None,
    nats: Annotated[str | None, typer.Option(help="Use this NATS server: its URL.")] = None,
    payload: Annotated[
        str | None, typer.Option(help="Use this payload store: s3://... or file:///...")
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="NAME=N", help="A pool besides `default`, of N workers."),
    ] = None,
    http_pool: Annotated[
        list[str] | None,
        typer.Option("--http-pool", metavar="NAME", help="A pool whose workers ask over HTTP."),
    ] = None,
    only_tenant: OnlyTenant = None,
    allow_http: AllowedPlaces = None,
    nats_sync_interval: Annotated[
        str | None, typer.Option(help="How often JetStream syncs its files, or `always`.")
    ] = None,
    set_: ChangedSettings = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and stop everything on Ctrl-C.")
    ] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait.")] = 120,
    as_json: AsJson = False,
) -> None:
    """Start PostgreSQL, NATS, S3 and the five services; attach when they run already."""
    environ = settings.copy_environment()
    place = home.make_home(settings.choose_home(directory, environ=environ))
    stack_options = StackOptions(
        workers=workers,
        planners=planners,
        projectors=projectors,
        outboxes=outboxes,
        reapers=reapers,
        has_s3=not no_s3,
        has_services=not servers_only,
        postgres_dsn=postgres,
        nats_url=nats,
        payload_url=payload,
        only_tenant=options.check_only_tenant(only_tenant, postgres_dsn=postgres),
        pools=options.parse_pools(pool or []),
        http_pools=options.check_http_pools(http_pool or [], besides=pool or []),
        http_allow=options.check_allowed_places(allow_http or []),
        nats_sync_interval=nats_sync_interval,
        settings=options.parse_settings(set_ or []),
    )
    if foreground:
        control.become_supervisor(place, stack_options, environ=environ)
    with show_spinner("The stack starts", is_quiet=as_json):
        stack_state, is_attached = control.start_stack(
            place,
            stack_options,
            environ=environ,
            timeout_s=timeout_s,
            tell=_make_progress_printer(as_json=as_json),
        )
    _show_stack(place, stack_state, is_attached=is_attached, as_json=as_json)
    if is_attached:
        _note_unapplied(place, stack_options)


def _note_unapplied(place: StackHome, stack_options: StackOptions) -> None:
    unapplied = options.list_unapplied(stack_options, options.read_options(place))
    if unapplied:
        terminal_output.print_note(
            f"It runs without what this call asks for: {', '.join(unapplied)}. "
            "To apply it: noetl down, then this call again."
        )


def _make_progress_printer(*, as_json: bool) -> control.Tell:
    phase_by_name: dict[str, ProcessPhase] = {}

    def print_ready(stack_state: StackState) -> None:
        if as_json or stack_state.phase is not StackPhase.STARTING:
            return
        for name, process in stack_state.processes.items():
            if phase_by_name.get(name) is not process.phase:
                phase_by_name[name] = process.phase
                if process.phase is ProcessPhase.READY:
                    terminal_output.print_note(f"  {name} is ready")

    return print_ready


def _show_stack(
    place: StackHome, stack_state: StackState, *, is_attached: bool, as_json: bool
) -> None:
    if as_json:
        # Addresses hold passwords: programs read them in the file, which only its owner can.
        terminal_output.print_json(
            {**_state_without_passwords(stack_state), "state_file": str(place.state_file)}
        )
        return
    terminal_output.print_line("The stack runs already." if is_attached else "The stack is ready.")
    for name, process in sorted(stack_state.processes.items()):
        port = "-" if process.port is None else str(process.port)
        pid = "-" if process.pid is None else str(process.pid)
        terminal_output.print_line(
            f"  {name:<14} {MARKS[process.phase]:<10} port {port:<6} pid {pid}"
        )
    if "api" in stack_state.urls:
        terminal_output.print_line(f"API: {stack_state.urls['api']}")
        terminal_output.print_line(
            f"Console: {stack_state.urls['api']}/console/   (noetl open signs in)"
        )
    if "target" in stack_state.urls:
        terminal_output.print_line(
            "Database for your own data: `noetl credential put NAME --target` lets playbooks use it"
        )
    if "bucket" in stack_state.urls:
        terminal_output.print_line("Bucket for your own data: `noetl credential put NAME --bucket`")
    terminal_output.print_line(f"Folder: {place.root}   (addresses: state.json, logs: noetl logs)")
    if not settings.is_found_without_name(place.root, environ=settings.copy_environment()):
        named = f"{settings.HOME_VARIABLE}={shlex.quote(str(place.root))}"
        terminal_output.print_line(f"From another shell: export {named}")


def _state_without_passwords(stack_state: StackState) -> dict[str, Any]:
    public_state = replace(
        stack_state, urls={name: _strip_login(url) for name, url in stack_state.urls.items()}
    )
    plain: dict[str, Any] = msgspec.to_builtins(public_state)
    return plain


def _strip_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
