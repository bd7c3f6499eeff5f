"""Notices which workers' connections to the broker have ended: values in, values out."""

from collections.abc import Collection

from noetl_contracts import subjects
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.ids import WorkerId
from noetl_messaging.streams.ports import ConnectionReport, OpenConnection

# Of more workers than this the ones that were heard first are forgotten.
WORKERS_MAX = 4096

# While a server that answered so lately does not, nothing is concluded.
SERVER_REMEMBERED_S = 30.0

# Each lane's host of a worker speaks for itself.
Host = tuple[WorkerId, tuple[str, ...]]


class WorkerDepartures:
    """Remembers workers' connections, and since when those are gone that have ended.

    A connection counts from when it was seen open. When a server leaves the cluster or starts
    again, its clients are on their way to another one: theirs are forgotten, not gone.
    """

    def __init__(self) -> None:
        self._hosts: dict[Host, None] = {}
        self._open: frozenset[OpenConnection] = frozenset()
        self._servers: frozenset[str] = frozenset()
        self._gone_since: dict[OpenConnection, float] = {}
        self._seen_at_by_server: dict[str, float] = {}

    def note_beat(self, beat: WorkerHeartbeat) -> None:
        """Remember a worker that was heard."""
        host = (beat.worker_id, beat.lanes)
        self._hosts.pop(host, None)
        self._hosts[host] = None
        while len(self._hosts) > WORKERS_MAX:
            del self._hosts[next(iter(self._hosts))]

    def note_report(self, report: ConnectionReport, now_s: float) -> None:
        """Take in who is connected now."""
        seen_at = self._seen_at_by_server | dict.fromkeys(report.servers, now_s)
        self._seen_at_by_server = {
            server: at for server, at in seen_at.items() if now_s - at < SERVER_REMEMBERED_S
        }
        is_same = self._servers <= report.servers
        closed_connections = self._open - report.connections if is_same else frozenset()
        for connection in closed_connections:
            if self._is_of_worker(connection):
                self._gone_since[connection] = now_s
        self._open, self._servers = report.connections, report.servers

    def list_departed(self, *, now_s: float, grace_s: float) -> list[OpenConnection]:
        """Return the workers' connections that have been gone for so long.

        None while a server is missing: workers connected to it would not be asked.
        """
        if not self._seen_at_by_server.keys() <= self._servers:
            return []
        return [
            connection for connection, since in self._gone_since.items() if now_s - since >= grace_s
        ]

    def list_expected_hosts(self, departed: Collection[OpenConnection] = ()) -> set[Host]:
        """Return who was heard and has not departed: these have to say what they hold."""
        waited_for = self._open.union(self._gone_since).difference(departed)
        names = {connection.name for connection in waited_for}
        return {
            host for host in self._hosts if names.intersection(subjects.list_process_names(host[0]))
        }

    def forget_departed(self, departed: Collection[OpenConnection]) -> None:
        """Forget connections whose commands have been looked after."""
        for connection in departed:
            self._gone_since.pop(connection, None)

    def forget_connections(self) -> None:
        """Forget all connections: nobody has looked for a while, or another reaper looks."""
        self._open, self._servers, self._gone_since = frozenset(), frozenset(), {}
        self._seen_at_by_server = {}

    def _is_of_worker(self, connection: OpenConnection) -> bool:
        return any(
            connection.name in subjects.list_process_names(worker_id)
            for worker_id, _ in self._hosts
        )
