"""Disks that are full: of PostgreSQL, of NATS, of the stack's own folder."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import asyncpg
import httpx
import msgspec
import psutil
import pytest
from msgspec import Struct
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack
from tests.support.volumes import Volume, volume

from noetl_cli.stack.processes import probes
from noetl_cli.stack.processes.process_spec import NatsProbe

pytestmark = pytest.mark.timeout(420)

PATIENCE_S = 200.0
ITEMS = 400
# No lease ends because the machine is slow.
LEASES = ("MESSAGING_LEASE_S", "WORKER_LEASE_S", "PLANNER_COMMAND_LEASE_S")
SETTINGS = ("--workers", "2", *(f"--set={name}=120" for name in LEASES))
# Each result is large enough to be a payload of its own.
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: full}
workload: {n: 0, name: a}
workflow:
  - step: each
    loop: {in: "{{ workload.n }}", iterator: i, spec: {mode: parallel, max_in_flight: 40}}
    tool: {kind: noop, result: "{{ (workload.name ~ iter.i) * 1000 }}"}
    next: {arcs: [{step: sum}]}
  - step: sum
    tool:
      kind: python
      input: {given: "{{ each.results }}", name: "{{ workload.name }}"}
      code: "return sum(int(one[len(name):len(one) // 1000]) for one in given)"
"""
# What a run has beyond its plan when an attempt was used up, or work was refused.
SECOND_TRIES = ["command.reissued", "command.rejected", "command.failed", "command.lost"]


class Site(Struct):
    """A stack each of whose servers has a disk of its own."""

    stack: Stack
    home: Volume
    postgres: Volume
    nats: Volume

    def begin(self, name: str) -> str:
        """Start a run."""
        return self.stack.execute("full", key=name, n=ITEMS, name=name)

    def wait_for_items(self, execution_id: str, count: int) -> None:
        """Wait until so many items are done."""

        def is_there() -> bool:
            loops = self.ask(f"executions/{execution_id}/status").get("loops", [])
            return any(loop["done"] >= count for loop in loops)

        wait_until(is_there, timeout_s=PATIENCE_S, what=f"{count} items are done")

    def wait_for_end(self, execution_id: str) -> None:
        """Wait for a good end."""

        def is_over() -> bool:
            found = self.ask(f"executions/{execution_id}/status")
            assert found.get("status") not in {"FAILED", "CANCELLED"}, found
            return found.get("status") == "COMPLETED"

        wait_until(is_over, timeout_s=PATIENCE_S, what=f"{execution_id} completes")

    def conclude(self, execution_id: str, *, uses_attempts: bool = False) -> None:
        """Nothing is missing and nothing counts twice; as a rule no attempt was used up."""
        self.wait_for_end(execution_id)
        assert_parity(self.stack, execution_id)
        assert self.ask(f"result/{execution_id}/sum")["data"] == sum(range(ITEMS))
        assert uses_attempts or self.count(execution_id, SECOND_TRIES) == 0

    def ask(self, path: str) -> dict[str, Any]:
        """What the API says; one that cannot say it right now says why, and when to ask again."""
        try:
            answer = http.get(f"{self.stack.url('api')}/api/{path}", timeout=10)
        except httpx.HTTPError:
            return {}
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            assert answer.json()["code"] == "unavailable", answer.text
            assert answer.headers["Retry-After"]
            return {}
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def doctor(self) -> str:
        """What the doctor says of a stack that is not well."""
        return self.stack.noetl("doctor", code=1)

    def restarts(self) -> dict[str, int]:
        """How often each service was started again."""
        processes = self.state["processes"].items()
        return {name: item["restarts"] for name, item in processes if not item["is_server"]}

    @property
    def state(self) -> Any:
        return self.stack.state

    def count(self, execution_id: str, types: list[str]) -> int:
        """Count events of these types."""

        async def asked() -> int:
            connection = await asyncpg.connect(self.stack.url("postgres"))
            try:
                query = "select count(*) from noetl.event where execution_id = $1::bigint "
                return int(
                    await connection.fetchval(
                        query + "and event_type = any($2::text[])", int(execution_id), types
                    )
                )
            finally:
                await connection.close()

        return asyncio.run(asked())

    def use_up_wal(self) -> None:
        """Have PostgreSQL ask for segments of its log until there is no room for the next one."""
        secret = msgspec.json.decode((self.stack.folder / "secrets.json").read_bytes())
        port = self.state["ports"]["postgres"]

        async def switch() -> None:
            dsn = f"postgresql://postgres:{secret['postgres_superuser']}@127.0.0.1:{port}/postgres"
            connection = await asyncpg.connect(dsn)
            while True:
                await connection.execute(
                    "select pg_switch_wal(); select pg_logical_emit_message(false, 't', 't')"
                )

        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            asyncio.run(switch())


def workers_of(supervisor: psutil.Process) -> set[int]:
    """Which processes of a supervisor are workers."""
    found = set()
    for child in supervisor.children():
        with suppress(psutil.NoSuchProcess):
            if "noetl_worker" in child.cmdline():
                found.add(child.pid)
    return found


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as opened:
        home = opened.enter_context(volume())
        folder = home.folder / "stack"
        folder.mkdir(mode=0o711)
        # The payload store is never filled here: it has a disk of its own to be out of it.
        names = ("postgres", "nats", "seaweedfs")
        postgres, nats, _ = (opened.enter_context(volume(folder / name)) for name in names)
        stack = opened.enter_context(running_stack(folder, *SETTINGS))
        answer = http.post(
            f"{stack.url('api')}/api/catalog/register",
            content=PLAYBOOK,
            headers={"Content-Type": "text/yaml"},
            timeout=30,
        )
        assert answer.is_success, answer.text
        yield Site(stack=stack, home=home, postgres=postgres, nats=nats)


def test_a_full_disk_of_postgres_costs_only_time(site: Site) -> None:
    run = site.begin("p")
    site.wait_for_items(run, ITEMS // 8)
    before = site.restarts()
    with site.postgres.full():
        site.use_up_wal()
        # Its recovery needs room as well, so it comes and goes until there is some.
        wait_until(
            lambda: site.state["processes"]["postgres"]["restarts"] >= 2,
            timeout_s=PATIENCE_S,
            what="PostgreSQL was started again, in vain",
        )
        assert "disk of postgres" in site.doctor()
    site.conclude(run)
    assert site.restarts() == before


def test_a_full_disk_of_nats_costs_only_time(site: Site) -> None:
    run = site.begin("n")
    site.wait_for_items(run, ITEMS // 8)
    before = site.restarts()
    health = NatsProbe(url=site.stack.url("nats_monitor"))
    with site.nats.full():
        # One that says nothing, busy with the files of others, may still say it the next time.
        wait_until(
            lambda: probes.is_unwell(health),
            timeout_s=PATIENCE_S,
            what="a stream could not write",
        )
        said = site.doctor()
        assert "disk of nats" in said
        assert "write error" in said
    # Nobody can say that work goes on while the broker is away, so some of it may run again.
    site.conclude(run, uses_attempts=True)
    assert site.restarts() == before


def test_a_supervisor_outlives_a_full_disk_and_keeps_its_processes(site: Site) -> None:
    supervisor = psutil.Process(site.state["supervisor_pid"])
    with site.home.full():
        former = {site.stack.send(name, 9) for name in site.stack.names("worker")}
        # The state file cannot tell. What the killed ones had asked for would come to nobody for
        # long.
        wait_until(
            lambda: len(workers_of(supervisor) - former) == len(former),
            timeout_s=PATIENCE_S,
            what="other workers run",
        )
        run = site.begin("h")
        site.wait_for_end(run)
        assert supervisor.is_running()
        assert "disk " in site.doctor()
    wait_until(
        lambda: not {site.stack.pid(name) for name in site.stack.names("worker")} & {*former, None},
        timeout_s=PATIENCE_S,
        what="the state file has caught up",
    )
    site.conclude(run)


def test_nothing_starts_on_a_full_disk_without_a_word(site: Site) -> None:
    with volume() as other, other.full():
        answer = Stack(other.folder / "stack").noetl("up", "--no-s3", code=1)
        assert "No space left on device" in answer or "is full" in answer
    assert site.stack.noetl("doctor")
