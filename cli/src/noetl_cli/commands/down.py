"""`noetl down`: stop the stack; the data stays unless it is purged."""

from typing import Annotated

import typer

from noetl_cli import render, settings
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.failures import ExitCode, StackError
from noetl_cli.spinner import show_spinner
from noetl_cli.stack import control
from noetl_cli.stack.home import Home
from noetl_cli.stack.state import Phase, State


def down(
    *,
    directory: Directory = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete data, logs, passwords and keys.")
    ] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait.")] = 90,
    as_json: AsJson = False,
) -> None:
    """Drain and stop the services, then the servers, and wait until all are gone."""
    root = settings.home(directory, environ=settings.environment())
    if not root.is_dir() or not control.is_ours(root):
        if purge and root.is_dir() and any(root.iterdir()):
            raise StackError(
                f"{root} was not made by `noetl up`; nothing was deleted.",
                way_out="Name the stack's folder with --dir.",
                exit_code=ExitCode.USAGE,
            )
        _say("Nothing runs.", was_running=False, as_json=as_json)
        return
    place = Home(root=root)
    with show_spinner("The stack stops", is_quiet=as_json):
        was_running = control.stop(
            place, timeout_s=timeout_s, tell=_nothing_to_tell, discards=purge
        )
        if purge:
            control.purge(place)
    what = "The stack is stopped." if was_running else "Nothing runs."
    kept = "Its data is deleted." if purge else f"Its data stays in {root}."
    _say(f"{what} {kept}", was_running=was_running, as_json=as_json)


def _nothing_to_tell(found: State) -> None:
    del found


def _say(text: str, *, was_running: bool, as_json: bool) -> None:
    if as_json:
        render.json_line({"phase": Phase.STOPPED, "was_running": was_running})
    else:
        render.line(text)
