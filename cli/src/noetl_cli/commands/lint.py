"""`noetl lint`: say everything that is wrong with playbooks, without any server."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import diagnostics, inputs, render
from noetl_cli.diagnostics import Found
from noetl_cli.failures import ExitCode
from noetl_playbook.parse import parse_all
from noetl_playbook.problems import Level, Problem


class Format(StrEnum):
    """Who reads the result."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def lint(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Playbooks; - is stdin.")],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse older forms too.")] = False,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Check playbooks; the exit code is 1 when one has an error."""
    found = [(str(file), problem) for file in files for problem in check(file, strict=strict)]
    _print(found, form)
    errors = sum(1 for _, problem in found if problem.is_error)
    if form is Format.TEXT:
        _sum_up(len(files), errors=errors, warnings=len(found) - errors)
    if errors:
        raise typer.Exit(ExitCode.FAILED)


def check(file: Path, *, strict: bool) -> list[Problem]:
    """Return every problem of every playbook in a file."""
    return check_text(inputs.read_text(file), strict=strict)


def check_text(text: str, *, strict: bool) -> list[Problem]:
    """Return every problem of every playbook in a text."""
    parsed = parse_all(text, level=Level.STRICT if strict else Level.TOLERANT)
    return [problem for one in parsed for problem in one.problems]


def _print(found: Found, form: Format) -> None:
    match form:
        case Format.TEXT:
            lines = diagnostics.text_lines(found)
        case Format.GITHUB:
            lines = diagnostics.github_lines(found)
        case Format.JSON:
            render.json_line(diagnostics.json_values(found))
            return
        case Format.SARIF:
            render.json_line(diagnostics.sarif(found))
            return
    for line in lines:
        render.line(line)


def _sum_up(files: int, *, errors: int, warnings: int) -> None:
    checked = _count(files, "playbook file")
    if errors or warnings:
        render.note(f"{_count(errors, 'error')}, {_count(warnings, 'warning')} in {checked}.")
    else:
        render.note(f"{checked} checked: nothing to complain about.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
