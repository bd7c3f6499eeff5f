"""The network between the services and their servers: cut, slow, and broken again and again."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec import Struct
from tests.chaos.conftest import SETTINGS
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import nats_server, postgres_server, wait_past, wait_until
from tests.support.stack import Stack, running_stack
from tests.support.wire import Wire, wire

pytestmark = pytest.mark.timeout(240)

# Longer than the leases of shards and commands, and than NATS waits for a sign of life.
CUT_S = 12.0
ITEMS = 1_500
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: far}
workload: {n: 0}
workflow:
  - step: each
    loop: {in: "{{ workload.n }}", iterator: i, spec: {mode: parallel, max_in_flight: 40}}
    tool: {kind: noop, result: "{{ iter.i }}"}
    next: {arcs: [{step: sum}]}
  - step: sum
    tool: {kind: python, input: {given: "{{ each.results }}"}, code: "return sum(given)"}
"""


class Site(Struct):
    """A stack whose servers are at the far end of two wires."""

    stack: Stack
    postgres: Wire
    nats: Wire

    def wait_for_items(self, execution_id: str, count: int) -> None:
        """Wait until so many items are done."""

        def is_there() -> bool:
            loops = self.ask(f"executions/{execution_id}/status").get("loops", [])
            return any(loop["done"] >= count for loop in loops)

        wait_until(is_there, timeout_s=60, what=f"{count} items are done")

    def conclude(self, execution_id: str) -> None:
        """Wait for a good end; nothing is missing and nothing counts twice."""
        wait_until(
            lambda: self.ask(f"executions/{execution_id}/status").get("status") == "COMPLETED",
            timeout_s=120,
            what=f"{execution_id} completes",
        )
        assert_parity(self.stack, execution_id)
        assert self.ask(f"result/{execution_id}/sum")["data"] == sum(range(ITEMS))

    def ask(self, path: str) -> dict[str, Any]:
        """What the API says; an API that cannot say anything right now says nothing."""
        try:
            answer = http.get(f"{self.stack.url('api')}/api/{path}", timeout=5)
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = answer.json() if answer.is_success else {}
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("far")
    with (
        postgres_server(folder, is_durable=True) as postgres,
        nats_server(folder) as nats,
        wire("127.0.0.1", urlsplit(postgres.admin_dsn()).port or 0) as to_postgres,
        wire("127.0.0.1", urlsplit(nats.url).port or 0) as to_nats,
    ):
        far = _through(postgres.admin_dsn(), to_postgres), _through(nats.url, to_nats)
        servers = ("--postgres", far[0], "--nats", far[1], "--no-s3")
        with running_stack(Path(folder) / "stack", *SETTINGS, *servers) as stack:
            answer = http.post(
                f"{stack.url('api')}/api/catalog/register",
                content=PLAYBOOK,
                headers={"Content-Type": "text/yaml"},
                timeout=60,
            )
            assert answer.is_success, answer.text
            yield Site(stack=stack, postgres=to_postgres, nats=to_nats)


def _through(url: str, wire: Wire) -> str:
    parts = urlsplit(url)
    return url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{wire.port}")


@pytest.mark.parametrize("breaks", [False, True])
def test_a_cut_costs_only_time(site: Site, *, breaks: bool) -> None:
    run = site.stack.execute("far", key=f"cut-{breaks}", n=ITEMS)
    site.wait_for_items(run, ITEMS // 4)
    for item in (site.postgres, site.nats):
        item.cut()
    wait_past(time.monotonic(), CUT_S)
    for item in (site.postgres, site.nats):
        if breaks:
            item.reset()
        item.heal()
    site.conclude(run)


def test_a_slow_line_that_breaks_again_and_again_costs_only_time(site: Site) -> None:
    run = site.stack.execute("far", key="slow", n=ITEMS)
    for item in (site.postgres, site.nats):
        item.slow(0.005)
    for share in range(1, 5):
        site.wait_for_items(run, ITEMS * share // 6)
        (site.postgres if share % 2 else site.nats).reset()
    for item in (site.postgres, site.nats):
        item.slow(0)
    site.conclude(run)
