"""`noetl run`: run a playbook and watch it."""

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.executions import cancel
from noetl_cli.commands.executions import result as results
from noetl_cli.commands.executions.result import Output, ResultForm, ResultOutput, Save
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.commands.playbooks import register
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files import command_inputs, run_request
from noetl_cli.files.playbook_file import PlaybookFile
from noetl_cli.files.run_request import RunRequest
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient, PlannerRefusal
from noetl_cli.planner.execution_stream import ExecutionStream
from noetl_cli.planner.step_result import PlannerResults
from noetl_cli.terminal import watch
from noetl_cli.terminal.watch import WatchRequest
from noetl_cli.terminal_output import show_spinner
from noetl_contracts.commands.worker_pools import Priority
from noetl_playbook.parse.playbook import parse_playbooks

CANCEL_REASON = "cancelled at the terminal"
# Every service hangs on it: loaded for a run in this process alone.
RUNNER = "noetl_cli.local.runner"
# Its payloads go away with the run.
AGAIN_HERE = "noetl run FILE -r local --save RESULT.json"


class Runtime(StrEnum):
    """Where the playbook runs."""

    SERVER = "server"
    LOCAL = "local"


Playbook = Annotated[
    str | None, typer.Argument(metavar="FILE|PATH", help="A file, or a registered path.")
]
Sets = Annotated[list[str] | None, typer.Option("--set", help="An input as name=value; repeat it.")]
SetsJson = Annotated[
    list[str] | None, typer.Option("--set-json", help="An input as name=JSON; repeat it.")
]
Payload = Annotated[
    Path | None, typer.Option("--payload", help="Inputs as JSON or YAML; - is stdin.")
]
Follow = Annotated[
    bool, typer.Option("--follow/--detach", help="Watch until the end, or leave at once.")
]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0.1, help="Seconds to watch.")]
Key = Annotated[
    str | None, typer.Option("--idempotency-key", help="The same key never runs twice.")
]
Version = Annotated[int | None, typer.Option("--version", min=1, help="Of a registered path.")]
Pool = Annotated[
    str | None, typer.Option("--pool", help="Whose workers run steps that name no pool.")
]
Urgency = Annotated[
    Priority | None, typer.Option("--priority", help="Of steps that name no priority.")
]
Attach = Annotated[
    str | None, typer.Option("--attach", metavar="ID", help="Watch an execution again.")
]
Register = Annotated[
    bool,
    typer.Option("--register", help="Register the file first, and run it as its new version."),
]
Where = Annotated[
    Runtime, typer.Option("--runtime", "-r", help="On the server, or in this process.")
]
Credentials = Annotated[
    Path | None,
    typer.Option("--credentials", help="For -r local: a file of names, each with its fields."),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="A file that steps find by this name, or as NAME=PATH; repeat it.",
    ),
]
Others = Annotated[
    list[Path] | None,
    typer.Option("--with", help="A playbook that this one calls, or a folder of them; repeat it."),
]
Listen = Annotated[
    int | None,
    typer.Option(
        "--listen",
        min=1,
        max=65535,
        metavar="PORT",
        help="For -r local: take signals, callbacks and approvals there.",
    ),
]


def run(  # noqa: PLR0913 - one parameter for each option of the command line
    playbook: Playbook = None,
    *,
    sets: Sets = None,
    sets_json: SetsJson = None,
    payload: Payload = None,
    follow: Follow = True,
    timeout_s: Timeout = None,
    idempotency_key: Key = None,
    version: Version = None,
    is_registered: Register = False,
    pool: Pool = None,
    priority: Urgency = None,
    attach: Attach = None,
    runtime: Where = Runtime.SERVER,
    credentials: Credentials = None,
    others: Others = None,
    files: Files = None,
    listen: Listen = None,
    output: Output = None,
    save: Save = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Run a playbook and watch it; Ctrl-C leaves it running, twice cancels it.

    A file runs as a draft: what schedules, webhooks and other playbooks run stays as it is. It ends
    with the result of the last step; with --output json standard output holds nothing else.

    Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 cancelled, 4 completed with failed rows or
    items, 124 not over in time.
    """
    _check_usage(playbook, attach=attach, runtime=runtime, files=files or [])
    chosen_output = results.choose_output(output, save, follow=follow, as_json=as_json)
    inputs = command_inputs.read_inputs(payload=payload, sets=sets or [], sets_json=sets_json or [])
    file = Path(playbook) if playbook and command_inputs.looks_like_file(playbook) else None
    # What is wrong with a file shows before any server is asked.
    text = None if file is None else register.read_checked_file(file)
    run_files = run_request.find_files(files or [])
    called = {
        path: register.read_checked_file(path)
        for path in command_inputs.list_playbook_files(others or [])
    }
    if runtime is Runtime.LOCAL:
        local_run = RunRequest(
            source=text or PlaybookFile(text=""),
            others=list(called.values()),
            listens_at=listen,
            inputs=inputs,
            credentials=command_inputs.read_credentials(credentials),
            files=run_files,
        )
        raise typer.Exit(
            _run_locally(local_run, chosen_output, timeout_s=timeout_s, as_json=as_json)
        )
    _check_registration(text, called, file=file, is_registered=is_registered)
    with client.open_client(server) as planner:
        if attach is not None:
            raise typer.Exit(
                _watch_execution(
                    planner, attach, chosen_output, timeout_s=timeout_s, as_json=as_json
                )
            )
        body: dict[str, Any] = {"path": str(playbook), "version": version}
        if file is not None and text is not None:
            body = text.build_body()
            if is_registered:
                body = _register_files(planner, {**called, file: text}, file=file)
        body |= {"workload": inputs, "pool": pool, "priority": priority}
        # Planners of before do not know files.
        body |= {"files": run_request.send_files(planner, run_files)} if run_files else {}
        answer = _start_execution(planner, body, key=idempotency_key)
        watch_or_announce(
            answer, planner, chosen_output, follow=follow, timeout_s=timeout_s, as_json=as_json
        )


def watch_or_announce(
    answer: dict[str, Any],
    planner: PlannerClient,
    result_output: ResultOutput,
    *,
    follow: bool,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Watch an accepted execution to its end, or say how to; raises `typer.Exit` at the end."""
    if follow:
        _announce_start(answer)
        execution_id = answer["execution_id"]
        raise typer.Exit(
            _watch_execution(
                planner, execution_id, result_output, timeout_s=timeout_s, as_json=as_json
            )
        )
    if as_json:
        terminal_output.print_json(answer)
    else:
        show_warnings(answer.get("warnings", []))
        terminal_output.print_line(answer["execution_id"])
        terminal_output.print_note(f"Watch it: noetl run --attach {answer['execution_id']}")


def _check_usage(
    playbook: str | None, *, attach: str | None, runtime: Runtime, files: list[str]
) -> None:
    """Refuse what cannot be meant."""
    if (playbook is None) == (attach is None):
        raise CliError(
            "Name a playbook, or an execution to attach to.",
            way_out="noetl run FILE, or noetl run --attach ID",
            exit_code=ExitCode.USAGE,
        )
    if attach is not None and files:
        raise CliError(
            "An execution takes files with it when it begins.",
            way_out="noetl run FILE --file PATH",
            exit_code=ExitCode.USAGE,
        )
    is_local = runtime is Runtime.LOCAL
    if command_inputs.is_unmistakable_folder(playbook or "") or (
        is_local and command_inputs.is_folder(playbook or "")
    ):
        raise command_inputs.build_folder_refused_error(playbook or "")
    if is_local and not command_inputs.looks_like_file(playbook or ""):
        raise CliError(
            "A run in this process needs a file.",
            way_out="noetl run FILE -r local",
            exit_code=ExitCode.USAGE,
        )


def _check_registration(
    text: PlaybookFile | None,
    called: dict[Path, PlaybookFile],
    *,
    file: Path | None,
    is_registered: bool,
) -> None:
    """Refuse what only registering could do: other playbooks are found by path."""
    if is_registered and file is None:
        raise CliError(
            "--register needs a file.",
            way_out="noetl run FILE --register",
            exit_code=ExitCode.USAGE,
        )
    several = text is not None and len(parse_playbooks(text.text)) > 1
    if (called or several) and not is_registered:
        others = "--with" if called else f"{file} holds several playbooks, which"
        raise CliError(
            f"{others} would have to be registered: a playbook finds those that it calls by path.",
            way_out="register them first with noetl register FILE, or add --register",
            exit_code=ExitCode.USAGE,
        )


def _register_files(
    planner: PlannerClient, texts: dict[Path, PlaybookFile], *, file: Path
) -> dict[str, Any]:
    """Register a file behind those that it calls, and name its version."""
    answers = {
        item: register.put_playbooks(planner, text, file=item) for item, text in texts.items()
    }
    return {name: answers[file][name] for name in ("path", "version")}


def _start_execution(
    planner: PlannerClient, body: dict[str, Any], *, key: str | None
) -> dict[str, Any]:
    """Ask for an execution, leaving out what is None; it is durable when this returns."""
    headers = {} if key is None else {"Idempotency-Key": key}
    fields = {name: value for name, value in body.items() if value is not None}
    try:
        answer: dict[str, Any] = planner.post("/api/execute", fields, headers=headers)
    except PlannerRefusal as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND and command_inputs.is_folder(
            body.get("path") or ""
        ):
            raise command_inputs.build_folder_refused_error(body["path"]) from refusal
        raise
    return answer


def _run_locally(
    run_request: RunRequest, result_output: ResultOutput, *, timeout_s: float | None, as_json: bool
) -> ExitCode:
    """Run and watch in this process; leaving is cancelling."""
    with ExitStack() as stack:
        is_quiet = as_json or result_output.form is ResultForm.JSON
        with show_spinner("The services of this run start", is_quiet=is_quiet):
            runner = importlib.import_module(RUNNER)
            opened = runner.open_run(run_request, settings.copy_environment())
            running, execution_id = stack.enter_context(opened)
        return watch.watch_execution(
            WatchRequest(
                execution_id=execution_id,
                events=running.events,
                cancel=running.cancel,
                answering=None
                if run_request.listens_at is None
                else f" --server http://127.0.0.1:{run_request.listens_at}",
                timeout_s=timeout_s,
                as_json=as_json,
                is_aside=result_output.form is ResultForm.JSON,
                has_history=lambda: running.has_history,
                show_result=partial(
                    results.show_last_result, running, execution_id, result_output, whole=AGAIN_HERE
                ),
            )
        )


def _announce_start(answer: dict[str, Any]) -> None:
    again = ", which this key began before" if answer["deduplicated"] else ""
    terminal_output.print_note(
        f"execution {answer['execution_id']} of {answer['path']} "
        f"{terminal_output.format_version(answer['version'])}{again}"
    )
    show_warnings(answer.get("warnings", []))


def show_warnings(warnings: list[str]) -> None:
    """Tell what was given to a playbook that does not use it."""
    for warning in warnings:
        terminal_output.print_note(f"warning: {warning}")


def _watch_execution(
    planner: PlannerClient,
    execution_id: str,
    result_output: ResultOutput,
    *,
    timeout_s: float | None,
    as_json: bool,
) -> ExitCode:
    stop: Callable[[], Any] = partial(
        cancel.request_cancel, planner, execution_id, reason=CANCEL_REASON
    )
    source = PlannerResults(planner, execution_id)
    whole = f"noetl result {execution_id} --output json"
    return watch.watch_execution(
        WatchRequest(
            execution_id=execution_id,
            events=ExecutionStream(planner, execution_id).read_events,
            cancel=stop,
            timeout_s=timeout_s,
            as_json=as_json,
            attach=f"noetl run --attach {execution_id}",
            is_aside=result_output.form is ResultForm.JSON,
            show_result=partial(
                results.show_last_result, source, execution_id, result_output, whole=whole
            ),
        )
    )
