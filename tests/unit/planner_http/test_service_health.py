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
    shown = await ask(backlogs=GivenBacklogs(None), durability=LostDatabase())
    assert (shown["projectors"], shown["settings"]) == (None, None)
    assert shown["outbox"]["rows"] == 0
    assert shown["problems"] == {"projectors": "NATS is away", "settings": "the ledger is away"}


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
