"""Nobody hears what another user of the broker is answered or handed."""

import asyncio

import pytest
from nats.aio.client import Client
from tests.support.servers import NatsServer

from noetl_messaging.jetstream.connection import INBOX, build_inbox_prefix, open_connection

SERVICES = ("planner", "worker", "projector", "outbox", "reaper")


@pytest.mark.parametrize(
    ("url", "inbox"),
    [
        ("nats://planner:secret@broker:4222", "_INBOX_planner"),
        ("nats://team%2Da:secret@broker:4222", "_INBOX_team-a"),
        ("nats://broker:4222", INBOX),
        ("nats://a.b:secret@broker:4222", INBOX),
        ("nats://%3E:secret@broker:4222", INBOX),
    ],
)
def test_an_inbox_is_named_after_the_user(url: str, inbox: str) -> None:
    assert build_inbox_prefix(url) == inbox


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_hears_its_own_answers(nats: NatsServer, service: str) -> None:
    async with open_connection(nats.url_for(service), name=service) as connection:
        answer = await connection.client.request("$JS.API.INFO", timeout=60)
    assert b"account_info_response" in answer.data


@pytest.mark.parametrize("listener", [*SERVICES, "source"])
@pytest.mark.parametrize("inbox", [INBOX, *(f"{INBOX}_{service}" for service in SERVICES)])
async def test_nobody_listens_at_the_inbox_of_another(
    nats: NatsServer, listener: str, inbox: str
) -> None:
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def on_error(error: Exception) -> None:
        if not refused.done():
            refused.set_result(str(error).lower())

    client = Client()
    await client.connect(nats.url_for(listener), error_cb=on_error)
    await client.subscribe(f"{inbox}.>")
    await client.flush()
    is_own = inbox == (INBOX if listener == "source" else f"{INBOX}_{listener}")
    async with asyncio.timeout(60):
        if not is_own:
            assert "permissions violation for subscription" in await refused
    assert refused.done() is not is_own
    await client.close()
