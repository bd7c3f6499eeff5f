"""`python -m tests.support.scratching`: a worker's tools, busy until the process is killed."""

import asyncio

from tests.support.attempting import site_of
from tests.support.working import bench

from noetl_worker.tools.calls.call import Call, Timeout

CODE = "open('left.txt', 'w').write('of a task')\nimport time\ntime.sleep(3600)"


async def _run() -> None:
    site = site_of()
    async with bench() as worker:
        await worker.tools.run(
            Call(
                site=site,
                task="t",
                kind="python",
                attempt=1,
                visit=1,
                fields={"code": CODE},
                input={},
                auth=None,
                timeout=Timeout(total=3600),
            )
        )


if __name__ == "__main__":
    asyncio.run(_run())
