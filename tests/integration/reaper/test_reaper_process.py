"""The reaper as a process, with its own role and user; and the dead letters it keeps."""

import asyncio
import os
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct
from tests.support import retaining
from tests.support.builders import a_cursor_loop, a_shop, a_single_step
from tests.support.files import walk_folder
from tests.support.polling import eventually
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server
from tests.support.services import service
from tests.support.storage import (
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    a_request,
    a_stream,
    an_append,
    an_execution,
    migrated,
    postgres_stores,
)
from typer.testing import CliRunner

from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_cli.__main__ import app
from noetl_contracts import subjects
from noetl_contracts.events.step_events import StepExit
from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import OrganizationId, RunId, TenantId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_contracts.requests.schedules import Schedule
from noetl_contracts.status import RunStatus
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Message
from noetl_storage.archive.archive_reader import ArchivedReader, ArchiveReader
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.ports.retention_ports import RetentionAction, UnitStatus
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.outbox import PostgresOutbox
from noetl_storage.postgres.ledger.requests import PostgresRequests
from noetl_storage.postgres.ledger.retention import PostgresArchiveIndex
from noetl_storage.postgres.registry.schedules import PostgresSchedules

ACME, OPS = TenantId("acme"), OrganizationId("ops")
WAITS = ConnectionTimeouts(connect_s=30, request_s=30)
FACT = Message(
    subject=subjects.build_ingest_subject(0, ACME, OPS), message_id="f", data=b'{"poison":1}'
)


class World(Struct):
    """A migrated database, a server of its own, and the environment of a reaper."""

    database: Database
    archivist_dsn: str
    requests: PostgresRequests
    outbox: PostgresOutbox
    schedules: PostgresSchedules
    stores: Stores
    nats: NatsServer
    environ: dict[str, str]
    log: Path


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server as services demand it: with fsync on."""
    with postgres_server(tmp_path_factory.mktemp("durable"), is_durable=True) as server:
        yield server


@pytest.fixture
async def world(durable: PostgresServer, tmp_path: Path) -> AsyncIterator[World]:
    name = f"test_{secrets.token_hex(6)}"
    database = await durable.create_database(name)
    async with migrated(database) as opened:
        for role in ("noetl_reaper", "noetl_archivist"):
            await durable.execute_async(f"alter role {role} login password 'pw'")
        dsn = durable.dsn(user="noetl_reaper", password="pw", database=name)  # noqa: S106 - made for this test
        with nats_server(tmp_path) as server:
            yield World(
                database=opened,
                archivist_dsn=durable.dsn(user="noetl_archivist", password="pw", database=name),  # noqa: S106 - as above
                requests=PostgresRequests(opened),
                outbox=PostgresOutbox(opened),
                schedules=PostgresSchedules(opened),
                stores=postgres_stores(opened),
                nats=server,
                environ={
                    "POSTGRES_DSN": dsn,
                    "NATS_URL": server.url_for("reaper"),
                    "SWEEP_INTERVAL_S": "0.2",
                    "LEADER_LEASE_S": "1",
                    "REQUEST_AGE_S": "0.5",
                    "SHARD_COUNT": "2",
                },
                log=tmp_path / "reaper.log",
            )


async def is_logged(world: World, text: str) -> bool:
    """Tell whether a service of the world has logged something."""
    return text in world.log.read_text()


async def test_a_reaper_makes_the_streams_and_makes_them_again_after_a_wipe(world: World) -> None:
    async def is_accepted() -> bool:
        try:
            async with open_connection(world.nats.url, name="test", waits=WAITS) as admin:
                await JetStreamPublisher(admin).publish_message(FACT)
        except MessagingUnavailable:
            return False
        return True

    with service("reaper", world.environ, log=world.log) as reaper:
        await asyncio.to_thread(reaper.wait_ready)
        assert await eventually(is_accepted)
        await asyncio.to_thread(world.nats.wipe)
        assert await eventually(is_accepted)
        assert await asyncio.to_thread(reaper.stop) == 0
    assert "Traceback" not in world.log.read_text()


async def test_another_reaper_takes_over_from_a_killed_one(world: World) -> None:
    async def resent() -> bool:
        rows = await world.outbox.claim_rows(owner="test", lease_s=60, rows_max=10)
        await world.outbox.settle_rows([row.outbox_id for row in rows])
        return bool(rows)

    with (
        service("reaper", world.environ, log=world.log) as one,
        service("reaper", world.environ, log=world.log) as two,
    ):
        for item in (one, two):
            await asyncio.to_thread(item.wait_ready)
        await world.requests.submit_request(a_request())
        assert await resent()
        assert await eventually(resent)
        one.kill()
        assert await eventually(resent)


async def test_two_reapers_fire_a_due_schedule_once_and_a_killed_leader_is_replaced(
    world: World,
) -> None:
    async def begun() -> list[str]:
        rows = await world.outbox.claim_rows(owner="test", lease_s=60, rows_max=10)
        return [row.execution_id for row in rows]

    async def put(name: str) -> Schedule:
        return await world.schedules.put_schedule(
            Schedule(
                schedule_id=str(secrets.randbits(60)),
                tenant_id=ACME,
                organization_id=OPS,
                name=name,
                path="demo/a",
                cron="0 0 1 1 *",
                next_at=datetime(2026, 1, 1, tzinfo=UTC),
            )
        )

    with (
        service("reaper", world.environ, log=world.log) as one,
        service("reaper", world.environ, log=world.log) as two,
    ):
        for item in (one, two):
            await asyncio.to_thread(item.wait_ready)
        await put("first")
        (execution,) = await eventually(begun)
        fired = await world.schedules.find_schedule("first", tenant_id=ACME, organization_id=OPS)
        assert fired is not None
        assert fired.last_execution_id == execution
        assert fired.next_at is not None
        assert fired.next_at > datetime.now(UTC)
        one.kill()
        await put("second")
        assert len(await eventually(begun)) == 1
    assert "Traceback" not in world.log.read_text()


async def test_a_given_up_message_can_be_seen_and_sent_again_from_the_command_line(
    world: World,
) -> None:
    with service("reaper", world.environ, log=world.log) as reaper:
        await asyncio.to_thread(reaper.wait_ready)
        async with open_connection(world.nats.url, name="test", waits=WAITS) as admin:
            planner = JetStreamConsumer(admin, stream=topology.INGEST, name="planner-0")
            await JetStreamPublisher(admin).publish_message(FACT)
            (delivery,) = await planner.fetch_batch(messages_max=1, wait_s=60)
            await JetStreamDeadLetters(admin).bury_delivery(
                delivery, stream=topology.INGEST, consumer="planner-0", reason="not a fact batch"
            )

            listed = await noetl("ls", "--nats", world.nats.url)
            assert "not a fact batch" in listed
            (summary,) = msgspec.json.decode(await noetl("ls", "--json", "--nats", world.nats.url))
            sequence = str(summary["sequence"])
            shown = await noetl("show", sequence, "--nats", world.nats.url)
            assert '"poison": 1' in shown
            assert "noetl.ingest.0.acme.ops" in shown

            assert "1 sent again" in await noetl("requeue", "--all", "--nats", world.nats.url)
            (again,) = await planner.fetch_batch(messages_max=1, wait_s=60)
            assert again.data == FACT.data
            assert "No dead letters" in await noetl("ls", "--nats", world.nats.url)


async def noetl(*arguments: str) -> str:
    """Run `noetl dlq …` and return all that it wrote."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["dlq", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


async def test_a_reaper_puts_sealed_payloads_aside_that_nothing_mentions(
    world: World, tmp_path: Path
) -> None:
    root, key = tmp_path / "payloads", f"k1:{b64encode(bytes(32)).decode()}"
    place = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    async with open_payloads(f"file://{root}", seals=read_payload_keys(key, file="")) as payloads:
        inner = await payloads.put_payload(b"inner", media_type="text/plain", **place)
        outer = await payloads.put_payload(inner.uri.encode(), media_type="text/plain", **place)
        garbage = await payloads.put_payload(b"garbage", media_type="text/plain", **place)
    for file in root.rglob("*"):
        os.utime(file, (0, 0))
    step_exit = StepExit(
        step="s", run_id=RunId("1"), status=RunStatus.COMPLETED, patch={"x": outer.uri}
    )
    stream = a_stream(an_execution(), [step_exit])
    await world.stores.ledger.append(an_append(await a_fence(world.stores), stream))
    environ = {
        **world.environ,
        "PAYLOAD_URL": f"file://{root}",
        "PAYLOAD_SEAL_KEY": key,
        "PAYLOAD_TTL_S": "86400",
        "PAYLOAD_SWEEP_INTERVAL_S": "0.5",
    }

    def where() -> dict[str, str]:
        files = (file for file in walk_folder(root) if file.is_file())
        return {file.name: file.relative_to(root).parts[4] for file in files}

    async def is_shelved() -> bool:
        return where().get(garbage.sha256) == "shelf"

    with service("reaper", environ, log=world.log) as reaper:
        await asyncio.to_thread(reaper.wait_ready)
        assert await eventually(is_shelved)
        assert await eventually(partial(is_logged, world, "payloads collected"))
        assert await asyncio.to_thread(reaper.stop) == 0
    assert where() == {
        garbage.sha256: "shelf",
        inner.sha256: "payloads",
        outer.sha256: "payloads",
    }
    assert "AAAA" not in world.log.read_text()


async def test_a_reaper_counts_what_bounded_tenants_store(world: World, tmp_path: Path) -> None:
    address, free = f"file://{tmp_path}/payloads", TenantId("free")
    async with open_payloads(address) as store:
        for tenant in (free, ACME):
            await store.put_payload(
                b"12345", media_type=JSON_MEDIA_TYPE, tenant_id=tenant, organization_id=OPS
            )
        await world.stores.quotas.put_quota(TenantQuota(tenant_id=ACME, stored_bytes_max=9))
        environ = {**world.environ, "PAYLOAD_URL": address, "STORAGE_COUNT_INTERVAL_S": "0.2"}
        with service("reaper", environ, log=world.log) as reaper:
            await asyncio.to_thread(reaper.wait_ready)

            async def find_count() -> int | None:
                stored = await world.stores.quotas.find_stored(ACME)
                return None if stored is None else stored.stored_bytes

            assert await eventually(find_count) == 5
            await store.put_payload(
                b"678", media_type=JSON_MEDIA_TYPE, tenant_id=ACME, organization_id=OPS
            )

            async def is_counted_again() -> bool:
                return await find_count() == 8

            assert await eventually(is_counted_again)
            assert await asyncio.to_thread(reaper.stop) == 0
    # Without a quota nothing of a tenant is listed.
    assert await world.stores.quotas.find_stored(free) is None


async def test_a_reaper_lets_a_month_go_by_its_policy_and_nothing_that_is_held(
    world: World, tmp_path: Path
) -> None:
    url, owner = f"file://{tmp_path / 'archive'}", retaining.OWNER
    await retaining.make_partition(world.database)
    fence, stories = await a_fence(world.stores), (a_single_step(), a_cursor_loop(), a_shop())
    histories = [retaining.of_the_month(story, number) for number, story in enumerate(stories)]
    for history in histories:
        await retaining.keep(world.stores, fence, history)
    held, *others = [history.execution_id for history in histories]
    before = [
        await retaining.replayed(world.stores.ledger_reader, item) for item in (held, *others)
    ]
    holds = world.stores.holds
    await holds.place_hold(owner, execution_id=held, reason="case 7", who="ann")
    await holds.set_policy(owner, keep_days=0, action=RetentionAction.ARCHIVE, who="ann")

    async def left() -> int:
        return await world.database.get_value("select count(*) from noetl.event")

    async def statuses() -> list[UnitStatus]:
        return [unit.status for unit in await holds.list_units(owner, units_max=10)]

    async def is_archived() -> bool:
        return await statuses() == [UnitStatus.VERIFIED]

    async def are_dropped() -> bool:
        return await statuses() == [UnitStatus.DROPPED, UnitStatus.DROPPED]

    async def is_gone() -> bool:
        name = f"noetl.{retaining.PARTITION}"
        is_there = "select to_regclass($1) is not null"
        return not await world.database.get_value(is_there, name)

    whole = await left()
    dry = await noetl_retention(
        "run", "--dry-run", "--postgres", world.archivist_dsn, "--payloads", url
    )
    (plan,) = msgspec.json.decode(dry)["plans"]
    assert (plan["due"][0]["histories"], await left(), await statuses()) == (2, whole, [])
    environ = {
        **world.environ,
        "RETENTION_DSN": world.archivist_dsn,
        "RETENTION_SWEEP_INTERVAL_S": "0.3",
        "PAYLOAD_URL": url,
    }
    with service("reaper", environ, log=world.log) as reaper:
        await asyncio.to_thread(reaper.wait_ready)
        # The others are safe in the archive, and wait: their month cannot go without the held one.
        assert await eventually(is_archived)
        assert await left() == whole
        await holds.release_hold(owner, execution_id=held, reason="closed", who="ann")
        assert await eventually(is_gone)
        assert await eventually(are_dropped)
        assert await eventually(partial(is_logged, world, "histories leave the ledger"))
        assert await asyncio.to_thread(reaper.stop) == 0
    async with open_payloads(url) as store:
        archive = ArchiveReader(PostgresArchiveIndex(world.database), store)
        reader = ArchivedReader(PostgresLedger(world.database), archive)
        assert [await retaining.replayed(reader, item) for item in (held, *others)] == before


async def noetl_retention(*arguments: str) -> str:
    """Run `noetl retention … --json` and return what it wrote."""
    words = ["retention", *arguments, "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    return result.output
