"""`noetl state`: how far playbooks have read their sources."""

import getpass
from typing import Annotated, Any
from urllib.parse import quote

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client
from noetl_contracts.commands.state_values import StateType

_VALUE = "/api/state/value"

app = typer.Typer(
    no_args_is_help=True, help="Show how far playbooks have read their sources, and set it."
)

Playbook = Annotated[str, typer.Argument(metavar="PLAYBOOK", help="A registered playbook.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The state, without state. before it.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept for good.")]
Who = Annotated[
    str | None,
    typer.Option("--who", help="Who does it, if nobody signs in (default: your login)."),
]
IsSure = Annotated[bool, typer.Option("--yes", help="Do it: nobody can take it back.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many.")]


@app.command("ls")
def list_states(
    path: Annotated[
        str | None, typer.Argument(metavar="PLAYBOOK", help="Only of this playbook.")
    ] = None,
    *,
    limit: Limit = 50,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List states with their present values."""
    with client.open_client(server) as planner:
        answer = planner.get("/api/state", path=path, limit=limit)
    if as_json:
        terminal_output.print_json(answer["states"])
        return
    rows = [(state["path"], state["name"], *_list_cells(state)) for state in answer["states"]]
    head = ("PLAYBOOK", "STATE", "VALUE", "TYPE", "REVISION", "CHANGED", "BY", "REASON")
    terminal_output.print_rows(head, rows, nothing="No states.")
    if answer["has_more"]:
        terminal_output.print_note("There are more: name a playbook, or raise --limit.")


@app.command("get")
def get_state(
    path: Playbook, name: Name, *, server: Server = None, as_json: AsJson = False
) -> None:
    """Print the present value of a state."""
    with client.open_client(server) as planner:
        answer = planner.get(_VALUE, path=path, name=name)
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_line(str(answer["value"]))


@app.command("set")
def set_state(
    path: Playbook,
    name: Name,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A moment, day, number or text.")],
    *,
    reason: Why,
    type_: Annotated[
        StateType | None,
        typer.Option("--type", help="Default: what the present value or the step has."),
    ] = None,
    who: Who = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Set a state; the next run begins there, and a run that has begun fails."""
    body = {
        "path": path,
        "name": name,
        "value": value,
        "who": who or getpass.getuser(),
        "reason": reason,
        **({} if type_ is None else {"type": str(type_)}),
    }
    with client.open_client(server) as planner:
        answer = planner.put(_VALUE, body)
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_line(
            f"{answer['path']} {answer['name']} is {answer['value']}, "
            f"revision {answer['revision']}."
        )


@app.command("rm")
def remove_state(
    path: Playbook,
    name: Name,
    *,
    reason: Why,
    is_sure: IsSure = False,
    who: Who = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Remove a state: the next run reads its source from the beginning."""
    _check_sure(f"This removes state {name} of {path} with its history, for good.", is_sure=is_sure)
    with client.open_client(server) as planner:
        answer = planner.delete(
            _VALUE, path=path, name=name, who=who or getpass.getuser(), reason=reason
        )
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_line(f"{path} {name} is removed; it was {answer['value']}.")


@app.command("rm-checkpoint")
def remove_checkpoint(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="As follow.checkpoint says it.")
    ],
    *,
    reason: Why,
    is_sure: IsSure = False,
    who: Who = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Remove the checkpoint of a stream: its next run reads all its files again."""
    _check_sure(f"This removes checkpoint {checkpoint}, for good.", is_sure=is_sure)
    with client.open_client(server) as planner:
        answer = planner.delete(
            f"/api/state/checkpoints/{quote(checkpoint, safe='')}",
            who=who or getpass.getuser(),
            reason=reason,
        )
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_line(
            f"Checkpoint {checkpoint} is removed, {answer['object_count']} objects."
        )


def _check_sure(text: str, *, is_sure: bool) -> None:
    if not is_sure:
        raise CliError(text, way_out="Say --yes if that is meant.", exit_code=ExitCode.USAGE)


@app.command("history")
def show_history(
    path: Playbook,
    name: Name,
    *,
    limit: Limit = 50,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the changes of a state, the latest first."""
    with client.open_client(server) as planner:
        answer = planner.get("/api/state/history", path=path, name=name, limit=limit)
    if as_json:
        terminal_output.print_json(answer["changes"])
        return
    rows = [_list_cells(change) for change in answer["changes"]]
    head = ("VALUE", "TYPE", "REVISION", "CHANGED", "BY", "REASON")
    terminal_output.print_rows(head, rows, nothing="No changes.")
    if answer["next_before"] not in {None, 1}:
        terminal_output.print_note("There are older ones: raise --limit.")


def _list_cells(state: dict[str, Any]) -> tuple[str, ...]:
    by = state["changed_by"] or f"execution {state['execution_id']}, step {state['step']}"
    return (
        str(state["value"]),
        state["type"],
        str(state["revision"]),
        (state["changed_at"] or "")[:19].replace("T", " "),
        by,
        state["reason"] or "",
    )
