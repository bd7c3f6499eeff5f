"""`noetl doctor`: is everything as it must be, and if not, what to do."""

import typer

from noetl_cli import render, settings
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.failures import ExitCode
from noetl_cli.spinner import show_spinner
from noetl_cli.stack import doctor as stack_doctor
from noetl_cli.stack.checks import Verdict
from noetl_cli.stack.home import Home

STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def doctor(*, directory: Directory = None, as_json: AsJson = False) -> None:
    """Check versions, durability settings, disk, ports, Java and every service."""
    environ = settings.environment()
    place = Home(root=settings.home(directory, environ=environ))
    with show_spinner("Checking", is_quiet=as_json):
        checks = stack_doctor.examine(place, environ=environ)
    has_failed = any(check.verdict is Verdict.FAIL for check in checks)
    if as_json:
        render.json_line({"ok": not has_failed, "checks": checks})
    else:
        out = render.console()
        for check in checks:
            out.print(f"{check.verdict:<5}", style=STYLES[check.verdict], end="")
            out.print(f"{check.name:<30} {render.safe(check.found)}", markup=False)
            if check.way_out:
                out.print(f"       -> {render.safe(check.way_out)}", markup=False)
    if has_failed:
        raise typer.Exit(ExitCode.FAILED)
