"""`noetl explain`: how Spark planned a step, kept with its result."""

from typing import Any

from noetl_cli import terminal_output
from noetl_cli.commands.options import ExecutionArgument, LastStepArgument, Server
from noetl_cli.errors import CliError
from noetl_cli.local import history
from noetl_cli.planner import client, step_result
from noetl_cli.planner.step_result import PlannerResults

_KEY = "plan"


def explain(
    execution_id: ExecutionArgument,
    step: LastStepArgument = None,
    *,
    server: Server = None,
) -> None:
    """Show how Spark planned a step whose task has `explain: true`."""
    history.check_is_remote(execution_id, server=server)
    with client.open_client(server) as planner:
        source = PlannerResults(planner, execution_id)
        named = step_result.choose_step(source, execution_id, step)
        plan = find_plan(step_result.read_first_rows(source, named, rows_max=1).data)
    if plan is None:
        raise CliError(
            f"No plan is kept of step {named!r}.",
            way_out="Set explain: true on its task of kind spark that gives a table, and rerun it.",
        )
    terminal_output.print_text(plan)


def find_plan(data: Any) -> str | None:
    """Return the plan that a result holds, or those of its tables, if its task was to keep one."""
    if not isinstance(data, dict):
        return None
    if isinstance(data.get(_KEY), str):
        return str(data[_KEY])
    plans = [
        f"{name}:\n{table[_KEY]}"
        for name, table in data.items()
        if isinstance(table, dict) and "columns" in table and isinstance(table.get(_KEY), str)
    ]
    return "\n\n".join(plans) or None
