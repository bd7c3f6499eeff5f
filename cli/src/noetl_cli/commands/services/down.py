"""`noetl down`: stop the stack; the data stays unless it is purged."""

from typing import Annotated

import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.errors import ExitCode, StackError
from noetl_cli.stack import control
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.state import StackPhase, StackState
from noetl_cli.terminal_output import show_spinner


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
    root = settings.choose_home(directory, environ=settings.copy_environment())
    if not root.is_dir() or not control.is_stack_folder(root):
        if purge and root.is_dir() and any(root.iterdir()):
            raise StackError(
                f"{root} was not made by `noetl up`; nothing was deleted.",
                way_out="Name the stack's folder with --dir.",
                exit_code=ExitCode.USAGE,
            )
        _print_outcome(f"Nothing runs in {root}.", was_running=False, as_json=as_json)
        terminal_output.print_note(f"{settings.OTHER_HOME_OR_DIR}.")
        return
    place = StackHome(root=root)
    with show_spinner("The stack stops", is_quiet=as_json):
        was_running = control.stop_stack(
            place, timeout_s=timeout_s, tell=_ignore_state, discards=purge
        )
        if purge:
            control.purge_data(place)
    stack_note = "The stack is stopped." if was_running else "Nothing runs."
    data_note = "Its data is deleted." if purge else f"Its data stays in {root}."
    _print_outcome(f"{stack_note} {data_note}", was_running=was_running, as_json=as_json)


def _ignore_state(stack_state: StackState) -> None:
    del stack_state


def _print_outcome(text: str, *, was_running: bool, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json({"phase": StackPhase.STOPPED, "was_running": was_running})
    else:
        terminal_output.print_line(text)
