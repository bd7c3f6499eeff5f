"""`python -m tests.support.killed_worker FOLDER`: tasks that start processes, until it is killed.

Each process of a task writes a file into the folder that is named after its number.
"""

import asyncio
import sys

from tests.support.calls import call_of
from tests.support.working import bench

TOUCH = "touch {folder}/$$; exec sleep 3600"
CODE = """\
import os, subprocess, time
subprocess.Popen(['/bin/sh', '-c', '{touch}'])
subprocess.Popen(['/bin/sh', '-c', '{touch}'], start_new_session=True)
open('{folder}/' + str(os.getpid()), 'w').close()
time.sleep(3600)
"""
SCRIPT = """\
sh -c '{touch}' &
setsid -f sh -c '{touch}'
touch {folder}/$$
trap '' TERM HUP
while :; do sleep 3600; done
"""


async def _run(folder: str) -> None:
    touch = TOUCH.format(folder=folder)
    code, script = (text.format(touch=touch, folder=folder) for text in (CODE, SCRIPT))
    async with bench(shell_allowed=True) as worker, asyncio.TaskGroup() as group:
        group.create_task(worker.tools.run(call_of("python", {"code": code}, timeout_s=3600)))
        group.create_task(worker.tools.run(call_of("shell", {"cmds": script}, timeout_s=3600)))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
