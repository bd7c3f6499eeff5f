"""`noetl register`: put a playbook into the catalog."""

from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import client, inputs, render
from noetl_cli.client import Client, Refused
from noetl_cli.commands import lint
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.failures import CliError, ExitCode
from noetl_playbook.problems import Problem, text_form

PROBLEMS_SHOWN_MAX = 50


def register(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A playbook; - is stdin.")],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse older forms too.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Register a playbook as the next version of its path; the same text keeps its version.

    A file of several documents registers all of them, or none.
    """
    text = checked(file, strict=strict)
    with client.open_client(server) as planner:
        answer = put(planner, text, file=file, strict=strict)
    if as_json:
        render.json_line(answer)
    else:
        for one in (answer, *answer.get("others", ())):
            render.line(f"{one['path']} version {one['version']}")


def checked(file: Path, *, strict: bool = False) -> str:
    """Read a playbook and check it here; problems are told with their lines."""
    text = inputs.read_text(file)
    problems = lint.check_text(text, strict=strict)
    show(problems, file=file)
    errors = sum(1 for problem in problems if problem.is_error)
    if errors:
        raise CliError(
            f"{file} has {errors} error{'' if errors == 1 else 's'}; nothing was done.",
            way_out=f"noetl lint {file}",
            exit_code=ExitCode.USAGE,
        )
    return text


def put(planner: Client, text: str, *, file: Path, strict: bool = False) -> dict[str, Any]:
    """Register a playbook's text."""
    level = "strict" if strict else "tolerant"
    try:
        answer: dict[str, Any] = planner.post_text("/api/catalog/register", text, level=level)
    except Refused as refusal:
        # The planner may be of another release and know more.
        for problem in refusal.diagnostics[:PROBLEMS_SHOWN_MAX]:
            place = f"{file}:{problem.get('line')}:{problem.get('column')}"
            render.note(f"{place}: {problem.get('code')}: {problem.get('message')}")
        raise
    return answer


def show(problems: list[Problem], *, file: Path) -> None:
    """Tell errors line by line, and how many warnings there are."""
    errors = [problem for problem in problems if problem.is_error]
    for problem in errors[:PROBLEMS_SHOWN_MAX]:
        render.note(text_form(problem, file=str(file)))
    warnings = len(problems) - len(errors)
    if warnings:
        plural = "" if warnings == 1 else "s"
        render.note(f"{warnings} warning{plural}: noetl lint {file}")
