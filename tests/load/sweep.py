"""Every GET of the OpenAPI document over a full ledger: how long, how large, and what is scanned."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from msgspec import Struct, field
from rich.console import Console
from tests.bench.client import HEAD, Client
from tests.bench.site import site
from tests.bench.spread import share
from tests.load import filling, mix
from tests.load.walks import PAGES_MAX, WALKS, Ask, StackContents, Walk, uncovered
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

EXECUTIONS = 100_000
EACH = 100
REAL_EACH = 5
PATIENCE_S = 600.0
# No answer is longer, whatever it is asked: a page of a thousand executions takes half a megabyte.
ANSWER_BYTES_MAX = 4 * 2**20
# Tables of so many rows are not read from end to end to answer anybody.
LARGE_ROWS = 10_000
# The server's own counters come so late for a connection that went idle.
COUNTED_S = 12.0
REAL = tuple(kind for kind in mix.KINDS if kind.meanwhile is None)
OPENAPI = "/schema/openapi.json"
# No playbook of the soak reads increments: this one, which never runs, has the state to be shown.
STATE_PATH, STATE_NAME = "load/increments", "read"
INCREMENTS = f"""{HEAD}metadata: {{name: increments, path: {STATE_PATH}}}
workflow:
  - step: load
    incremental: {{cursor: n, from: state.{STATE_NAME}, initial: 0}}
    tool:
      kind: postgres
      auth: {mix.CREDENTIAL}
      query: "SELECT n FROM soak_jobs WHERE n >= $1"
      params: ["{{{{ increment.since }}}}"]
"""  # noqa: S608 - our own text
STATE = {
    "path": STATE_PATH,
    "name": STATE_NAME,
    "value": 1,
    "who": "load",
    "reason": "to be shown",
}
# What signs people in answers so where there is no provider and no cookie.
NO_SUCCESS = {"/auth/login": {404}, "/auth/callback": {404}, "/auth/session": {401}}
_SCANS = """
SELECT relname, seq_scan AS scans, n_live_tup AS rows
FROM pg_stat_user_tables WHERE schemaname = 'noetl'
"""
console = Console()


class WalkResult(Struct, kw_only=True):
    """What the requests to one address gave."""

    times_ms: list[float] = field(default_factory=list)
    bytes_most: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    pages_most: int = 0
    slowest: str = ""

    def told(self) -> dict[str, Any]:
        """Return it in figures; of an address that nothing was asked of there are none."""
        if not self.times_ms:
            return {"requests": 0, "bytes_most": 0, "statuses": {}}
        figures = {
            name: round(share(self.times_ms, part), 1)
            for name, part in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99))
        }
        return {
            "requests": len(self.times_ms),
            **figures,
            "most_ms": round(max(self.times_ms), 1),
            "slowest": self.slowest,
            "bytes_most": self.bytes_most,
            "pages_most": self.pages_most,
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
        }


def run(folder: Path, *, executions: int = EXECUTIONS, each: int = EACH) -> dict[str, Any]:
    """Fill a ledger, walk every address, and look what the database did for it."""
    shared = folder / "shared"
    shared.mkdir()
    options = ("--workers", "1", "--set", f"WORKER_SHARED_DIRECTORY={shared}")
    with running_stack(folder / "stack", *options) as stack, site(delay_ms=0) as served:
        real = _run_some(stack, served.url)
        began = time.monotonic()
        filled = filling.fill(stack.url("postgres"), executions)
        filled_s = round(time.monotonic() - began)
        console.print(f"{executions} executions, {filled['events']} events in {filled_s} s")
        idle = _scanned(stack.url("postgres"), lambda: time.sleep(COUNTED_S))
        routes: dict[str, Any] = {}
        scans = _scanned(
            stack.url("postgres"),
            lambda: routes.update(walk_all(stack, _known(stack, filled, real), each)),
        )
    return {
        "executions": executions,
        "events": filled["events"],
        "filled_s": filled_s,
        "routes": routes,
        "scans": scans,
        "idle": idle,
    }


def _run_some(stack: Stack, site_url: str) -> dict[str, list[str]]:
    """Run a few of each playbook of the soak, so that there are results, payloads and references."""
    client = Client(stack)
    asyncio.run(_prepare(stack.url("target")))
    client.keep(mix.CREDENTIAL, stack.url("target"))
    for kind in mix.KINDS:
        client.register(kind.playbook)
    client.register(INCREMENTS)
    found = {
        kind.name: [client.submit(kind.path, site=site_url) for _ in range(REAL_EACH)]
        for kind in REAL
    }
    for kind in REAL:
        for execution_id in found[kind.name]:
            wait_until(
                lambda: _status(client, execution_id) == kind.ends,  # noqa: B023 - waited for here
                timeout_s=PATIENCE_S,
                what=f"{kind.name} ends {kind.ends}",
            )
    path = REAL[0].path
    for method, address, body in (
        ("PUT", "/api/schedules/nightly", {"path": path, "cron": "0 3 * * *"}),
        ("PUT", "/api/triggers/orders", {"path": path, "subject": "orders.>"}),
        ("PUT", "/api/webhooks/paid", {"path": path, "unsigned": True}),
        ("PUT", "/api/state/value", STATE),
    ):
        answer = client.http.request(method, address, json=body)
        assert answer.is_success, answer.text
    return found


async def _prepare(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"{mix.TABLE}; {mix.INDEX}")
    finally:
        await connection.close()


def _status(client: Client, execution_id: str) -> str | None:
    answer = client.http.get(f"/api/executions/{execution_id}/status")
    return answer.json()["status"] if answer.is_success else None


def _known(stack: Stack, filled: dict[str, Any], real: dict[str, list[str]]) -> StackContents:
    client = Client(stack)
    refs = []
    for execution_id in (item for some in real.values() for item in some):
        listed = client.http.get(f"/api/result/{execution_id}/list").json()["results"]
        refs += [item["ref"] for item in listed if item["ref"] is not None]
    frames = []
    for execution_id in real["cursor"]:
        listed = client.http.get(f"/api/executions/{execution_id}/frames").json()["frames"]
        frames += [(execution_id, item["frame_id"]) for item in listed]
    objects = client.http.get("/api/objects", params={"limit": 10}).json()["objects"]
    return StackContents(
        tenant={"tenant_id": filling.TENANT, "organization_id": filling.ORGANIZATION},
        filled={name: some for name, some in filled["ids"].items() if some},
        real=real,
        paths=[kind.path for kind in REAL],
        names={
            "credential": mix.CREDENTIAL,
            "schedule": "nightly",
            "trigger": "orders",
            "webhook": "paid",
        },
        state={"path": STATE_PATH, "name": STATE_NAME},
        refs=refs,
        frames=frames,
        objects=[item["object_id"] for item in objects],
    )


def walk_all(stack: Stack, contents: StackContents, each: int) -> dict[str, Any]:
    """Walk every GET of the OpenAPI document; fails when there is one without a walk."""
    api, proof = stack.url("api"), stack.owner_headers
    with httpx.Client(base_url=api, headers=proof, timeout=PATIENCE_S) as client:
        described = client.get(OPENAPI).json()["paths"]
        addresses = [path for path, operations in described.items() if "get" in operations]
        missing = uncovered(addresses)
        assert not missing, f"not walked, or not there: {missing}"
        found = {}
        for address, walk in WALKS.items():
            found[address] = _walked(client, walk, contents, each).told()
            console.print(address, found[address])
    return found


def _walked(client: httpx.Client, walk: Walk, contents: StackContents, each: int) -> WalkResult:
    seen = WalkResult()
    for ask in walk(contents, each):
        pages = _follow(client, ask, seen)
        seen.pages_most = max(seen.pages_most, pages)
    return seen


def _follow(client: httpx.Client, ask: Ask, seen: WalkResult) -> int:
    """Ask, and for a list go on to its end; return how many pages it had."""
    params = dict(ask.params)
    for page in range(1, PAGES_MAX + 1):
        began = time.perf_counter()
        answer = client.get(ask.path, params=params)
        took_ms = (time.perf_counter() - began) * 1000
        if took_ms > max(seen.times_ms, default=0.0):
            seen.slowest = str(answer.request.url.raw_path.decode())[:200]
        seen.times_ms.append(took_ms)
        seen.bytes_most = max(seen.bytes_most, len(answer.content))
        seen.statuses[answer.status_code] += 1
        more = ask.more(answer.json()) if ask.more is not None and answer.is_success else None
        if more is None:
            return page
        params |= more
    raise AssertionError(f"{ask.path} {ask.params}: no end after {PAGES_MAX} pages")


def _scanned(dsn: str, work: Callable[[], Any]) -> dict[str, Any]:
    """Count the sequential scans of large tables that happen meanwhile."""
    before, began = asyncio.run(_scans(dsn)), time.monotonic()
    work()
    time.sleep(COUNTED_S)
    after = asyncio.run(_scans(dsn))
    found = {
        name: scans - before.get(name, (0, 0))[0]
        for name, (scans, rows) in after.items()
        if rows >= LARGE_ROWS
    }
    return {
        "seconds": round(time.monotonic() - began),
        "tables": {name: count for name, count in found.items() if count},
    }


async def _scans(dsn: str) -> dict[str, tuple[int, int]]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(_SCANS)
    finally:
        await connection.close()
    return {row["relname"]: (row["scans"] or 0, row["rows"] or 0) for row in rows}


def wrong(found: dict[str, Any]) -> list[str]:
    """Name what must not be: answers that are no success, and answers without a bound."""
    return [
        *(
            f"{address}: {status}"
            for address, item in found["routes"].items()
            for status in item["statuses"]
            if not httpx.codes.is_success(int(status))
            and int(status) not in NO_SUCCESS.get(address, set())
        ),
        *(
            f"{address}: {item['bytes_most']} bytes"
            for address, item in found["routes"].items()
            if item["bytes_most"] > ANSWER_BYTES_MAX
        ),
    ]
