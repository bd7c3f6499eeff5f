"""The `noop` tool: no work, but policies and `set`."""

from noetl_worker.tools.calls.call import Call, Outcome


async def run_noop(call: Call) -> Outcome:
    """Return the task's `result`, or an empty mapping."""
    return Outcome(data=call.fields.get("result", {}))
