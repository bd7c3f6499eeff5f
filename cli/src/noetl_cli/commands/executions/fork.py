"""`noetl fork`: go on from any past position of an execution, as a new one."""

from typing import Annotated, Any

import typer

from noetl_cli.commands.executions import result, run
from noetl_cli.commands.executions.result import Output, Save
from noetl_cli.commands.executions.run import Follow, Key, Payload, Sets, SetsJson, Timeout
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.files import command_inputs
from noetl_cli.planner import client


def fork(  # noqa: PLR0913 - one parameter for each option of the command line
    execution_id: ExecutionArgument,
    *,
    at: Annotated[int | None, typer.Option("--at", min=1, help="From this position.")] = None,
    event: Annotated[str | None, typer.Option("--event", help="From this event.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="From this time.")] = None,
    from_step: Annotated[
        str | None, typer.Option("--from", metavar="STEP", help="Default: the one that was live.")
    ] = None,
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
    """Begin a new execution with the state that an earlier one had at a position.

    Exit codes are those of `noetl run`.
    """
    chosen_output = result.choose_output(output, save, follow=follow, as_json=as_json)
    inputs = command_inputs.read_inputs(payload=payload, sets=sets or [], sets_json=sets_json or [])
    fork_request: dict[str, Any] = {
        "as_of_position": at,
        "as_of_event_id": event,
        "as_of_time": time,
        "from_step": from_step,
    }
    body = {"pinned": pinned, "workload": inputs}
    body |= {name: value for name, value in fork_request.items() if value is not None}
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    address = f"/api/executions/{client.escape_segment(execution_id)}/fork"
    with client.open_client(server) as planner:
        answer = planner.post(address, body, headers=headers)
        run.watch_or_announce(
            answer, planner, chosen_output, follow=follow, timeout_s=timeout_s, as_json=as_json
        )
