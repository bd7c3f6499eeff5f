"""`noetl lint`: say everything that is wrong with playbooks, without any server."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files import command_inputs
from noetl_cli.files.playbook_file import ScriptFolder
from noetl_cli.terminal import diagnostics
from noetl_cli.terminal.diagnostics import FileProblems
from noetl_cli.terminal_output import show_spinner
from noetl_contracts import spelling
from noetl_playbook.parse import mixed_text
from noetl_playbook.parse.mixed_text import MixedText
from noetl_playbook.source.code_table import CODES
from noetl_playbook.source.problems import Level, Problem
from noetl_playbook.source.yaml_document import DOCUMENT_BYTES_MAX

FILES_MAX = 10_000
_SKIPPED_NAMED_MAX = 5
STANDARD_INPUT_NAME = "stdin"


class LintFormat(StrEnum):
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
        LintFormat | None,
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
        _explain_code(explain)
        return
    if not paths:
        raise CliError(
            "Name a playbook, or a folder.", way_out="noetl lint FILE", exit_code=ExitCode.USAGE
        )
    form = form or (LintFormat.HUMAN if terminal_output.is_terminal() else LintFormat.TEXT)
    files = [
        (file, path.is_dir() and path != command_inputs.STANDARD_INPUT)
        for path in paths
        for file in list_playbook_files(path)
    ]
    skipped: list[Path] = []
    file_problems: list[tuple[str, Problem]] = []
    sources: dict[str, str] = {}
    is_for_people = form in (LintFormat.HUMAN, LintFormat.TEXT)
    with show_spinner(f"Checking {_format_count(len(files), 'file')}", is_quiet=not is_for_people):
        for file, is_searched in files:
            name = STANDARD_INPUT_NAME if file == command_inputs.STANDARD_INPUT else str(file)
            data = command_inputs.read_file_bytes(file, bytes_max=DOCUMENT_BYTES_MAX + 1)
            scripts = ScriptFolder.from_file(file)
            mixed = read_bytes(data, strict=strict, scripts=scripts)
            if is_searched and mixed.is_foreign:
                skipped.append(file)
                continue
            file_problems += [(name, problem) for problem in mixed.all_problems]
            sources[name] = data.decode(errors="replace")
    _print_problems(file_problems, form, sources)
    errors = sum(1 for _, problem in file_problems if problem.is_error)
    if is_for_people:
        note_skipped(skipped)
        _print_totals(
            len(files) - len(skipped), errors=errors, warnings=len(file_problems) - errors
        )
    if errors:
        raise typer.Exit(ExitCode.FAILED)


def list_playbook_files(path: Path) -> list[Path]:
    """List a file, or the playbooks below a folder; hidden folders are left out."""
    if path == command_inputs.STANDARD_INPUT or not path.is_dir():
        return [path]
    below = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in command_inputs.PLAYBOOK_SUFFIXES
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
            way_out=f"They end in {' or '.join(sorted(command_inputs.PLAYBOOK_SUFFIXES))}.",
            exit_code=ExitCode.USAGE,
        )
    return below


def read_bytes(data: bytes, *, strict: bool, scripts: ScriptFolder) -> MixedText:
    """Read every document in a file's bytes, with its problems."""
    return mixed_text.read_mixed_bytes(
        data, level=choose_level(strict), read_script=scripts.read_script
    )


def note_skipped(files: list[Path]) -> None:
    """Say which files of a folder are no playbooks."""
    if files:
        named = ", ".join(str(file) for file in files[:_SKIPPED_NAMED_MAX])
        more = ", ..." if len(files) > _SKIPPED_NAMED_MAX else ""
        is_one = len(files) == 1
        text = "1 file is not a playbook" if is_one else f"{len(files):,} files are not playbooks"
        terminal_output.print_note(f"{text}, skipped: {named}{more}")


def choose_level(strict: bool) -> Level:  # noqa: FBT001 (the flag of the command line itself)
    """Tell the level of a flag."""
    return Level.STRICT if strict else Level.TOLERANT


def _print_problems(file_problems: FileProblems, form: LintFormat, sources: dict[str, str]) -> None:
    match form:
        case LintFormat.HUMAN:
            diagnostics.show_diagnostics(file_problems, sources)
        case LintFormat.TEXT:
            for line in diagnostics.format_text_lines(file_problems):
                terminal_output.print_line(line)
        case LintFormat.GITHUB:
            for line in diagnostics.format_github_lines(file_problems):
                terminal_output.print_line(line)
        case LintFormat.JSON:
            terminal_output.print_json(diagnostics.build_json_values(file_problems))
        case LintFormat.SARIF:
            terminal_output.print_json(diagnostics.build_sarif_log(file_problems))


def _explain_code(word: str) -> None:
    code = CODES.get(word.upper())
    if code is None:
        raise CliError(
            f"There is no code {word!r}.",
            way_out=spelling.suggest_word(word.upper(), CODES)
            or "docs/reference/language/problems.md lists them",
            exit_code=ExitCode.USAGE,
        )
    for line in (
        f"{code.code}: {code.title}.",
        code.advice,
        "",
        "wrong:",
        *(f"  {item}" for item in code.wrong.splitlines()),
        "right:",
        *(f"  {item}" for item in code.right.splitlines()),
    ):
        terminal_output.print_line(line)


def _print_totals(files: int, *, errors: int, warnings: int) -> None:
    checked = _format_count(files, "playbook file")
    if errors or warnings:
        terminal_output.print_note(
            f"{_format_count(errors, 'error')}, {_format_count(warnings, 'warning')} in {checked}."
        )
    else:
        terminal_output.print_note(f"{checked} checked: nothing to complain about.")


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
