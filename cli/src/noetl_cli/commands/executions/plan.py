"""`noetl plan`: what a playbook would do and what it needs; nothing is executed."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from noetl_cli import terminal_output
from noetl_cli.commands.executions.run import Sets, SetsJson
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.commands.playbooks import register
from noetl_cli.files import command_inputs
from noetl_cli.planner import client
from noetl_cli.terminal.plan_graph import format_mermaid_lines, format_tree_lines
from noetl_contracts import codec
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.outline import build_outline
from noetl_playbook.parse.playbook import parse_playbook


class PlanFormat(StrEnum):
    """Who reads the plan."""

    TREE = "tree"
    JSON = "json"
    MERMAID = "mermaid"


def plan(
    playbook: Annotated[
        str, typer.Argument(metavar="FILE|PATH", help="A file, or a registered path.")
    ],
    *,
    sets: Sets = None,
    sets_json: SetsJson = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Of a registered path.")
    ] = None,
    form: Annotated[PlanFormat, typer.Option("--format", help="How to print.")] = PlanFormat.TREE,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show steps, arcs, stages and needs of a playbook; nothing is executed."""
    inputs = command_inputs.read_inputs(payload=None, sets=sets or [], sets_json=sets_json or [])
    if command_inputs.looks_like_file(playbook) or playbook == "-":
        value = _read_playbook(Path(playbook))
    else:
        command_inputs.check_playbook_path(playbook)
        with client.open_client(server) as planner:
            answer = planner.get(f"/api/catalog/{quote(playbook.strip('/'))}", version=version)
        try:
            value = codec.convert_value(answer["model"], Playbook)
        except msgspec.ValidationError as error:
            raise client.build_not_a_planner_error(
                f"The answer holds no playbook that is known here ({error})"
            ) from error
    outline = build_outline(value, given=inputs)
    match PlanFormat.JSON if as_json else form:
        case PlanFormat.JSON:
            terminal_output.print_json(outline)
        case PlanFormat.MERMAID:
            for line in format_mermaid_lines(outline):
                terminal_output.print_line(line)
        case PlanFormat.TREE:
            for line in format_tree_lines(outline):
                terminal_output.print_line(line)


def _read_playbook(file: Path) -> Playbook:
    parsed = parse_playbook(register.read_checked_file(file).text)
    assert parsed.playbook is not None, "a text without errors is a playbook"
    return parsed.playbook
