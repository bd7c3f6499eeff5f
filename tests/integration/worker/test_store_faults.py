"""A payload store that is slow, full, refuses or breaks off: work waits for it, or says why not."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.support.faulty_s3 import Faults, faulty_s3
from tests.support.polling import eventually
from tests.support.servers import S3Server, nats_server
from tests.support.services import Service, service
from tests.support.storage import ORGANIZATION, TENANT
from tests.support.working import Bench, bench, command_of

from noetl_chassis.clock import SystemClock
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed, CommandLost, Fact
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.errors import StorageUnavailable
from noetl_worker.payloads import payload_retry

SECRET_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # noqa: S105 - of this test alone
PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
LARGE = """
  - step: s
    tool: {kind: python, code: "result = {'rows': [{'i': i, 'n': 'NAME'} for i in range(2000)]}"}
"""
READS = """
  - step: s
    tool: {kind: artifact, action: get, uri: "URI"}
"""


class World(Struct):
    worker: Bench
    behind: PayloadStore
    faults: Faults

    async def run(self, text: str) -> Fact:
        *_, done = await self.worker.run(command_of(text))
        return done


@pytest.fixture
async def world(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A worker whose store is a real S3 behind faults; the reader of `behind` meets none."""
    monkeypatch.setattr(payload_retry, "_RETRY_BASE_S", 0.001)
    keys: dict[str, Any] = {"access_key": s3.access_key, "secret_key": s3.secret_key}
    async with faulty_s3(s3.endpoint) as (endpoint, faults):
        url = s3.payload_url.replace(s3.endpoint, endpoint)
        async with (
            open_payloads(url, **keys) as faulty,
            open_payloads(s3.payload_url, **keys) as behind,
            bench(store=faulty) as worker,
        ):
            yield World(worker=worker, behind=behind, faults=faults)


def reference_of(done: Fact) -> PayloadRef:
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    assert done.result.reference is not None
    return done.result.reference


@pytest.mark.parametrize(
    "faults", [["503"] * 6, ["503", "slow"], ["cut"], ["cut", "503", "cut"]], ids=str
)
async def test_a_result_is_reported_once_its_store_has_all_of_it(
    world: World, faults: list[str]
) -> None:
    world.faults.put = list(faults)
    reference = reference_of(await world.run(LARGE.replace("NAME", "-".join(faults))))
    assert world.faults.put == []
    data = await world.behind.read_payload(reference)
    assert data.count(b'"i"') == 2000


async def test_a_store_that_is_away_for_long_costs_time_and_no_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_retry, "_RETRY_MAX_S", 0.002)
    told: list[int] = []
    monkeypatch.setattr(payload_retry, "_log_wait", lambda tries, _: told.append(tries))
    world.faults.is_lasting = "503"
    running = asyncio.create_task(world.run(LARGE.replace("NAME", "away")))

    async def is_waiting_for_long() -> bool:
        # More often than anything is asked that is no outage.
        return bool(told) and told[-1] > 2 * payload_retry._TRIES_MAX

    await eventually(is_waiting_for_long, timeout_s=60)
    assert payload_retry.WAITS.count == 1
    world.faults.is_lasting = None
    reference = reference_of(await running)
    assert payload_retry.WAITS.count == 0
    assert (await world.behind.read_payload(reference)).count(b'"i"') == 2000


async def test_a_command_that_waits_for_the_store_can_be_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_retry, "_RETRY_MAX_S", 0.002)
    world.faults.is_lasting = "503"
    running = asyncio.create_task(world.run(LARGE.replace("NAME", "given back")))

    async def is_waiting() -> bool:
        return payload_retry.WAITS.count == 1

    await eventually(is_waiting, timeout_s=60)
    world.worker.lane.release_commands()
    lost = await running
    assert isinstance(lost, CommandLost), lost
    assert lost.is_release
    assert payload_retry.WAITS.count == 0
    # What the client still tries may end well: it is not left to the end of its grace.
    world.faults.is_lasting = None


async def test_a_store_that_refuses_this_request_is_not_asked_for_hours(world: World) -> None:
    world.faults.is_lasting = "400"
    done = await world.run(LARGE.replace("NAME", "never"))
    assert isinstance(done, CommandFailed), done
    assert (done.error.kind, done.error.code) == ("storage_access", "STORE")
    assert done.error.retryable


async def test_a_store_that_refuses_is_an_error_at_once_that_says_so(world: World) -> None:
    world.faults.is_lasting = "403"
    done = await world.run(LARGE.replace("NAME", "refused"))
    assert isinstance(done, CommandFailed), done
    assert (done.error.kind, done.error.retryable) == ("storage_quota", False)
    assert "403" in done.error.message
    # Once as small objects go, and once by the client that knows what the answer means.
    assert len(world.faults.seen) == 2


@pytest.mark.parametrize("faults", [["cut"], ["503"] * 5, ["cut", "cut", "503"]], ids=str)
async def test_half_an_object_is_never_taken_for_the_whole(world: World, faults: list[str]) -> None:
    data = b'{"a":[' + b",".join(b"%d" % n for n in range(5000)) + b"]}"
    payload = await world.behind.put_payload(data, media_type="application/json", **PLACE)
    world.faults.get = list(faults)
    done = await world.run(READS.replace("URI", payload.uri))
    assert world.faults.get == []
    got = await world.behind.read_payload(reference_of(done))
    assert data[6:-2] in got


async def test_what_is_missing_or_changed_is_named_and_never_decoded(world: World) -> None:
    payload = await world.behind.put_payload(
        b'{"secret":"value"}', media_type="application/json", **PLACE
    )
    key = f"tenant/{TENANT}/org/{ORGANIZATION}/payloads/sha256"
    place = f"{key}/{payload.sha256[:2]}/{payload.sha256[2:4]}/{payload.sha256}"
    world.behind._objects.store_object(place, b'{"secret":"vAlue"}', "application/json")
    changed = await world.run(READS.replace("URI", payload.uri))
    await world.behind.delete_payload(payload)
    missing = await world.run(READS.replace("URI", payload.uri))

    assert isinstance(changed, CommandFailed), changed
    assert isinstance(missing, CommandFailed), missing
    assert missing.error.kind == "reference_not_available"
    for done in (changed, missing):
        assert payload.sha256 in done.error.message
        assert "alue" not in done.error.message
    assert not changed.error.retryable


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_full_disk_is_unavailable_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, rests = os.fsync, [3]

    def full(descriptor: int) -> None:
        rests[0] -= 1
        if rests[0] >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    async with open_payloads(f"file://{tmp_path}/store") as payloads:
        for _ in range(3):
            with pytest.raises(StorageUnavailable, match="No space left"):
                await payloads.put_payload(b"x" * 100, media_type="text/plain", **PLACE)
            assert files(tmp_path) == []
        payload = await payloads.put_payload(b"x" * 100, media_type="text/plain", **PLACE)
        assert await payloads.read_payload(payload) == b"x" * 100


async def test_a_worker_whose_store_takes_nothing_is_not_ready(
    s3: S3Server, tmp_path: Path
) -> None:
    """The store answers every question of a start, and refuses to keep anything."""
    async with faulty_s3(s3.endpoint) as (endpoint, faults):
        faults.put = ["503"] * 10_000
        with nats_server(tmp_path) as nats:
            async with open_connection(nats.url, name="test") as admin:
                declared = topology.declare_topology(shard_count=1)
                await JetStreamStreams(admin, declared, now=SystemClock().now).ensure_streams()
            environ = {
                "NATS_URL": nats.url_for("worker"),
                "SECRET_KEY": SECRET_KEY,
                "PAYLOAD_URL": s3.payload_url.replace(s3.endpoint, endpoint),
                "PAYLOAD_ACCESS_KEY": s3.access_key,
                "PAYLOAD_SECRET_KEY": s3.secret_key,
                "LANES": "io",
            }
            with service("worker", environ, log=tmp_path / "worker.log") as worker:
                await eventually(lambda: is_ready(worker, "?exclude=store"))
                status, body = await asyncio.to_thread(worker.get, "/readyz")
                assert (status, '"store":' in body) == (503, True)
                faults.put.clear()
                await eventually(lambda: is_ready(worker))


async def is_ready(worker: Service, query: str = "") -> bool:
    assert worker.process.poll() is None, worker.log.read_text()
    return (await asyncio.to_thread(worker.get, f"/readyz{query}"))[0] == 200
