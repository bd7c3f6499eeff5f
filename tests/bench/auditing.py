"""An audit of many executions, half of them archived: in one process and as one Spark job."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.builders import ORGANIZATION, TENANT, a_cursor_loop
from tests.support.retaining import MONTH, of_the_month
from tests.support.servers import PostgresServer, postgres_server
from tests.support.storage import Stores, a_fence, an_append, migrated, postgres_stores

from noetl_contracts.ledger import stored_event, upcasters
from noetl_contracts.ledger.archive_format import ManifestUnit
from noetl_contracts.ledger.records import ShardFence
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state
from noetl_storage.archive import units
from noetl_storage.payloads.factory import open_payloads

EXECUTIONS = 10_000
# So many in one append, and in one unit of the archive.
TOGETHER = 200
UNIT_HISTORIES = 500
PATIENCE_S = 1800


def measure(*, executions: int = EXECUTIONS, master: str = "local[*]") -> dict[str, Any]:
    """Fill a ledger and an archive, audit them twice, and compare what was found."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder) / "server", is_durable=True) as server,
    ):
        store = Path(folder) / "store"
        store.mkdir()
        dsn = asyncio.run(_fill(server, store.as_uri(), executions))
        local = _audit("--engine", "local", "--postgres", dsn, "--payloads", store.as_uri())
        spark = _audit(
            *("--engine", "spark", "--master", master),
            *("--postgres", dsn, "--payloads", store.as_uri()),
        )
    counted = ("executions", "events", "damaged", "projected", "sources")
    assert {name: local[name] for name in counted} == {name: spark[name] for name in counted}
    assert (local["executions"], local["damaged"]) == (executions, 0), local
    return {
        "executions": executions,
        "archived": local["sources"]["archive"],
        "events": local["events"],
        "master": master,
        **{f"local_{name}": local[name] for name in ("seconds", "events_per_s")},
        **{f"spark_{name}": spark[name] for name in ("seconds", "events_per_s")},
        "ratio": round(local["seconds"] / spark["seconds"], 2),
    }


def section(one: dict[str, Any]) -> str:
    """Write the figures for people."""
    rows = "\n".join(
        f"| `noetl audit run --engine {name}` | {one[f'{name}_seconds']} s "
        f"| {one[f'{name}_events_per_s']:,} events/s |"
        for name in ("local", "spark")
    )
    return f"""## An audit of {one["executions"]:,} executions with {one["events"]:,} events, {one["archived"]:,} of them archived

| chain, fold and read models of each, everything whole | time | rate |
|---|---:|---:|
{rows}

**Ratio** (local / Spark with `{one["master"]}`, its start included): {one["ratio"]}.
"""


def _audit(*words: str) -> dict[str, Any]:
    """Run the command and return its summary."""
    place = ("--tenant", TENANT, "--organization", ORGANIZATION, "--json")
    done = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "noetl_cli", "audit", "run", *words, *place],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        env={name: value for name, value in os.environ.items() if not name.startswith("NOETL_")},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


async def _fill(server: PostgresServer, url: str, executions: int) -> str:
    """Archive every other history, and keep the rest in the ledger with their read models."""
    dsn = await server.create_database("auditing")
    archived, kept = range(0, executions, 2), range(1, executions, 2)
    async with open_payloads(url) as store:
        for number, some in enumerate(slices(archived, UNIT_HISTORIES), start=1):
            unit = ManifestUnit(
                manifest_id=str(number),
                tenant_id=TENANT,
                organization_id=ORGANIZATION,
                month=MONTH,
                planned_at=a_cursor_loop().envelopes[0].event_time,
                fold_version=FOLD_VERSION,
                upcaster_digest=upcasters.digest_registry(),
            )
            await units.write_unit(store, unit, _events(some))
    async with migrated(dsn) as database:
        stores = postgres_stores(database)
        fence = await a_fence(stores, lease_s=PATIENCE_S)
        for some in slices(kept, TOGETHER):
            await keep_many(stores, fence, some)
        await database.execute_statement("analyze")
    return dsn


def slices(numbers: range, most: int) -> Iterator[range]:
    return (numbers[at : at + most] for at in range(0, len(numbers), most))


async def _events(numbers: Sequence[int]) -> AsyncIterator[StoredEvent]:
    story = a_cursor_loop()
    for number in numbers:
        for envelope in of_the_month(story, number).envelopes:
            yield stored_event.to_stored_event(envelope)


async def keep_many(stores: Stores, fence: ShardFence, numbers: Sequence[int]) -> None:
    histories = [of_the_month(a_cursor_loop(), number) for number in numbers]
    await stores.ledger.append(an_append(fence, *(item.stream() for item in histories)))
    rows: dict[str, list[dict[str, Any]]] = {}
    for history in histories:
        replay = HistoryReplay(build_empty_state(history.execution_id, TENANT, ORGANIZATION))
        replay.feed_events(history.envelopes)
        for surface, found in replay.surfaces.items():
            rows.setdefault(surface, []).extend(found.values())
    await stores.projections.apply_rows(
        shard=0,
        rows=rows,
        positions={item.execution_id: (0, len(item.envelopes)) for item in histories},
    )
