"""`python -m tests.support.killed_worker NAP`: tasks that start processes, until it is killed.

Each task starts a process that sleeps for the nap, and another one in a session of its own.
"""

import asyncio
import sys

from tests.support.calls import call_of
from tests.support.working import bench

CODE = """\
import subprocess, time
subprocess.Popen(['/bin/sleep', '{nap}'])
subprocess.Popen(['/bin/sleep', '{nap}'], start_new_session=True)
time.sleep(3600)
"""
SCRIPT = """\
sleep {nap} &
setsid -f sleep {nap}
trap '' TERM HUP
while :; do sleep 3600; done
"""


async def _run(nap: str) -> None:
    code, script = (text.format(nap=nap) for text in (CODE, SCRIPT))
    async with bench(shell_allowed=True) as worker, asyncio.TaskGroup() as group:
        group.create_task(worker.tools.run(call_of("python", {"code": code}, timeout_s=3600)))
        group.create_task(worker.tools.run(call_of("shell", {"cmds": script}, timeout_s=3600)))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
