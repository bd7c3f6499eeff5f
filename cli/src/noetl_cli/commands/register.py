"""`noetl register`: put playbooks into the catalog."""

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
FOLDER_ADDRESS = "/api/catalog/register/folder"


def register(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|FOLDER", help="Playbooks; - is standard input.")
    ],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse older forms too.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Register playbooks, each as the next version of its path.

    The same text keeps its version. Of a file with several documents, and of a folder with all that
    is below it, every playbook is registered, or none.
    """
    if file.is_dir():
        _register_folder(file, strict=strict, server=server, as_json=as_json)
        return
    text = checked(file, strict=strict)
    with client.open_client(server) as planner:
        answer = put(planner, text, file=file, strict=strict)
    if as_json:
        render.json_line(answer)
    else:
        _show_registered([answer, *answer.get("others", ())])


def _register_folder(folder: Path, *, strict: bool, server: str | None, as_json: bool) -> None:
    """Register what is below a folder in one call."""
    texts = _checked_folder(folder, strict=strict)
    files = [{"name": str(file), "content": text} for file, text in texts.items()]
    with client.open_client(server) as planner:
        try:
            answer = planner.post(f"{FOLDER_ADDRESS}?level={_level(strict)}", {"files": files})
        except Refused as refusal:
            _tell_diagnostics(refusal, file=folder)
            raise
    if as_json:
        render.json_line(answer)
        return
    for one in answer["files"]:
        _show_registered(one["playbooks"])
    render.note(f"{len(texts)} file{'' if len(texts) == 1 else 's'} registered from {folder}")


def _checked_folder(folder: Path, *, strict: bool) -> dict[Path, str]:
    """Read and check every playbook below a folder before the first is sent."""
    texts: dict[Path, str] = {}
    bad_files = 0
    for file in lint.files_of(folder):
        texts[file] = inputs.read_text(file)
        problems = lint.check_text(texts[file], strict=strict)
        show(problems, file=file)
        bad_files += any(problem.is_error for problem in problems)
    if bad_files:
        raise CliError(
            f"{bad_files} of {len(texts)} files of {folder} "
            f"{'has' if bad_files == 1 else 'have'} errors; nothing was done.",
            way_out=f"noetl lint {folder}",
            exit_code=ExitCode.USAGE,
        )
    return texts


def _show_registered(playbooks: list[dict[str, Any]]) -> None:
    for one in playbooks:
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
    try:
        answer: dict[str, Any] = planner.post_text(
            "/api/catalog/register", text, level=_level(strict)
        )
    except Refused as refusal:
        _tell_diagnostics(refusal, file=file)
        raise
    return answer


def _level(strict: bool) -> str:  # noqa: FBT001 (the flag of the command line itself)
    return "strict" if strict else "tolerant"


def _tell_diagnostics(refusal: Refused, *, file: Path) -> None:
    """Tell what the planner found: it may be of another release and know more."""
    for problem in refusal.diagnostics[:PROBLEMS_SHOWN_MAX]:
        place = f"{problem.get('file') or file}:{problem.get('line')}:{problem.get('column')}"
        render.note(f"{place}: {problem.get('code')}: {problem.get('message')}")
    more = len(refusal.diagnostics) - PROBLEMS_SHOWN_MAX
    if more > 0:
        render.note(f"{more} more problems are not shown")


def show(problems: list[Problem], *, file: Path) -> None:
    """Tell errors line by line, and how many warnings there are."""
    errors = [problem for problem in problems if problem.is_error]
    for problem in errors[:PROBLEMS_SHOWN_MAX]:
        render.note(text_form(problem, file=str(file)))
    warnings = len(problems) - len(errors)
    if warnings:
        plural = "" if warnings == 1 else "s"
        render.note(f"{warnings} warning{plural}: noetl lint {file}")
