"""`python -m tests.support.scratching`: a worker's tools, busy until the process is killed."""

import asyncio

from tests.support.working import EXECUTION, ORGANIZATION, TENANT, bench

from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.tools.calls.call import Call, Timeout

CODE = "open('left.txt', 'w').write('of a task')\nimport time\ntime.sleep(3600)"


async def _run() -> None:
    site = UnitScope(
        execution_id=EXECUTION,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        step="s",
        unit="step",
    )
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
