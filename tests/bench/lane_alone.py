"""A worker's lane by itself: W4's frames and PFT A with messages, records and payloads in memory.

Its tools are real, and so are the site, the fixture and the database. Nobody plans, writes events,
projects or keeps anything, so whatever an engine of these promises may come to cost, it is not
faster than this as long as its worker interprets playbooks as ours does.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uvloop
from msgspec import structs
from tests.bench import fetching, rows
from tests.bench.unaided_pft import FRAME_ROWS, LANES, PAGED, SLOTS
from tests.support import pft
from tests.support.working import ORGANIZATION, TENANT, Bench, bench, command_of, frame_of

from noetl_chassis import lifecycle
from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Command, SlotWork
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_contracts.requests.facts import CommandFailed, Fact, FrameClosed
from noetl_playbook.parse.playbook import parse_playbook

STAGES = (*(f"fetch_{kind}" for kind in (*PAGED, "demographics")), "fetch_mds_details")


class Unserved:
    """Has a lane run commands of one playbook, as many at once as are given."""

    def __init__(self, worker: Bench, text: str, workload: dict[str, Any]) -> None:
        parsed = parse_playbook(text)
        assert parsed.playbook is not None, parsed.problems
        self._steps = {item.step: codec.to_builtins(item) for item in parsed.playbook.workflow}
        self._worker = worker
        self._workload = {**codec.to_builtins(parsed.playbook.workload), **workload}
        self._execution_id = ExecutionId(str(int.from_bytes(os.urandom(6), "big")))

    def command(self, step: str, *, work: Any = None, ctx: dict[str, Any] | None = None) -> Command:
        """Make a command of a step, of this execution."""
        made = command_of(self._steps[step], work=work, workload=self._workload, ctx=ctx)
        return structs.replace(made, execution_id=self._execution_id)

    async def run(self, commands: Iterable[Command]) -> None:
        """Run commands side by side; none may fail."""
        asked = list(commands)
        for item in asked:
            await self._worker.send(item)
        taken = await self._worker.commands.fetch_batch(messages_max=len(asked), wait_s=5)
        async with asyncio.TaskGroup() as group:
            for delivery in taken:
                group.create_task(self._worker.lane.handle_delivery(delivery))
        failed = [item for item in await self._worker.facts() if _has_failed(item)]
        assert not failed, failed


def _has_failed(fact: Fact) -> bool:
    return isinstance(fact, CommandFailed) or (
        isinstance(fact, FrameClosed) and fact.rows_failed > 0
    )


@asynccontextmanager
async def _lane(credential: str, dsn: str) -> AsyncIterator[Bench]:
    async with bench() as worker:
        await worker.put_credential(credential, {"dsn": dsn})
        lifecycle.tune_garbage_collector()
        yield worker


class Stretch:
    """For how long work was done, and with what CPU of this process."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.perf_counter(), time.process_time()

    def told(self) -> dict[str, float]:
        """Tell of it now that it has ended."""
        return {
            "seconds": time.perf_counter() - self._began_s,
            "cpu_s": time.process_time() - self._cpu_s,
        }


async def frames(*, dsn: str, site: str, requests: int) -> dict[str, float]:
    """Fetch and save so many of W4's rows."""
    async with _lane(rows.CREDENTIAL, dsn) as worker:
        given = {"n": requests, "site": site, "run": rows.new_run()}
        lane = Unserved(worker, fetching.playbook("frames"), given)
        collection = await worker.payloads.put_payload(
            codec.encode_json(list(range(requests))),
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            media_type=JSON_MEDIA_TYPE,
        )
        size, policy = fetching.FRAME_ROWS, {"row_concurrency": fetching.ROW_CONCURRENCY}

        def frame(unit: int) -> Command:
            work = frame_of(unit, collection, total=requests, size=size, frame=policy)
            return lane.command("each", work=work)

        todo = iter(range(-(-requests // size)))

        async def slot() -> None:
            for unit in todo:
                await lane.run([frame(unit)])

        stretch = Stretch()
        async with asyncio.TaskGroup() as slots:
            for _ in range(fetching.IN_FLIGHT // fetching.ROW_CONCURRENCY):
                slots.create_task(slot())
        return stretch.told()


async def facility(
    number: int, *, dsn: str, api: str, nonce: str, count: int, patients: int
) -> dict[str, float]:
    """Run PFT A's stages of one of so many facilities; 0 makes the tables instead."""
    async with _lane(pft.CREDENTIAL, dsn) as worker:
        text = (pft.PLAYBOOKS / "pft_a.yaml").read_text()
        given = {"facilities": count, "patients": patients, "api_url": api, "run_nonce": nonce}
        lane, stretch = Unserved(worker, text, given), Stretch()
        if not number:
            await lane.run([lane.command("start")])
            return stretch.told()
        ctx = {"facility_mapping_id": number, "facility_id": f"org-{number}"}
        await lane.run([lane.command("setup_facility_work", ctx=ctx)])
        for run, stage in enumerate(STAGES):
            if stage == "fetch_mds_details":
                await lane.run([lane.command("prepare_mds_work", ctx=ctx)])
            await lane.run(_slots(lane, stage, ctx, run=number * len(STAGES) + run))
        return stretch.told()


def _slots(lane: Unserved, step: str, ctx: dict[str, Any], *, run: int) -> Iterable[Command]:
    stage = ids.derive_stage_id(ids.derive_run_id(ExecutionId("1"), run))
    policy = {"max_rows": FRAME_ROWS, "row_concurrency": LANES}
    for slot in range(SLOTS):
        work = SlotWork(stage_id=stage, slot=slot, frame=policy)
        yield lane.command(step, work=work, ctx=ctx)


def main(arguments: Sequence[str]) -> None:
    """Run W4's frames or a facility of PFT A, and print for how long."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--dsn", required=True)
    asked.add_argument("--site")
    asked.add_argument("--requests", type=int, default=fetching.REQUESTS)
    asked.add_argument("--api", default="")
    asked.add_argument("--nonce", default="")
    asked.add_argument("--facility", type=int, default=1)
    asked.add_argument("--facilities", type=int, default=1)
    asked.add_argument("--patients", type=int, default=1_000)
    given = asked.parse_args(arguments)
    if given.site:
        running = frames(dsn=given.dsn, site=given.site, requests=given.requests)
    else:
        running = facility(
            given.facility,
            dsn=given.dsn,
            api=given.api,
            nonce=given.nonce,
            count=given.facilities,
            patients=given.patients,
        )
    sys.stdout.write(msgspec.json.encode(uvloop.run(running)).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
