"""`noetl register`: checks playbooks and subscription documents of files, and stores them."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.commands.playbooks import lint
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files import command_inputs
from noetl_cli.files.playbook_file import PlaybookFile, ScriptFolder
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient, PlannerRefusal
from noetl_cli.terminal_output import show_spinner
from noetl_playbook.parse import mixed_text
from noetl_playbook.parse.mixed_text import MixedText
from noetl_playbook.parse.playbook import parse_playbooks
from noetl_playbook.parse.subscriptions import Subscription
from noetl_playbook.source.problems import Problem, format_problem


def list_subscriptions(texts: Mapping[Path, MixedText]) -> list[Subscription]:
    """List the subscriptions of files without errors; raises `CliError` for a name used twice."""
    file_by_name: dict[str, Path] = {}
    subscriptions: list[Subscription] = []
    for file, mixed in texts.items():
        for parsed_text in mixed.subscriptions:
            assert parsed_text.subscription is not None, "files with errors are refused before"
            name = parsed_text.subscription.name
            if name in file_by_name:
                raise CliError(
                    f"Subscription {name!r} stands in {file_by_name[name]} and in {file}; "
                    "nothing was done.",
                    way_out="Give each a metadata.name of its own.",
                    exit_code=ExitCode.USAGE,
                )
            file_by_name[name] = file
            subscriptions.append(parsed_text.subscription)
    return subscriptions


def put_subscriptions(
    planner: PlannerClient, subscriptions: Sequence[Subscription]
) -> list[dict[str, Any]]:
    """Keep each subscription under its name; says which were kept before one is refused.

    Raises `CliError` that names the field which is refused.
    """
    stored: list[dict[str, Any]] = []
    for subscription in subscriptions:
        try:
            stored.append(_put_subscription(planner, subscription))
        except PlannerRefusal as refusal:
            show_subscriptions(stored)
            left_count = len(subscriptions) - len(stored) - 1
            if left_count:
                terminal_output.print_note(
                    f"{left_count} more behind it {'was' if left_count == 1 else 'were'} not sent."
                )
            raise _build_subscription_refused_error(subscription, refusal) from refusal
    return stored


def _build_subscription_refused_error(
    subscription: Subscription, refusal: PlannerRefusal
) -> CliError:
    field = _find_field(refusal)
    place = f", field {field}" if field else ""
    return CliError(
        f"Subscription {subscription.name!r}{place}: {refusal.message}. "
        "It is not kept; what this call registered before it stays.",
        way_out=refusal.way_out or "Correct the file and register it again.",
        exit_code=refusal.exit_code,
    )


def _find_field(refusal: PlannerRefusal) -> str | None:
    """Name the field of the document that a planner's refusal is about, None if it is not known."""
    if refusal.status == HTTPStatus.NOT_FOUND:
        return "spec.dispatch"
    if refusal.code == "template_refused":
        is_filter = refusal.message.startswith("filter:")
        return "spec.filter" if is_filter else "spec.dispatch.input"
    return "spec.source.subject" if refusal.code == "subject_taken" else None


def show_subscriptions(subscriptions: Sequence[Mapping[str, Any]]) -> None:
    """Say what each subscription starts."""
    for item in subscriptions:
        state = "" if item["enabled"] else " (paused)"
        terminal_output.print_line(
            f"subscription {item['name']}: messages of {item['publish_to']} "
            f"start {item['path']}{state}"
        )


def _put_subscription(planner: PlannerClient, subscription: Subscription) -> dict[str, Any]:
    body: dict[str, Any] = {
        "subject": subscription.source.subject,
        "path": subscription.dispatch.playbook,
        "version": subscription.dispatch.version,
        "inputs": subscription.dispatch.input,
        "body_bytes_max": subscription.body_bytes_max,
        "enabled": subscription.enabled,
    }
    if subscription.filter is not None:
        # Planners of before do not know it.
        body["filter"] = subscription.filter
    if subscription.max_in_flight is not None:
        body["max_in_flight"] = subscription.max_in_flight
    answer: dict[str, Any] = planner.put(
        f"/api/triggers/{client.escape_segment(subscription.name)}", body
    )
    return answer


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
    mixed = _read_checked_texts([file], strict=strict)[file]
    subscriptions = list_subscriptions({file: mixed})
    answer: dict[str, Any] = {}
    with client.open_client(server) as planner:
        if mixed.playbooks:
            answer = put_playbooks(planner, _playbook_file(mixed), file=file, strict=strict)
        stored = put_subscriptions(planner, subscriptions)
    if as_json:
        terminal_output.print_json({**answer, "subscriptions": stored} if subscriptions else answer)
        return
    _show_registered([answer, *answer.get("others", ())] if answer else [])
    show_subscriptions(stored)


def _register_folder(folder: Path, *, strict: bool, server: str | None, as_json: bool) -> None:
    """Register what is below a folder in one call."""
    with show_spinner(f"Checking the playbooks of {folder}", is_quiet=as_json):
        texts = _read_checked_texts(lint.list_playbook_files(folder), strict=strict, folder=folder)
    subscriptions = list_subscriptions(texts)
    files = [
        {"name": str(file), **_playbook_file(mixed).build_body()}
        for file, mixed in texts.items()
        if mixed.playbooks
    ]
    answer: dict[str, Any] = {"files": []}
    with client.open_client(server) as planner:
        try:
            if files:
                address = f"{FOLDER_ADDRESS}?level={lint.choose_level(strict)}"
                with show_spinner(f"Registering {len(files)} files", is_quiet=as_json):
                    answer = planner.post(address, {"files": files})
        except PlannerRefusal as refusal:
            _print_diagnostics(refusal, file=folder)
            raise
        stored = put_subscriptions(planner, subscriptions)
    if as_json:
        terminal_output.print_json({**answer, "subscriptions": stored} if subscriptions else answer)
        return
    for item in answer["files"]:
        _show_registered(item["playbooks"])
    show_subscriptions(stored)
    terminal_output.print_note(
        f"{len(texts)} file{'' if len(texts) == 1 else 's'} registered from {folder}"
    )


def _read_checked_texts(
    files: list[Path], *, strict: bool, folder: Path | None = None
) -> dict[Path, MixedText]:
    """Read and check every file before the first is sent; raises `CliError`."""
    texts: dict[Path, MixedText] = {}
    bad_files: list[Path] = []
    skipped: list[Path] = []
    errors = 0
    for file in files:
        mixed = mixed_text.read_mixed_text(
            command_inputs.read_file_text(file),
            level=lint.choose_level(strict),
            read_script=ScriptFolder.from_file(file).read_script,
        )
        if folder is not None and mixed.is_foreign:
            skipped.append(file)
            continue
        texts[file] = mixed
        problems = mixed.all_problems
        show_problems(problems, file=file)
        count = sum(1 for problem in problems if problem.is_error)
        errors += count
        bad_files += [file] if count else []
    lint.note_skipped(skipped)
    if not bad_files:
        return texts
    if folder is None:
        raise _build_errors_found_error(bad_files[0], errors)
    raise CliError(
        f"{len(bad_files)} of {len(texts)} files of {folder} "
        f"{'has' if len(bad_files) == 1 else 'have'} errors; nothing was done.",
        way_out=f"noetl lint {folder}",
        exit_code=ExitCode.USAGE,
    )


def _show_registered(playbooks: list[dict[str, Any]]) -> None:
    for playbook in playbooks:
        terminal_output.print_line(f"{playbook['path']} version {playbook['version']}")


def _playbook_file(mixed: MixedText) -> PlaybookFile:
    return PlaybookFile(text=mixed.playbook_text, script_by_name=mixed.script_by_name)


def read_checked_file(file: Path, *, strict: bool = False) -> PlaybookFile:
    """Read playbooks and check them here; problems are told with their lines."""
    text = command_inputs.read_file_text(file)
    read_script = ScriptFolder.from_file(file).read_script
    parsed = parse_playbooks(text, level=lint.choose_level(strict), read_script=read_script)
    problems = [problem for item in parsed for problem in item.problems]
    show_problems(problems, file=file)
    errors = sum(1 for problem in problems if problem.is_error)
    if errors:
        raise _build_errors_found_error(file, errors)
    scripts = {name: item.script_by_name[name] for item in parsed for name in item.script_by_name}
    return PlaybookFile(text=text, script_by_name=scripts)


def _build_errors_found_error(file: Path, errors: int) -> CliError:
    return CliError(
        f"{file} has {errors} error{'' if errors == 1 else 's'}; nothing was done.",
        way_out=f"noetl lint {file}",
        exit_code=ExitCode.USAGE,
    )


def put_playbooks(
    planner: PlannerClient, playbooks: PlaybookFile, *, file: Path, strict: bool = False
) -> dict[str, Any]:
    """Register the playbooks of a file."""
    address, level = "/api/catalog/register", str(lint.choose_level(strict))
    answer: dict[str, Any]
    try:
        if playbooks.script_by_name:
            answer = planner.post(f"{address}?level={level}", playbooks.build_body())
        else:
            answer = planner.post_text(address, playbooks.text, level=level)
    except PlannerRefusal as refusal:
        _print_diagnostics(refusal, file=file)
        raise
    return answer


def _print_diagnostics(refusal: PlannerRefusal, *, file: Path) -> None:
    """Tell what the planner found: it may be of another release and know more."""
    for problem in refusal.diagnostics[:PROBLEMS_SHOWN_MAX]:
        place = f"{problem.get('file') or file}:{problem.get('line')}:{problem.get('column')}"
        terminal_output.print_note(f"{place}: {problem.get('code')}: {problem.get('message')}")
    more = len(refusal.diagnostics) - PROBLEMS_SHOWN_MAX
    if more > 0:
        terminal_output.print_note(f"{more} more problems are not shown")


def show_problems(problems: list[Problem], *, file: Path) -> None:
    """Tell errors line by line, and how many warnings there are."""
    errors = [problem for problem in problems if problem.is_error]
    for problem in errors[:PROBLEMS_SHOWN_MAX]:
        terminal_output.print_note(format_problem(problem, file=str(file)))
    warnings = len(problems) - len(errors)
    if warnings:
        plural = "" if warnings == 1 else "s"
        terminal_output.print_note(f"{warnings} warning{plural}: noetl lint {file}")
