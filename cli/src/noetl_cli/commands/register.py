"""`noetl register`: put playbooks into the catalog."""

from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import client, inputs, render, subscription_files
from noetl_cli.client import Client, Refused
from noetl_cli.commands import lint
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.playbook_file import PlaybookFile
from noetl_cli.script_folder import ScriptFolder
from noetl_cli.spinner import show_spinner
from noetl_playbook import mixed_text
from noetl_playbook.mixed_text import MixedText
from noetl_playbook.parse import parse_all
from noetl_playbook.problems import Problem, text_form

PROBLEMS_SHOWN_MAX = 50
FOLDER_ADDRESS = "/api/catalog/register/folder"


def register(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER", help="Playbooks and subscriptions; - is standard input."
        ),
    ],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse older forms too.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Register playbooks, each as the next version of its path, and keep subscriptions.

    The same text keeps its version. Of a file with several documents, and of a folder with all that
    is below it, every playbook is registered, or none. Subscriptions are kept after them.
    """
    if file.is_dir():
        _register_folder(file, strict=strict, server=server, as_json=as_json)
        return
    mixed = _checked_texts([file], strict=strict)[file]
    found = subscription_files.list_subscriptions({file: mixed})
    answer: dict[str, Any] = {}
    with client.open_client(server) as planner:
        if mixed.playbooks:
            answer = put(planner, _playbooks_of(mixed), file=file, strict=strict)
        kept = subscription_files.put_all(planner, found)
    if as_json:
        render.json_line({**answer, "subscriptions": kept} if found else answer)
        return
    _show_registered([answer, *answer.get("others", ())] if answer else [])
    subscription_files.show(kept)


def _register_folder(folder: Path, *, strict: bool, server: str | None, as_json: bool) -> None:
    """Register what is below a folder in one call."""
    with show_spinner(f"Checking the playbooks of {folder}", is_quiet=as_json):
        texts = _checked_texts(lint.files_of(folder), strict=strict, folder=folder)
    found = subscription_files.list_subscriptions(texts)
    files = [
        {"name": str(file), **_playbooks_of(mixed).as_body()}
        for file, mixed in texts.items()
        if mixed.playbooks
    ]
    answer: dict[str, Any] = {"files": []}
    with client.open_client(server) as planner:
        try:
            if files:
                address = f"{FOLDER_ADDRESS}?level={lint.level_of(strict)}"
                with show_spinner(f"Registering {len(files)} files", is_quiet=as_json):
                    answer = planner.post(address, {"files": files})
        except Refused as refusal:
            _tell_diagnostics(refusal, file=folder)
            raise
        kept = subscription_files.put_all(planner, found)
    if as_json:
        render.json_line({**answer, "subscriptions": kept} if found else answer)
        return
    for one in answer["files"]:
        _show_registered(one["playbooks"])
    subscription_files.show(kept)
    render.note(f"{len(texts)} file{'' if len(texts) == 1 else 's'} registered from {folder}")


def _checked_texts(
    files: list[Path], *, strict: bool, folder: Path | None = None
) -> dict[Path, MixedText]:
    """Read and check every file before the first is sent; raises `CliError`."""
    texts: dict[Path, MixedText] = {}
    bad_files: list[Path] = []
    errors = 0
    for file in files:
        texts[file] = mixed_text.read_text(
            inputs.read_text(file),
            level=lint.level_of(strict),
            read_script=ScriptFolder.of_file(file).read_script,
        )
        problems = texts[file].problems
        show(problems, file=file)
        found = sum(1 for problem in problems if problem.is_error)
        errors += found
        bad_files += [file] if found else []
    if not bad_files:
        return texts
    if folder is None:
        raise _refused(bad_files[0], errors)
    raise CliError(
        f"{len(bad_files)} of {len(texts)} files of {folder} "
        f"{'has' if len(bad_files) == 1 else 'have'} errors; nothing was done.",
        way_out=f"noetl lint {folder}",
        exit_code=ExitCode.USAGE,
    )


def _show_registered(playbooks: list[dict[str, Any]]) -> None:
    for one in playbooks:
        render.line(f"{one['path']} version {one['version']}")


def _playbooks_of(mixed: MixedText) -> PlaybookFile:
    return PlaybookFile(text=mixed.playbook_text, script_by_name=mixed.script_by_name)


def checked(file: Path, *, strict: bool = False) -> PlaybookFile:
    """Read playbooks and check them here; problems are told with their lines."""
    text = inputs.read_text(file)
    read_script = ScriptFolder.of_file(file).read_script
    parsed = parse_all(text, level=lint.level_of(strict), read_script=read_script)
    problems = [problem for one in parsed for problem in one.problems]
    show(problems, file=file)
    errors = sum(1 for problem in problems if problem.is_error)
    if errors:
        raise _refused(file, errors)
    scripts = {name: one.script_by_name[name] for one in parsed for name in one.script_by_name}
    return PlaybookFile(text=text, script_by_name=scripts)


def _refused(file: Path, errors: int) -> CliError:
    return CliError(
        f"{file} has {errors} error{'' if errors == 1 else 's'}; nothing was done.",
        way_out=f"noetl lint {file}",
        exit_code=ExitCode.USAGE,
    )


def put(
    planner: Client, playbooks: PlaybookFile, *, file: Path, strict: bool = False
) -> dict[str, Any]:
    """Register the playbooks of a file."""
    address, level = "/api/catalog/register", str(lint.level_of(strict))
    answer: dict[str, Any]
    try:
        if playbooks.script_by_name:
            answer = planner.post(f"{address}?level={level}", playbooks.as_body())
        else:
            answer = planner.post_text(address, playbooks.text, level=level)
    except Refused as refusal:
        _tell_diagnostics(refusal, file=file)
        raise
    return answer


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
