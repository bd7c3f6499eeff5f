"""`noetl doctor`: is everything as it must be, and if not, what to do."""

import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory, Server
from noetl_cli.errors import ExitCode
from noetl_cli.planner import client, server_doctor
from noetl_cli.stack import doctor as stack_doctor
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.processes.health_check import HealthCheck, Verdict
from noetl_cli.terminal_output import show_spinner

STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def doctor(*, server: Server = None, directory: Directory = None, as_json: AsJson = False) -> None:
    """Check versions, durability settings, disk, ports, Java and every service.

    With a server elsewhere, check what its API tells of it and of the services behind it.
    """
    environ = settings.copy_environment()
    place = StackHome(root=settings.choose_home(directory, environ=environ))
    remote = None if directory is not None and server is None else client.find_other_server(server)
    with show_spinner("Checking", is_quiet=as_json):
        if remote is None:
            checks = stack_doctor.check_stack(place, environ=environ)
        else:
            with client.open_client(remote) as planner:
                checks = server_doctor.check_server(planner)
    has_failed = any(check.verdict is Verdict.FAIL for check in checks)
    if as_json:
        terminal_output.print_json({"ok": not has_failed, "checks": checks})
    else:
        _print_checks(checks)
    if has_failed:
        raise typer.Exit(ExitCode.FAILED)


def _print_checks(checks: list[HealthCheck]) -> None:
    out = terminal_output.open_console()
    for check in checks:
        out.print(f"{check.verdict:<5}", style=STYLES[check.verdict], end="")
        out.print(f"{check.name:<30} {terminal_output.escape_controls(check.found)}", markup=False)
        if check.way_out:
            out.print(f"       -> {terminal_output.escape_controls(check.way_out)}", markup=False)
