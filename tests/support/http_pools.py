"""All services in one process with a pool that is served over HTTP, and who asks it for work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct, structs
from tests.support.stranger import Stranger

from noetl_cli.local import system
from noetl_cli.local.system import LocalSystem
from noetl_contracts import codec, ids, subjects
from noetl_contracts.requests.facts import CommandLost, FactBatch
from noetl_messaging.streams.ports import Message
from noetl_planner.api import server
from noetl_planner.api.app import create_app

STEP = """
workload: {who: world}
workflow:
  - step: greet
    spec: {pool: edge}
    tool: {kind: python, input: {name: "{{ workload.who }}"}, code: "result = name"}
    next: {arcs: [{step: use}]}
  - step: use
    tool:
      kind: python
      input: {said: "{{ greet.text }}", n: "{{ ctx.n }}"}
      code: "result = [said, n]"
"""

FRAMES = """
workflow:
  - step: double
    spec: {pool: edge}
    loop:
      in: "{{ range(10) | list }}"
      iterator: n
      spec: {mode: chunked, chunk_size: 4, max_in_flight: 2, frame: {max_rows: 4}}
    tool: {kind: python, code: "result = n * 2"}
    next: {arcs: [{step: total}]}
  - step: total
    tool: {kind: python, input: {all: "{{ double.results }}"}, code: "result = all"}
"""


class World(Struct):
    """All services in this process, and the planner's address."""

    opened: LocalSystem
    http: httpx.AsyncClient

    def stranger(self, name: str = "rust-1") -> Stranger:
        return Stranger(self.http, name)

    async def lose(self, claim: dict[str, Any]) -> None:
        """Say what the reaper says when a lease has passed."""
        lease = claim["lease"]
        services = self.opened.services
        fact = CommandLost(
            command_id=lease["command_id"], attempt=lease["attempt"], reason="lease_expired"
        )
        batch = FactBatch(
            key=f"lost/{lease['command_id']}/{lease['attempt']}",
            execution_id=lease["execution_id"],
            **services.tenant_scope,
            producer="reaper",
            facts=[fact],
        )
        shard = ids.find_shard(lease["execution_id"], services.shards.shard_count)
        subject = subjects.build_ingest_subject(shard, **services.tenant_scope)
        await services.messages.publisher.publish_message(
            Message(subject=subject, message_id=batch.key, data=codec.encode_json(batch))
        )

    async def events(self, execution_id: Any) -> int:
        """Count the events of an execution."""
        head = await self.opened.adapters.ledger.find_head(execution_id)
        return 0 if head is None else head.version


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    """Run everything, with the pools `edge` and `other` served over HTTP."""
    configs = system.load_settings({"NOETL_AUTH": "off-on-loopback"}, folder)
    planner = structs.replace(configs.planner, pools=("default",), http_pools=("edge", "other"))
    configs = structs.replace(configs, planner=planner)
    async with system.open_system(configs) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(system.run_services(opened))
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        stop = opened.process.stop
        app = create_app(opened.services)
        serving = server.serve_api(
            app, host="127.0.0.1", port=0, stop=stop, started=port.set_result
        )
        tasks.create_task(serving)
        url = f"http://127.0.0.1:{await port}"
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            yield World(opened=opened, http=http)
        stop.set()


async def stage_of(world: World, execution_id: str) -> str:
    for _ in range(200):
        answer = await world.http.get(f"/api/executions/{execution_id}/stages")
        stages = answer.json()["stages"]
        if stages:
            return str(stages[0]["stage_id"])
        await asyncio.sleep(0.05)
    raise AssertionError("no stage was opened")
