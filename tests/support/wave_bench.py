"""Frames for waves: a worker's spark lane over a store that executors reach too."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from tests.support.working import KEY, ORGANIZATION, RUN, TENANT, command_of, frame_of, step_of

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec
from noetl_contracts.commands.command_work import SPARK_LANE, Command
from noetl_contracts.ids import WorkerId
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.requests.facts import Fact
from noetl_storage.payloads.filesystem import FilesystemPayloads
from noetl_storage.payloads.thread_runner import ThreadRunner
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.executor_entry import run_partition
from noetl_worker.executor_environ import build_told_entry
from noetl_worker.spark.session import SharedSparkSession
from noetl_worker.spark.wave_runner import WaveLimits, WaveRunner

# Sums each frame; a row below zero fails its frame.
SUM = """
- step: s
  loop:
    in: "{{ workload.rows }}"
    iterator: row
    spec: {mode: chunked, chunk_size: 5, frame: {process: frame}}
  tool:
    kind: python
    input: {rows: "{{ iter.row }}"}
    code: |
      if any(row['n'] < 0 for row in rows):
          raise ValueError('a row below zero')
      return sum(row['n'] for row in rows)
"""

WORKER = WorkerId("worker-of-waves")


def executor_environ(folder: Path) -> dict[str, str]:
    """The variables that an executor's process has to have."""
    return {
        "NOETL_WORKER_NATS_URL": "nats://127.0.0.1:1",
        "NOETL_WORKER_PAYLOAD_URL": f"file://{folder}",
        "NOETL_WORKER_SECRET_KEY": KEY,
        "NOETL_WORKER_PYTHON_PROCESSES_MAX": "1",
    }


class WaveBench(Struct, frozen=True, kw_only=True):
    """Waves over a real session, and what its frames read."""

    waves: WaveRunner
    payloads: Payloads

    async def collection(self, items: list[Any]) -> PayloadRef:
        """Store what frames take their slices of."""
        return await self.payloads.put_payload(
            codec.encode_json(items),
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            media_type=JSON_MEDIA_TYPE,
            row_count=len(items),
        )


def frames_of(
    step: str, reference: PayloadRef, *, total: int, size: int, frame: Mapping[str, Any]
) -> list[Command]:
    """The commands of a collection's frames, as the planner would issue them."""
    commands, definition = [], step_of(step)
    for unit in range(-(-total // size)):
        work = frame_of(unit, reference, total=total, size=size, frame=frame)
        command = command_of(definition, unit=f"frame-{unit}-0")
        commands.append(structs.replace(command, lane=SPARK_LANE, work=work, run_id=RUN))
    return commands


@asynccontextmanager
async def open_wave_bench(
    spark_session: SharedSparkSession, folder: Path, **limits: Any
) -> AsyncIterator[WaveBench]:
    """Waves that are served while the block runs."""
    threads = ThreadRunner(8)
    payloads = FilesystemPayloads(folder, threads=threads)
    waves = WaveRunner(
        spark_session=spark_session,
        entry=build_told_entry(run_partition, master="local"),
        payloads=payloads,
        worker_id=WORKER,
        clock=SystemClock(),
        limits=WaveLimits(**limits),
    )
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(waves.serve_waves())
        yield WaveBench(waves=waves, payloads=payloads)
        serving.cancel()
    await threads.close()


async def run_all(bench: WaveBench, commands: list[Command]) -> list[Fact]:
    """Run every frame at once; return the facts that end them, in order."""
    return list(
        await asyncio.gather(*[bench.waves.run_command_frame(command) for command in commands])
    )
