"""`noetl replay counterfactual`: what an execution would have decided under another playbook."""

from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client
from noetl_cli.terminal_output import show_spinner
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_cli.commands.playbooks import register
else:
    # The other verbs of this module's group read no playbook.
    register = LazyModule("noetl_cli.commands.playbooks.register")

_HEADS = ("step", "was", "would be", "rests on")
_BASES = {
    "recorded": "what was recorded",
    "assumed": "what was recorded of other work",
    "unknown": "nothing: it never ran",
    "decided": "no work",
}
_UNDECIDED = "undecided"
_ERROR_CHARACTERS_MAX = 80


def decide_counterfactual(
    execution_id: ExecutionArgument,
    *,
    playbook: Annotated[
        Path | None, typer.Option("--playbook", metavar="FILE", help="The other playbook.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", help="The other registered version.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Decide an execution's outcomes under another version of its playbook; nothing is run.

    Exit code 1 says that it would have gone otherwise.
    """
    if (playbook is None) == (version is None):
        raise CliError(
            "Name one other version.",
            way_out=f"noetl replay counterfactual {execution_id} --playbook FILE",
            exit_code=ExitCode.USAGE,
        )
    body: dict[str, Any] = {"version": version}
    if playbook is not None:
        body = register.read_checked_file(playbook).build_body()
    address = f"/api/executions/{client.escape_segment(execution_id)}/counterfactual"
    with client.open_client(server) as planner, show_spinner("Deciding", is_quiet=as_json):
        counterfactual = planner.post(address, body)
    if as_json:
        terminal_output.print_json(counterfactual)
    else:
        _print_report(counterfactual)
    if not counterfactual["is_equal"]:
        raise typer.Exit(ExitCode.FAILED)


def _print_report(report: dict[str, Any]) -> None:
    rows = [
        (
            f"{'' if step['is_equal'] else '* '}{_name_activation(step)}",
            _describe_end(step["recorded"], missing="-"),
            _describe_end(step["decided"], missing=_UNDECIDED if step["basis"] else "-"),
            _BASES.get(step["basis"] or "", ""),
        )
        for step in report["steps"]
    ]
    terminal_output.print_rows(_HEADS, rows, nothing="no step ended")
    terminal_output.print_line(_describe_verdict(report))


def _describe_verdict(report: dict[str, Any]) -> str:
    then, now = report["recorded_status"], report["decided_status"].lower()
    if not report["is_equal"]:
        return f"{then}, and would be {now}; * marks what differs"
    is_assumed = any(step["basis"] == "assumed" for step in report["steps"])
    provided = ", if the other work comes to the same" if is_assumed else ""
    return f"{then}, and so it would be: every decision is the same{provided}"


def _name_activation(one: dict[str, Any]) -> str:
    return one["step"] if one["number"] == 1 else f"{one['step']} ({one['number']})"


def _describe_end(end: dict[str, Any] | None, *, missing: str) -> str:
    if end is None:
        return missing
    parts = [end["status"].lower()]
    if end["targets"]:
        parts.append(f"-> {', '.join(end['targets'])}")
    if end["error"]:
        parts.append(shorten(end["error"], _ERROR_CHARACTERS_MAX, placeholder=" ..."))
    return " ".join(parts)
