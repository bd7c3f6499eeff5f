"""How the services stand, for who administers the installation: lag, backlog, settings."""

from http import HTTPStatus
from typing import Any

import pytest
from tests.support.api import ApiWorld
from tests.support.identities import (
    NOBODY,
    OTHER,
    OWNER,
    make_caller,
    make_guarded_app,
    open_client,
)

from noetl_messaging.memory.broker_settings import MemoryBrokerSettings
from noetl_messaging.streams.broker_durability import BrokerSettings, JetStreamConfig
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Backlog
from noetl_planner.api.app import create_app
from noetl_storage.memory.durability import MemoryDurability
from noetl_storage.ports.durability_ports import judge_settings
from noetl_storage.ports.errors import StorageUnavailable

ADDRESS = "/api/health/services"
DURABLE = {
    "data_checksums": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "server_version": "18.0",
    "synchronous_commit": "remote_apply",
}


class GivenBacklogs:
    """Consumers as a test says."""

    def __init__(self, backlogs: dict[str, Backlog] | None) -> None:
        self._backlogs = backlogs

    async def list_backlogs(self, stream: str) -> dict[str, Backlog]:
        if self._backlogs is None:
            raise MessagingUnavailable("NATS is away")
        return self._backlogs if stream == "NOETL_EVENTS" else {}

    async def find_backlog(self, *, stream: str, consumer: str) -> Backlog | None:
        return (await self.list_backlogs(stream)).get(consumer)


class GivenOutbox:
    """So many messages, of such an age."""

    def __init__(self, rows: int, oldest_s: float) -> None:
        self._backlog = rows, oldest_s

    async def count_backlog(self) -> tuple[int, float]:
        return self._backlog


class LostDatabase:
    """A database that is away."""

    async def read_settings(self) -> dict[str, str]:
        raise StorageUnavailable("the ledger is away")


class LostBroker:
    """A broker that is away."""

    async def read_settings(self) -> None:
        raise MessagingUnavailable("NATS is away")


async def ask(**services: Any) -> Any:
    world = ApiWorld()
    async with open_client(create_app(world.services(**services)), NOBODY) as client:
        answer = await client.get(ADDRESS)
    assert answer.status_code == HTTPStatus.OK, answer.text
    return answer.json()


async def test_projectors_are_listed_by_number_with_what_they_have_to_do() -> None:
    names = ["projector-10-of-12", "projector-2-of-12", "lineage-1", "planner-3"]
    backlogs = {name: Backlog(pending=3, unsettled=2, asking=0) for name in names}
    shown = await ask(backlogs=GivenBacklogs(backlogs))
    assert shown["projectors"] == [
        {"consumer": "projector-2-of-12", "lag": 5, "is_served": True},
        {"consumer": "projector-10-of-12", "lag": 5, "is_served": True},
    ]


@pytest.mark.parametrize(("oldest_s", "is_well"), [(0.0, True), (30.0, True), (30.1, False)])
async def test_an_old_message_of_the_outbox_is_told(oldest_s: float, *, is_well: bool) -> None:
    shown = await ask(outbox_backlog=GivenOutbox(7, oldest_s))
    assert shown["outbox"] == {"rows": 7, "oldest_s": oldest_s, "is_well": is_well}


async def test_settings_are_judged_one_by_one() -> None:
    settings = {**DURABLE, "fsync": "off"}
    shown = await ask(durability=MemoryDurability(settings))
    assert {item["name"]: item["is_well"] for item in shown["settings"]} == {
        "postgres data_checksums": True,
        "postgres fsync": False,
        "postgres full_page_writes": True,
        "postgres synchronous_commit": True,
    }
    (fsync,) = [item for item in shown["settings"] if not item["is_well"]]
    assert "Set it to `on`" in fsync["way_out"]


async def test_a_server_that_is_away_hides_no_other_part() -> None:
    shown = await ask(
        backlogs=GivenBacklogs(None), durability=LostDatabase(), broker_settings=LostBroker()
    )
    assert (shown["projectors"], shown["settings"], shown["broker_settings"]) == (None, None, None)
    assert shown["outbox"]["rows"] == 0
    assert shown["problems"] == {
        "projectors": "NATS is away",
        "settings": "the ledger is away",
        "broker_settings": "NATS is away",
    }


@pytest.mark.parametrize(
    ("interval_s", "is_well", "words"),
    [
        (0, True, "Every acknowledged message is on the disk"),
        (1, True, "may lose the messages of the last 1 s"),
        (120, False, "may lose the messages of the last 120 s"),
        (None, None, "NOETL_PLANNER_NATS_MONITOR_URL"),
    ],
)
async def test_what_the_broker_may_lose_is_told(
    interval_s: float | None, *, is_well: bool | None, words: str
) -> None:
    storage = {"NOETL_EVENTS": "file", "NOETL_INGEST": "file"}
    given = BrokerSettings(sync_interval_s=interval_s, storage_by_stream=storage)
    shown = await ask(broker_settings=MemoryBrokerSettings(given))
    kept, interval = shown["broker_settings"]
    assert (kept["name"], kept["found"], kept["is_well"]) == ("nats storage", "file", True)
    assert (interval["name"], interval["is_well"]) == ("nats sync_interval", is_well)
    assert interval["at_risk_s"] == (interval_s or 0)
    assert words in (interval["meaning"] if is_well else interval["way_out"])


async def test_a_stream_in_memory_is_told() -> None:
    storage = {"NOETL_EVENTS": "memory", "NOETL_INGEST": "file"}
    given = BrokerSettings(sync_interval_s=1, storage_by_stream=storage)
    shown = await ask(broker_settings=MemoryBrokerSettings(given))
    kept, _ = shown["broker_settings"]
    assert (kept["found"], kept["is_well"]) == ("memory: NOETL_EVENTS", False)
    assert "noetl_messaging apply" in kept["way_out"]


async def test_a_broker_in_memory_has_no_settings() -> None:
    assert (await ask())["broker_settings"] == []


async def test_only_who_administers_the_installation_is_told() -> None:
    world = ApiWorld()
    other = await make_caller(world, "admin", place=OTHER)
    viewer = await make_caller(world, "viewer")
    admin = await make_caller(world, "admin")
    for caller, status in (
        (OWNER, HTTPStatus.OK),
        (admin, HTTPStatus.OK),
        (viewer, HTTPStatus.FORBIDDEN),
        (other, HTTPStatus.FORBIDDEN),
    ):
        async with open_client(make_guarded_app(world), caller) as client:
            assert (await client.get(ADDRESS)).status_code == status, caller.name


@pytest.mark.parametrize(
    ("name", "value", "is_kept"),
    [
        ("fsync", "off", False),
        ("synchronous_commit", "local", False),
        ("synchronous_commit", "remote_apply", True),
        ("fsync", "remote_apply", False),
    ],
)
def test_a_setting_is_kept_where_nothing_acknowledged_is_lost(
    name: str, value: str, *, is_kept: bool
) -> None:
    (finding,) = judge_settings({name: value, "server_version": "18"})
    assert (finding.is_kept, bool(finding.way_out)) == (is_kept, not is_kept)


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        (JetStreamConfig(), None),
        (JetStreamConfig(sync_interval=120_000_000_000), 120.0),
        (JetStreamConfig(sync_interval=120_000_000_000, sync_always=True), 0.0),
    ],
)
def test_an_interval_that_a_server_does_not_tell_is_not_always(
    config: JetStreamConfig, seconds: float | None
) -> None:
    assert config.interval_s == seconds
