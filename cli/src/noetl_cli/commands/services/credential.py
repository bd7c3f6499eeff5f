"""`noetl credential`: put, list, test and remove credentials."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files import command_inputs
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_cli.terminal import error_text
from noetl_cli.terminal_output import show_spinner
from noetl_contracts.status import TERMINAL_EXECUTION, ExecutionStatus

# The step of a test's execution whose result is the outcome.
STEP = "test"
# How long one request waits for the end of the test: less than the client's own timeout.
WAIT_S = 20
POLL_S = 0.5
_CANCEL_REASON = "the test was given up"


class CredentialTest(Struct, frozen=True, kw_only=True):
    """The outcome of a test: the fields that it found, or its error."""

    execution_id: str
    found: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def run_credential_test(
    planner: PlannerClient, name: str, *, url: str | None, pool: str | None, timeout_s: float
) -> CredentialTest:
    """Ask for a test and wait for its end; raises `CliError` when it does not come in time."""
    deadline = time.monotonic() + timeout_s
    address = f"/api/credentials/{client.escape_segment(name)}/test"
    headers = {"Prefer": f"wait={max(1, min(WAIT_S, int(timeout_s)))}"}
    answer = planner.post(address, {"url": url, "pool": pool}, headers=headers)
    execution_id = str(answer["execution_id"])
    status = planner.get(f"/api/executions/{execution_id}/status")
    while ExecutionStatus(status["status"]) not in TERMINAL_EXECUTION:
        if time.monotonic() > deadline:
            planner.post(f"/api/executions/{execution_id}/cancel", {"reason": _CANCEL_REASON})
            raise CliError(
                f"No worker has ended the test of {name!r} within {timeout_s:g} s.",
                way_out="See whether the pool has workers: noetl pools",
                exit_code=ExitCode.TIMEOUT,
            )
        time.sleep(POLL_S)
        status = planner.get(f"/api/executions/{execution_id}/status")
    if not status["completed"]:
        return CredentialTest(execution_id=execution_id, error=status["error"] or {})
    result = planner.get(f"/api/result/{execution_id}/{STEP}")
    return CredentialTest(execution_id=execution_id, found=result["data"])


def show_credential_test(tested: CredentialTest, *, as_json: bool) -> None:
    """Print what was found; raises `typer.Exit` with 1 for an error."""
    if as_json:
        terminal_output.print_json(tested)
    elif tested.found is not None:
        rows = [(field, str(value)) for field, value in tested.found.items()]
        terminal_output.print_rows(("FIELD", "VALUE"), rows, nothing="Nothing was found.")
    else:
        for line in error_text.format_error_lines(tested.error or {}):
            terminal_output.print_note(line)
        terminal_output.print_note(f"  history: noetl events {tested.execution_id}")
    if tested.found is None:
        raise typer.Exit(ExitCode.FAILED)


app = typer.Typer(no_args_is_help=True, help="Keep, test, list and end credentials.")

POSTGRES = "postgres"
S3 = "s3"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name that playbooks use.")]


@app.command("put")
def put_credential(  # noqa: PLR0913 - one parameter for each option of the command line
    name: Name,
    *,
    kind: Annotated[
        str | None, typer.Option("--type", help="postgres, bearer, basic, api_key, generic, ...")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="A field as name=value; repeat it.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Fields as JSON or YAML; - is stdin.")
    ] = None,
    is_target: Annotated[
        bool,
        typer.Option("--target", help="The database of `noetl up` for your own data."),
    ] = False,
    is_bucket: Annotated[
        bool, typer.Option("--bucket", help="The bucket of `noetl up` for your own data.")
    ] = False,
    allow_path: Annotated[
        list[str] | None,
        typer.Option("--allow-path", help="Only for this playbook or folder; repeat it. / is all."),
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a credential; a name that exists gets a new version."""
    bucket = ""
    if is_target or is_bucket:
        own_kind = POSTGRES if is_target else S3
        if kind not in {None, own_kind} or data or file or server or (is_target and is_bucket):
            raise _build_wrong_options_error(
                f"{'--target' if is_target else '--bucket'} is a whole credential, of the stack on "
                "this machine.",
                "Leave out --type, --data, --file and --server; ask for one of both.",
            )
        kind, (bucket, fields) = own_kind, _read_stack_credential(own_kind)
    elif kind is None:
        raise _build_wrong_options_error(
            "A credential needs --type.", "Say --type postgres, bearer, ..."
        )
    else:
        fields = command_inputs.read_fields(data=data or [], file=file)
    with client.open_client(server) as planner:
        body = {"name": name, "type": kind, "data": fields}
        if allow_path:
            # A slash alone stands for all playbooks.
            folders = [path.strip("/") for path in allow_path]
            body["allowed_paths"] = [folder for folder in folders if folder]
        answer = planner.post("/api/credentials", body)
    if as_json:
        terminal_output.print_json(answer)
    else:
        allowed = ", ".join(answer["allowed_paths"])
        only = f", only for {allowed}" if allowed else ""
        terminal_output.print_line(
            f"{answer['name']} version {answer['version']} ({answer['type']}){only}"
            f"{f', of s3://{bucket}/' if bucket else ''}"
        )


def _read_stack_credential(kind: str) -> tuple[str, dict[str, Any]]:
    """Return the bucket of the stack for the user's own data, and fields; of its database none.

    Raises `CliError`, also where another planner than the stack's would get them.
    """
    own = client.get_target_bucket() if kind == S3 else ("", {"dsn": client.get_target_dsn()})
    client.check_stack_server()
    return own


def _build_wrong_options_error(text: str, way_out: str) -> CliError:
    return CliError(text, way_out=way_out, exit_code=ExitCode.USAGE)


@app.command("ls")
def list_credentials(*, server: Server = None, as_json: AsJson = False) -> None:
    """List credentials with the names of their fields; values never leave the planner."""
    with client.open_client(server) as planner:
        credentials = planner.get("/api/credentials")["credentials"]
    if as_json:
        terminal_output.print_json(credentials)
        return
    rows = [
        (
            credential["name"],
            credential["type"],
            f"v{credential['version']}",
            ", ".join(credential["fields"])
            if credential["fields"] is not None
            else "sealed with another key",
        )
        for credential in credentials
    ]
    terminal_output.print_rows(
        ("NAME", "TYPE", "VERSION", "FIELDS"), rows, nothing="No credentials."
    )


@app.command("test")
def check_credential(
    name: Name,
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="An address that wants it, or s3://BUCKET; kept in the history."
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Whose workers open it (default: default).")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, max=600, help="Seconds until it is given up.")
    ] = 90,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Have a worker open a credential, and say what it found.

    Exit codes: 0 it opens, 1 it does not or names no server, 2 the test is refused, 124 no worker
    has ended the test.
    """
    with (
        client.open_client(server) as planner,
        show_spinner(f"A worker tests {name}", is_quiet=as_json),
    ):
        tested = run_credential_test(planner, name, url=url, pool=pool, timeout_s=timeout_s)
    show_credential_test(tested, as_json=as_json)


@app.command("rm")
def remove_credential(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """End a credential: nothing opens it from now on."""
    with client.open_client(server) as planner:
        ended = planner.delete(f"/api/credentials/{client.escape_segment(name)}")
    if as_json:
        terminal_output.print_json(ended)
    else:
        terminal_output.print_line(f"{ended['name']} is ended.")
