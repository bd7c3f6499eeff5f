"""`noetl lint`: say everything that is wrong with playbooks, without any server."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import diagnostics, inputs, render
from noetl_cli.diagnostics import Found
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.script_folder import ScriptFolder
from noetl_cli.spinner import show_spinner
from noetl_contracts import spelling
from noetl_playbook import mixed_text
from noetl_playbook.code_table import CODES
from noetl_playbook.document import DOCUMENT_BYTES_MAX
from noetl_playbook.problems import Level, Problem

FILES_MAX = 10_000
STANDARD_INPUT_NAME = "stdin"


class Format(StrEnum):
    """Who reads the result."""

    HUMAN = "human"
    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE|FOLDER...", help="Playbooks, folders of them; - is stdin."),
    ] = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse older forms too.")] = False,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="How to print: human on a terminal, else text."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="CODE", help="Say what a code means.")
    ] = None,
) -> None:
    """Check playbooks.

    Exit codes: 0 no errors, 1 errors, 2 wrong usage or a file that cannot be read.
    """
    if explain is not None:
        _explain(explain)
        return
    if not paths:
        raise CliError(
            "Name a playbook, or a folder.", way_out="noetl lint FILE", exit_code=ExitCode.USAGE
        )
    form = form or (Format.HUMAN if render.is_terminal() else Format.TEXT)
    files = [file for path in paths for file in files_of(path)]
    found: list[tuple[str, Problem]] = []
    sources: dict[str, str] = {}
    is_for_people = form in (Format.HUMAN, Format.TEXT)
    with show_spinner(f"Checking {_count(len(files), 'file')}", is_quiet=not is_for_people):
        for file in files:
            name = STANDARD_INPUT_NAME if file == inputs.STANDARD_INPUT else str(file)
            data = inputs.read_bytes(file, bytes_max=DOCUMENT_BYTES_MAX + 1)
            scripts = ScriptFolder.of_file(file)
            found += [(name, problem) for problem in check(data, strict=strict, scripts=scripts)]
            sources[name] = data.decode(errors="replace")
    _print(found, form, sources)
    errors = sum(1 for _, problem in found if problem.is_error)
    if is_for_people:
        _sum_up(len(files), errors=errors, warnings=len(found) - errors)
    if errors:
        raise typer.Exit(ExitCode.FAILED)


def files_of(path: Path) -> list[Path]:
    """List a file, or the playbooks below a folder; hidden folders are left out."""
    if path == inputs.STANDARD_INPUT or not path.is_dir():
        return [path]
    below = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in inputs.PLAYBOOK_SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if len(below) > FILES_MAX:
        raise CliError(
            f"{path} holds more than {FILES_MAX} playbooks.",
            way_out="Name its folders one by one.",
            exit_code=ExitCode.USAGE,
        )
    if not below:
        raise CliError(
            f"{path} holds no playbooks.",
            way_out=f"They end in {' or '.join(sorted(inputs.PLAYBOOK_SUFFIXES))}.",
            exit_code=ExitCode.USAGE,
        )
    return below


def check(data: bytes, *, strict: bool, scripts: ScriptFolder) -> list[Problem]:
    """Return every problem of every document in a file's bytes."""
    return mixed_text.read_bytes(
        data, level=level_of(strict), read_script=scripts.read_script
    ).problems


def level_of(strict: bool) -> Level:  # noqa: FBT001 (the flag of the command line itself)
    """Tell the level of a flag."""
    return Level.STRICT if strict else Level.TOLERANT


def _print(found: Found, form: Format, sources: dict[str, str]) -> None:
    match form:
        case Format.HUMAN:
            diagnostics.show(found, sources)
        case Format.TEXT:
            for line in diagnostics.text_lines(found):
                render.line(line)
        case Format.GITHUB:
            for line in diagnostics.github_lines(found):
                render.line(line)
        case Format.JSON:
            render.json_line(diagnostics.json_values(found))
        case Format.SARIF:
            render.json_line(diagnostics.sarif(found))


def _explain(word: str) -> None:
    code = CODES.get(word.upper())
    if code is None:
        raise CliError(
            f"There is no code {word!r}.",
            way_out=spelling.hint(word.upper(), CODES)
            or "docs/reference/language/problems.md lists them",
            exit_code=ExitCode.USAGE,
        )
    for line in (
        f"{code.code}: {code.title}.",
        code.advice,
        "",
        "wrong:",
        *(f"  {each}" for each in code.wrong.splitlines()),
        "right:",
        *(f"  {each}" for each in code.right.splitlines()),
    ):
        render.line(line)


def _sum_up(files: int, *, errors: int, warnings: int) -> None:
    checked = _count(files, "playbook file")
    if errors or warnings:
        render.note(f"{_count(errors, 'error')}, {_count(warnings, 'warning')} in {checked}.")
    else:
        render.note(f"{checked} checked: nothing to complain about.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
