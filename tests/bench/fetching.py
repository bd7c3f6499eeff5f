"""W4: requests with a row saved for each, per item and per frame, beside a program that does just that."""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec
from rich.console import Console
from tests.bench import meter, rows
from tests.bench.client import HEAD, Client
from tests.bench.site import Site, site
from tests.bench.spread import spread
from tests.support.stack import Stack
from yarl import URL

from noetl_worker.tools.calls.call import Timeout
from noetl_worker.tools.http.client import ClientRules, HttpClient
from noetl_worker.tools.http.http_request import HttpRequest, build_address

REQUESTS = 5_000
DELAY_MS = 2.0
IN_FLIGHT = 128
FRAME_ROWS, ROW_CONCURRENCY = 50, 16
ROUNDS = 5
TASKS = f"""
      - {{name: get, kind: http, url: "{{{{ workload.site }}}}/item/{{{{ iter.i }}}}", response_type: json}}
      - name: save
        kind: postgres
        auth: {rows.CREDENTIAL}
        query: "{rows.SAVE_BODY}"
        params: {{run: "{{{{ workload.run }}}}", item: "{{{{ iter.i }}}}", body: "{{{{ get.body | tojson }}}}"}}
"""
# The rows are what is wanted: nobody collects what saving them returns.
SPECS = {
    "items": f"{{mode: parallel, max_in_flight: {IN_FLIGHT}, collect: none}}",
    "frames": (
        f"{{mode: chunked, chunk_size: {FRAME_ROWS}, max_in_flight: {IN_FLIGHT // ROW_CONCURRENCY},"
        " collect: none,"
        f" frame: {{process: row, row_concurrency: {ROW_CONCURRENCY}}}}}"
    ),
}

console = Console()


def playbook(name: str) -> str:
    """Write the playbook that is durable by `items` or by `frames`."""
    return f"""{HEAD}metadata: {{name: fetch_{name}}}
workload: {{n: 100, site: "", run: ""}}
workflow:
  - step: each
    loop: {{in: "{{{{ workload.n }}}}", iterator: i, spec: {SPECS[name]}}}
    tool:{TASKS}"""


def measure(stack: Stack, *, requests: int = REQUESTS, times: int = ROUNDS) -> dict[str, Any]:
    """Run the floor and both playbooks in turn, so that each meets the same machine."""
    client, dsn = Client(stack), stack.url("target")
    rows.prepare(dsn)
    client.keep(rows.CREDENTIAL, dsn)
    for name in SPECS:
        client.register(playbook(name))
    with site(delay_ms=DELAY_MS) as served:
        ways = _ways(stack, client, served, requests)
        for way in ways.values():
            way()
        found: dict[str, list[float]] = {name: [] for name in ways}
        spent: dict[str, meter.Costs] = {}
        for _ in range(times):
            for name, way in ways.items():
                before = meter.costs(stack, site=served.pid)
                found[name].append(way())
                more = meter.costs(stack, site=served.pid).since(before)
                spent[name] = added(spent[name], more) if name in spent else more
    return {
        "requests": requests,
        "frame_rows": FRAME_ROWS,
        "workers": len(stack.names("worker")),
        **{
            name: meter.told(seconds, units=requests, spent=spent[name])
            for name, seconds in found.items()
        },
        "efficiency": {
            name: spread(
                [floor / ours for floor, ours in zip(found["floor"], found[name], strict=True)],
                digits=3,
            )
            for name in SPECS
        },
    }


def added(one: meter.Costs, other: meter.Costs) -> meter.Costs:
    """Add what two stretches cost."""
    return meter.Costs(
        cpu_s={part: cpu + other.cpu_s.get(part, 0.0) for part, cpu in one.cpu_s.items()},
        transactions=one.transactions + other.transactions,
        wal_bytes=one.wal_bytes + other.wal_bytes,
    )


def _ways(
    stack: Stack, client: Client, served: Site, requests: int
) -> dict[str, Callable[[], float]]:
    dsn = stack.url("target")

    def engine(name: str) -> float:
        run = rows.new_run()
        seconds = client.run(f"fetch_{name}", n=requests, site=served.url, run=run)
        found = rows.counted(dsn, run, items=requests)
        assert (found["lost"], found["run_again"]) == (0, 0), found
        return seconds

    return {
        "floor": lambda: floor(served, dsn, requests),
        "items": lambda: engine("items"),
        "frames": lambda: engine("frames"),
    }


def floor(served: Site, dsn: str, requests: int) -> float:
    """Run the raw program in a process of its own; return its seconds without the start."""
    command = [sys.executable, "-m", "tests.bench.fetching", "--site", served.url, "--dsn", dsn]
    done = subprocess.run(  # noqa: S603 - our own command line
        [*command, "--requests", str(requests)], check=True, capture_output=True, timeout=600
    )
    seconds: float = msgspec.json.decode(done.stdout)["seconds"]
    return seconds


async def fetch_and_save(*, url: str, dsn: str, requests: int) -> float:
    """Fetch with a crew of fixed size; whoever fills a frame's rows saves them in one transaction.

    The client is the http tool's own, without anything that the tool adds.
    """
    run, todo = rows.new_run(), iter(range(requests))
    http = HttpClient(ClientRules(check=lambda *_: True, connections_max=IN_FLIGHT))
    async with asyncpg.create_pool(dsn, min_size=4, max_size=4) as pool:
        kept: list[tuple[int, str]] = []

        async def crew() -> None:
            for item in todo:
                address = build_address(URL(f"{url}/item/{item}"))
                http_request = HttpRequest(method="GET", address=address, headers={}, body=None)
                response = await http.fetch_response(
                    http_request, time_limits=Timeout(total=60), is_verified=True, bytes_max=1 << 20
                )
                body = msgspec.json.decode(response.body)
                kept.append((item, msgspec.json.encode(body).decode()))
                if len(kept) >= FRAME_ROWS:
                    taken, kept[:] = kept[:], []
                    await _save(pool, run, taken)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(crew())
        await _save(pool, run, kept)
        seconds = time.perf_counter() - started
    http.close()
    return seconds


async def _save(
    pool: "asyncpg.Pool[asyncpg.Record]", run: str, taken: list[tuple[int, str]]
) -> None:
    await pool.execute(
        rows.SAVE_MANY, run, [item for item, _ in taken], [body for _, body in taken]
    )


def main() -> None:
    """Run the floor once and print its seconds."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--site", required=True)
    arguments.add_argument("--dsn", required=True)
    arguments.add_argument("--requests", type=int, default=REQUESTS)
    given = arguments.parse_args()
    seconds = asyncio.run(fetch_and_save(url=given.site, dsn=given.dsn, requests=given.requests))
    sys.stdout.write(msgspec.json.encode({"seconds": seconds}).decode())


if __name__ == "__main__":
    main()
