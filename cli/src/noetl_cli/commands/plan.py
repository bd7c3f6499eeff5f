"""`noetl plan`: what a playbook would do and what it needs; nothing is executed."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from noetl_cli import client, inputs, render
from noetl_cli.commands import register
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.commands.run import Sets, SetsJson
from noetl_cli.graphs import mermaid, tree
from noetl_contracts import codec
from noetl_playbook.model import Playbook
from noetl_playbook.outline import outline_of
from noetl_playbook.parse import parse


class Format(StrEnum):
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
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TREE,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show steps, arcs, stages and needs of a playbook; nothing is executed."""
    given = inputs.read_inputs(payload=None, sets=sets or [], sets_json=sets_json or [])
    if inputs.looks_like_file(playbook) or playbook == "-":
        found = _of_file(Path(playbook))
    else:
        inputs.check_path(playbook)
        with client.open_client(server) as planner:
            answer = planner.get(f"/api/catalog/{quote(playbook.strip('/'))}", version=version)
        try:
            found = codec.convert(answer["model"], Playbook)
        except msgspec.ValidationError as error:
            raise client.no_planner(
                f"The answer holds no playbook that is known here ({error})"
            ) from error
    outline = outline_of(found, given=given)
    match Format.JSON if as_json else form:
        case Format.JSON:
            render.json_line(outline)
        case Format.MERMAID:
            for line in mermaid(outline):
                render.line(line)
        case Format.TREE:
            for line in tree(outline):
                render.line(line)


def _of_file(file: Path) -> Playbook:
    parsed = parse(register.checked(file).text)
    assert parsed.playbook is not None, "a text without errors is a playbook"
    return parsed.playbook
