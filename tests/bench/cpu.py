"""CPU seconds of a running stack, by part."""

import psutil
from tests.support.stack import Stack


def spent(stack: Stack, **others: int) -> dict[str, float]:
    """Count CPU seconds so far, by part; a process's children, also ended ones, count with it.

    `others` are processes beside the stack's, by name.
    """
    state = stack.state["processes"]
    pids = {name: found["pid"] for name, found in state.items() if found["pid"]} | others
    seconds: dict[str, float] = {}
    for name, pid in pids.items():
        part = name.rpartition("-")[0] or name
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            times = each.cpu_times()
            ended = times.children_user + times.children_system
            seconds[part] = seconds.get(part, 0.0) + times.user + times.system + ended
    return seconds
