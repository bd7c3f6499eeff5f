"""Other engines, each in an environment of its own, on one PostgreSQL, with the workloads of ours."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from rich.console import Console
from tests.bench import rows
from tests.bench.peers.engine import Engine, Peer, kill
from tests.bench.peers.installing import PeerError, installed, last_line
from tests.bench.site import Site, site
from tests.bench.spread import share, spread
from tests.support.servers import PostgresServer, postgres_server, wait_until

from noetl_cli.stack.processes import loopback

CHAIN_STEPS, ITEMS = 100, 1_000
KILLED_AFTER, AWAY_S = 300, 1.0
PATIENCE_S = 180.0
PEERS = {
    "dbos": Peer(
        about="in process; children of a workflow for what runs side by side; `queued` has them go through a queue",
        others=("w3_queued",),
    ),
    "pgqueuer": Peer(
        about="2 workers, batches of 100, durable tables, autovacuum as advised; a watcher for ends",
        workers=2,
    ),
    "procrastinate": Peer(
        about="2 async workers of 64 jobs each; stalled jobs are looked for every 5 s", workers=2
    ),
    "prefect": Peer(
        about="a server of its own, flows in process, tasks mapped over threads; fewer rounds",
        has_server=True,
        rounds=1,
        singles=10,
        requests=500,
    ),
}
NAMES = tuple(PEERS)
# Of Prefect: where its server keeps its state, and the extension that PostgreSQL must have for it.
DATABASE, NEEDED = "PREFECT_SERVER_DATABASE_CONNECTION_URL", "pg_trgm"

console = Console()


def measure(root: Path, names: Sequence[str]) -> dict[str, Any]:
    """Run every workload on each engine; what fails is told with its reason."""
    folder = root / "peers"
    folder.mkdir()
    found = {}
    with postgres_server(folder, is_durable=True) as server, site(delay_ms=2.0) as served:
        for name in names:
            try:
                found[name] = _measured(name, server, served, folder)
            except (PeerError, OSError, asyncpg.PostgresError) as failure:
                found[name] = {"reason": str(failure)}
            console.print(name, found[name])
    return found


def _measured(name: str, server: PostgresServer, served: Site, folder: Path) -> dict[str, Any]:
    python, version = installed(name)
    with engine(name, python, server, folder) as made:
        told = _workloads(made, served)
        about = PEERS[name].about
        if made.peer.has_server and DATABASE not in made.environ:
            about += f"; its state is in SQLite, its default, as this PostgreSQL has no {NEEDED}"
    return {"version": version, "about": about, **told}


@contextmanager
def engine(name: str, python: Path, server: PostgresServer, folder: Path) -> Iterator[Engine]:
    """Give an installed engine its databases and what it needs around it while the block runs."""
    target = asyncio.run(server.create_database(f"target_{name}"))
    dsn = asyncio.run(server.create_database(f"peer_{name}"))
    rows.prepare(target)
    environ = {"PATH": os.defpath, "HOME": str(folder)}
    made = Engine(
        name=name,
        peer=PEERS[name],
        python=python,
        postgres=server,
        dsn=dsn,
        target=target,
        environ=environ,
    )
    if not made.peer.has_server:
        if made.peer.workers:
            made.install()
        yield made
        return
    if asyncio.run(_has_extension(dsn, NEEDED)):
        server.execute(f"create extension {NEEDED}", database=f"peer_{name}")
        environ[DATABASE] = dsn.replace("://", "+asyncpg://", 1)
    with _prefect_server(python, environ) as (more, pid):
        yield Engine(
            name=name,
            peer=made.peer,
            python=python,
            postgres=server,
            dsn=dsn,
            target=target,
            environ=environ | more,
            standing=[pid],
        )


@contextmanager
def _prefect_server(python: Path, environ: dict[str, str]) -> Iterator[tuple[dict[str, str], int]]:
    """Run Prefect's own server; yield the variables of its clients, and its process.

    Without an address of a database it keeps to its default, SQLite.
    """
    port = loopback.choose_ports(["prefect"], before={})["prefect"]
    variables = {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_HOME": f"{environ['HOME']}/prefect",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    log = Path(environ["HOME"]) / "prefect.log"
    with (
        log.open("wb") as written,
        httpx.Client(base_url=variables["PREFECT_API_URL"], timeout=5) as client,
        subprocess.Popen(  # noqa: S603 - our own command line
            [str(python), "-m", "prefect", "server", "start", "--port", str(port), "--no-ui"],
            stdout=written,
            stderr=subprocess.STDOUT,
            env=environ | variables,
        ) as process,
    ):
        try:
            _patiently(lambda: process.poll() is not None or _answers(client), "its server answers")
            if process.poll() is not None:
                raise PeerError(f"its server ended: {last_line(log.read_text())}")
            yield variables, process.pid
        finally:
            process.terminate()
            process.wait(30)


async def _has_extension(dsn: str, name: str) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = $1)", name
        )
    finally:
        await connection.close()
    return bool(found)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.HTTPError:
        return False


def _patiently(is_true: Callable[[], bool], what: str) -> None:
    try:
        wait_until(is_true, timeout_s=PATIENCE_S, what=what)
    except TimeoutError as late:
        raise PeerError(str(late)) from None


def _workloads(engine: Engine, served: Site) -> dict[str, Any]:
    """Run one after another; one that fails leaves its reason and lets the others go on."""
    peer = engine.peer
    units = {
        "w2": CHAIN_STEPS,
        "w3": ITEMS,
        **dict.fromkeys(peer.others, ITEMS),
        "w4_items": peer.requests,
        "w4_batched": peer.requests,
    }
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "w1": lambda: _singles(engine),
        **{name: partial(_rates, engine, served, name, units[name]) for name in units},
        "w5": lambda: _crash(engine),
    }
    found = {}
    for name, way in ways.items():
        try:
            found[name] = way()
        except PeerError as failure:
            found[name] = {"reason": str(failure)}
    return found


def _singles(engine: Engine) -> dict[str, Any]:
    peer = engine.peer
    outcome = engine.drive("w1", units=peer.singles, rounds=peer.rounds)
    series = [one * 1000 for one in outcome["singles"]]
    parts = [series[at : at + peer.singles] for at in range(0, len(series), peer.singles)]
    return {
        "p50_ms": spread([share(part, 0.5) for part in parts]),
        "p95_ms": spread([share(part, 0.95) for part in parts]),
        "cpu_us": round(1e6 * outcome["cpu_s"] / len(series)),
    }


def _rates(engine: Engine, served: Site, workload: str, units: int) -> dict[str, Any]:
    outcome = engine.drive(
        workload, units=units, rounds=engine.peer.rounds, site=served.url, run=rows.new_run()
    )
    # One more round warms up, and costs as much.
    everything = units * (engine.peer.rounds + 1)
    return {
        "units": units,
        "per_s": spread([units / item for item in outcome["seconds"]]),
        "cpu_us": round(1e6 * outcome["cpu_s"] / everything),
    }


def _crash(engine: Engine) -> dict[str, Any]:
    """Kill what works in the middle of the items, start it again after a second, and count."""
    run, options = rows.new_run(), dict[str, Any](units=ITEMS)
    asks = engine.peer.workers > 0
    began = time.perf_counter()
    with engine.working() as working:
        if asks:
            asking = engine.begin("drive", "w5", run=run, **options)
        else:
            working.append(engine.begin("serve", run=run, **options))
            asking = working[0]
        try:
            _patiently(
                lambda: (
                    asking.poll() is not None
                    or rows.counted(engine.target, run, items=ITEMS)["rows"] >= KILLED_AFTER
                ),
                "a part of W5 is done",
            )
            if asking.poll() is not None:
                raise PeerError("W5 ended before anything was killed")
            many = len(working)
            kill(working)
            time.sleep(AWAY_S)
            more: dict[str, Any] = {} if asks else {"run": run, **options}
            working.extend(engine.begin("serve", **more) for _ in range(many))
            asking = asking if asks else working[0]
            _patiently(lambda: asking.poll() is not None, "W5 ends")
        finally:
            asking.kill()
            asking.wait()
    seconds = round(time.perf_counter() - began, 2)
    return {"seconds": seconds, **rows.counted(engine.target, run, items=ITEMS)}
