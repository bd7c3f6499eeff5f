"""`noetl rerun`: run an execution again from a step on."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.executions import result, run
from noetl_cli.commands.executions.result import Output, Save
from noetl_cli.commands.executions.run import Follow, Key, Payload, Sets, SetsJson, Timeout
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.files import command_inputs
from noetl_cli.planner import client


def rerun(  # noqa: PLR0913 - one parameter for each option of the command line
    execution_id: ExecutionArgument,
    *,
    from_step: Annotated[
        str | None, typer.Option("--from", metavar="STEP", help="Default: the step that failed.")
    ] = None,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="Only the items of a loop that did not complete, and what follows it."
        ),
    ] = False,
    pinned: Annotated[
        bool,
        typer.Option("--pinned/--latest", help="The version that ran then, or the newest."),
    ] = True,
    sets: Sets = None,
    sets_json: SetsJson = None,
    payload: Payload = None,
    follow: Follow = True,
    timeout_s: Timeout = None,
    idempotency_key: Key = None,
    output: Output = None,
    save: Save = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Begin a new execution at a step of an earlier one.

    It has what the earlier one had before the step. With --failed the step is a loop, the first
    with items that did not complete: these run alone, and the results of the others are taken over.
    Exit codes are those of `noetl run`.
    """
    chosen_output = result.choose_output(output, save, follow=follow, as_json=as_json)
    inputs = command_inputs.read_inputs(payload=payload, sets=sets or [], sets_json=sets_json or [])
    body: dict[str, Any] = {"pinned": pinned, "workload": inputs}
    if failed:
        body["failed"] = True
    if from_step is not None:
        body["from_step"] = from_step
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    address = f"/api/executions/{client.escape_segment(execution_id)}/rerun"
    with client.open_client(server) as planner:
        answer = planner.post(address, body, headers=headers)
        if failed:
            terminal_output.print_note(
                f"step {answer['step']}: {answer['items_to_run']:,} items run again, "
                f"{answer['units_taken']:,} results are taken over"
            )
        run.watch_or_announce(
            answer, planner, chosen_output, follow=follow, timeout_s=timeout_s, as_json=as_json
        )
