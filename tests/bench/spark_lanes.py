"""The same frames in the io lane and in waves, by body and size: where Spark begins to pay.

`python -m tests.bench.spark_lanes` writes benchmarks/spark-lanes.json and benchmarks/spark-lanes.svg, and
prints the table of docs/reference/spark.md. What is compared is CPU time of everything that takes part: on
one machine both lanes have the same cores, so it says how many more of them Spark has to have.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct, structs
from pygal.style import CleanStyle
from rich.console import Console
from tests.bench.drawing import pygal
from tests.support.wave_bench import (
    WaveBench,
    executor_environ,
    frames_of,
    open_wave_bench,
    run_all,
)
from tests.support.working import Bench
from tests.support.working import bench as working_bench

from noetl_contracts.commands.command_work import IO_LANE, Command, FrameWork
from noetl_worker.settings import read_java_environ, set_variables
from noetl_worker.spark.session import open_spark_session
from noetl_worker.spark.session_options import SessionOptions

BENCHMARKS = Path("benchmarks")
FRAMES = 64
SIZES = (1, 100, 1_000, 10_000)
CORES = 2
WARM_ROUNDS = 4
LEASE_S = 3_600.0

LOOP = """
- step: s
  loop:
    in: "{{ workload.rows }}"
    iterator: row
    spec: {mode: chunked, chunk_size: 5, frame: {process: frame}}
  tool: TOOL
"""
HEAVY = """
import math
total = 0.0
for row in rows:
    for turn in range(1, 101):
        total += math.sqrt(row['n'] + turn) / turn
return total
"""
ARROW = """
import pyarrow as pa
import pyarrow.compute as pc
pa.set_cpu_count(1)
table = pa.Table.from_pylist(rows).append_column('k', pa.array([r['n'] % 7 for r in rows]))
for _ in range(20):
    table = table.sort_by([('k', 'ascending'), ('n', 'descending')])
return pc.sum(table['n']).as_py()
"""


class Body(Struct, frozen=True):
    """What a frame runs, and how the table calls it."""

    name: str
    tool: dict[str, Any]

    @property
    def step(self) -> str:
        """Write the step whose frames are measured."""
        return LOOP.replace("TOOL", msgspec.json.encode(self.tool).decode())


def _python(code: str) -> dict[str, Any]:
    return {"kind": "python", "input": {"rows": "{{ iter.row }}"}, "code": code}


BODIES = (
    Body("none", {"kind": "noop", "result": "{{ iter.row | length }}"}),
    Body("Python, a sum", _python("return sum(row['n'] for row in rows)")),
    Body("Python, 100 roots a row", _python(HEAVY)),
    Body("Arrow, 20 sorts", _python(ARROW)),
)
Run = Callable[[list[Command]], Awaitable[None]]

console = Console()


def main() -> None:
    """Run every case in both lanes and write the report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    arguments.add_argument(
        "--bodies", nargs="+", default=[body.name for body in BODIES], help="others stay as written"
    )
    given = arguments.parse_args()
    file = BENCHMARKS / "spark-lanes.json"
    kept = msgspec.json.decode(file.read_bytes())["cases"] if file.exists() else []
    with tempfile.TemporaryDirectory(prefix="noetl-lanes-") as folder:
        found = asyncio.run(measure(Path(folder), given))
    cases = [item for item in kept if item["body"] not in given.bodies] + found
    cases.sort(key=lambda one: [body.name for body in BODIES].index(one["body"]))
    report = {"cores": CORES, "frames": FRAMES, "cases": cases}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    (BENCHMARKS / "spark-lanes.svg").write_bytes(_plot(cases))
    console.print(_table(cases), soft_wrap=True)


async def measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every body and size that is asked for in both lanes."""
    store = folder / "store"
    store.mkdir()
    set_variables(executor_environ(store))
    options = SessionOptions(
        master=f"local[{CORES}]",
        folder=folder / "spark",
        adopt=set_variables,
        environ=read_java_environ(),
    )
    cases = []
    async with (
        open_spark_session(options) as spark_session,
        open_wave_bench(spark_session, store, waves_max=1, frames_max=FRAMES) as bench,
        _own_lane(bench, folder) as own,
    ):

        async def in_waves(commands: list[Command]) -> None:
            await run_all(bench, commands)

        for body in [item for item in BODIES if item.name in arguments.bodies]:
            for size in arguments.sizes:
                found = {
                    lane: await _series(bench, body, size, run, arguments.rounds)
                    for lane, run in (("io", own), ("spark", in_waves))
                }
                cases.append({"body": body.name, "rows": size, **found})
                console.print(cases[-1])
    return cases


@asynccontextmanager
async def _own_lane(bench: WaveBench, folder: Path) -> AsyncIterator[Run]:
    """Run commands as a worker's io lane does, with a process for user code on each core."""
    async with working_bench(
        store=bench.payloads,
        python_processes_max=CORES,
        work_directory=str(folder / "work"),
        commands_max=FRAMES,
        lease_s=LEASE_S,
    ) as worker:

        async def run(commands: list[Command]) -> None:
            await _handled_tasks(
                worker, [structs.replace(command, lane=IO_LANE) for command in commands]
            )

        yield run


async def _handled_tasks(worker: Bench, commands: list[Command]) -> None:
    for command in commands:
        await worker.send(command)
    deliveries = await worker.commands.fetch_batch(messages_max=len(commands), wait_s=5)
    await asyncio.gather(*[worker.lane.handle_delivery(delivery) for delivery in deliveries])
    ended = await worker.facts()
    assert len(ended) >= len(commands), "a frame gave no fact"


async def _series(
    bench: WaveBench, body: Body, size: int, run: Run, rounds: int
) -> dict[str, float]:
    """Return milliseconds a frame, of CPU and of the wall."""
    commands = await _commands(bench, body, size)
    warm = WARM_ROUNDS if size == SIZES[0] else 1
    for _ in range(warm):
        await run(commands)
    before, began = _spent(), time.monotonic()
    for _ in range(rounds):
        await run(commands)
    frames = rounds * FRAMES
    return {
        "cpu_ms": round(1000 * _since(before) / frames, 2),
        "wall_ms": round(1000 * (time.monotonic() - began) / frames, 2),
    }


async def _commands(bench: WaveBench, body: Body, size: int) -> list[Command]:
    """Make frames over the same rows, as what a collection costs to read is not asked here."""
    reference = await bench.collection([{"n": number} for number in range(size)])
    frames = frames_of(body.step, reference, total=FRAMES, size=1, frame={"process": "frame"})
    made = []
    for command in frames:
        assert isinstance(command.work, FrameWork), "frames are asked for"
        work = structs.replace(command.work, start=0, end=size)
        made.append(structs.replace(command, work=work, lease_s=LEASE_S))
    return made


def _spent() -> dict[int, float]:
    """Count the CPU seconds of this process and of all that it has started, by process."""
    process = psutil.Process()
    seconds = {}
    for item in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = item.cpu_times()
            seconds[item.pid] = times.user + times.system
    return seconds


def _since(before: dict[int, float]) -> float:
    """Add up what was spent since; Spark ends Python processes that were idle for long."""
    return sum(spent - before.get(pid, 0.0) for pid, spent in _spent().items())


def _table(cases: list[dict[str, Any]]) -> str:
    lines = [
        "| rows a frame | body | io lane | wave | more | cores needed |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases:
        io, wave = case["io"]["cpu_ms"], case["spark"]["cpu_ms"]
        lines.append(
            f"| {case['rows']:,} | {case['body']} | {io:.1f} | {wave:.1f} | {wave - io:.1f} "
            f"| {wave / io:.1f} times |"
        )
    return "\n".join(lines)


def _plot(cases: list[dict[str, Any]]) -> bytes:
    """Draw how many times the io lane's cores Spark has to have, over what a frame computes."""
    chart = pygal.XY(
        title="Cores that Spark needs for the same frames, as multiples of the io lane's",
        x_title="CPU time of a frame in the io lane, ms",
        y_title="times the cores",
        logarithmic=True,
        xrange=(0.5, 1_000),
        range=(1, 20),
        style=CleanStyle,
        js=[],
        width=900,
        height=520,
        legend_at_bottom=True,
    )
    for body in {case["body"]: None for case in cases}:
        points = [
            (case["io"]["cpu_ms"], max(1.0, case["spark"]["cpu_ms"] / case["io"]["cpu_ms"]))
            for case in cases
            if case["body"] == body
        ]
        chart.add(body, sorted(points))
    drawn: bytes = chart.render(is_unicode=False)
    return drawn


if __name__ == "__main__":
    main()
