"""`noetl doctor`: is everything as it must be, and if not, what to do."""

import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.errors import ExitCode
from noetl_cli.stack import doctor as stack_doctor
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.processes.health_check import Verdict
from noetl_cli.terminal_output import show_spinner

STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def doctor(*, directory: Directory = None, as_json: AsJson = False) -> None:
    """Check versions, durability settings, disk, ports, Java and every service."""
    environ = settings.copy_environment()
    place = StackHome(root=settings.choose_home(directory, environ=environ))
    with show_spinner("Checking", is_quiet=as_json):
        checks = stack_doctor.check_stack(place, environ=environ)
    has_failed = any(check.verdict is Verdict.FAIL for check in checks)
    if as_json:
        terminal_output.print_json({"ok": not has_failed, "checks": checks})
    else:
        out = terminal_output.open_console()
        for check in checks:
            out.print(f"{check.verdict:<5}", style=STYLES[check.verdict], end="")
            out.print(
                f"{check.name:<30} {terminal_output.escape_controls(check.found)}", markup=False
            )
            if check.way_out:
                out.print(
                    f"       -> {terminal_output.escape_controls(check.way_out)}", markup=False
                )
    if has_failed:
        raise typer.Exit(ExitCode.FAILED)
