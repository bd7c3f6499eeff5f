"""Who is connected, by which the reaper finds lost workers.

Every server of the cluster is asked for the connections of the account.
"""

import asyncio

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from noetl_contracts import codec
from noetl_messaging.jetstream.connection import Connection, translate_errors
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import ConnectionReport, OpenConnection

# Any user may ask for the connections of its own account, if it may publish here.
SUBJECT = "$SYS.REQ.ACCOUNT.PING.CONNZ"
_PAGE = 1024
# A server that has not answered by then after another one is taken for gone.
_OTHERS_WITHIN_S = 0.3


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """One connection; programs that give themselves no name have an empty one."""

    cid: int
    name: str = ""


class ConnectionPage(Struct, frozen=True, kw_only=True):
    """A part of a server's connections."""

    server_id: str
    total: int
    connections: list[ConnectionInfo] = []


class ServerAnswer(Struct, frozen=True, kw_only=True):
    """What one server answers; without `data` it could not."""

    data: ConnectionPage | None = None


class NatsConnections:
    """Asks the servers who is connected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list_connections(self) -> ConnectionReport:
        """Return who is connected now. Raises `MessagingUnavailable`."""
        connections: set[OpenConnection] = set()
        servers: set[str] = set()
        offset, has_more = 0, True
        while has_more:
            pages = await self._request_pages(offset)
            servers.update(page.server_id for page in pages)
            connections.update(
                OpenConnection(server=page.server_id, number=connection.cid, name=connection.name)
                for page in pages
                for connection in page.connections
            )
            offset += _PAGE
            has_more = any(page.total > offset for page in pages)
        return ConnectionReport(servers=frozenset(servers), connections=frozenset(connections))

    async def _request_pages(self, offset: int) -> list[ConnectionPage]:
        self._connection.require_connected()
        client = self._connection.client
        answers: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = client.new_inbox()
        question = codec.encode_json({"offset": offset, "limit": _PAGE})
        with translate_errors("asking who is connected"):
            subscription = await client.subscribe(inbox, cb=answers.put)
            try:
                await client.publish(SUBJECT, question, reply=inbox)
                return await self._collect_pages(answers)
            finally:
                if not client.is_closed:
                    await subscription.unsubscribe()

    async def _collect_pages(self, answers: asyncio.Queue[Msg]) -> list[ConnectionPage]:
        """Wait for the first server, and then a moment for each further one."""
        pages: list[ConnectionPage] = []
        wait_s = self._connection.waits.request_s
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    page = _parse_page(await answers.get())
            except TimeoutError:
                if not pages:
                    raise
                return pages
            pages.append(page)
            wait_s = _OTHERS_WITHIN_S


def _parse_page(message: Msg) -> ConnectionPage:
    """Read an answer; raises `MessagingUnavailable` for one that tells nothing."""
    if message.headers and "Status" in message.headers:
        raise MessagingUnavailable(f"nobody answers {SUBJECT} ({message.headers['Status']})")
    try:
        page = codec.decode_as(message.data, ServerAnswer).data
    except msgspec.DecodeError as failure:
        raise MessagingUnavailable(
            f"the answer to {SUBJECT} cannot be read: {failure}"
        ) from failure
    if page is None:
        raise MessagingUnavailable(f"a server refuses {SUBJECT}")
    return page
