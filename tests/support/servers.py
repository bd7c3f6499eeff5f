"""Real PostgreSQL, NATS and S3 servers for tests: start, stop, kill, wipe."""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import asyncpg
import psutil
from msgspec import structs
from tests.support.polling import Patience

from noetl_cli.stack.processes import loopback, probes, process_spec
from noetl_cli.stack.processes.process_spec import Probe, ProcessSpec
from noetl_cli.stack.servers import nats, postgres, seaweedfs
from noetl_messaging.streams.worker_permissions import WorkerUser

READY_TIMEOUT_S = 120.0
POLL_S = 0.02
_END_OTHER_SESSIONS = """
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""
# Nothing is there that the removal of its schema would leave.
_IS_PLAIN = """
select not exists (
        select from pg_namespace
        where nspname !~ '^pg_' and nspname not in ('public', 'information_schema')
    )
    and not exists (select from pg_extension where extname <> 'plpgsql')
    and not exists (
        select from pg_db_role_setting as s join pg_database as d on d.oid = s.setdatabase
        where d.datname = current_database()
    )
    and not exists (select from pg_event_trigger)
    and not exists (select from pg_foreign_server)
    and not exists (select from pg_publication)
    and not exists (select from pg_largeobject_metadata)
    and not exists (select from pg_prepared_xacts where database = current_database())
"""
_EMPTY_SCHEMA = """
drop schema public cascade;
create schema public authorization pg_database_owner;
grant usage on schema public to public
"""
# A child that dies with its parent dies with the thread that started it, and the threads of an
# event loop end with that: this one stays.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="starter")


def wait_until(is_true: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Poll a condition until it holds; fail with its name when it never does."""
    patience = Patience(timeout_s)
    while not is_true():
        if patience.has_ended:
            raise TimeoutError(f"not within {timeout_s} s: {what}")
        time.sleep(POLL_S)


def wait_past(since: float, seconds: float) -> None:
    """Let a lease end that began at `since` on the monotonic clock and lasts so long."""
    wait_until(
        lambda: time.monotonic() - since > seconds,
        timeout_s=seconds * 2,
        what="the lease has ended",
    )


class Server:
    """One server process; every method blocks: call it through `asyncio.to_thread` from a loop."""

    def __init__(self, spec: ProcessSpec, *, log: Path) -> None:
        self.spec = spec
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.spec.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start, and by default wait until the server answers."""
        assert not self.is_running, f"{self.spec.name} runs already"
        environ = process_spec.build_server_environ(self.spec, path=os.environ.get("PATH", ""))
        starting = partial(
            process_spec.start_process, environ=environ, log=self.log, dies_with_parent=True
        )
        self._process = _STARTER.submit(starting, self.spec).result()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the server answers; show its log when it ends instead."""
        until = time.monotonic() + READY_TIMEOUT_S
        while not probes.is_answering(self.spec.probe):
            if not self.is_running or time.monotonic() > until:
                raise RuntimeError(f"{self.spec.name} did not start:\n{self.tail()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ask it to end; end it when it does not."""
        if self._process is None:
            return
        if self.is_running:
            self._process.send_signal(self.spec.stop_signal)
            try:
                self._process.wait(self.spec.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """End it and its children without a warning."""
        if self._process is None:
            return
        try:
            family = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self._process.kill()
        self._process.wait()
        for child in family:
            with_child_gone(child)
        self._process = None

    def restart(self, *, hard: bool = False) -> None:
        """Stop (or kill) and start."""
        if hard:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        if not self.log.is_file():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def with_child_gone(child: psutil.Process) -> None:
    """Kill a child that may already be gone and wait for it."""
    try:
        child.kill()
        child.wait(READY_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return


AnyServer = TypeVar("AnyServer", bound=Server)


class PostgresServer(Server):
    """PostgreSQL; `admin_dsn()` is the superuser's."""

    def __init__(self, cluster: postgres.PostgresCluster, *, home: Path) -> None:
        super().__init__(postgres.build_postgres_spec(cluster), log=home / "postgres.log")
        self.cluster = cluster
        self.port = cluster.port
        self._empty_databases: list[str] = []

    def admin_dsn(self, database: str = "postgres") -> str:
        return postgres.admin_dsn(self.cluster, database=database)

    def dsn(self, *, user: str, password: str, database: str) -> str:
        return postgres.build_dsn(port=self.port, user=user, password=password, database=database)

    def start(self, *, wait: bool = True) -> None:
        postgres.prepare_postgres(self.cluster)
        super().start(wait=wait)

    def execute(self, sql: str, *, database: str = "postgres") -> None:
        """Run statements as superuser, outside any event loop of the test's own."""
        asyncio.run(self.execute_async(sql, database=database))

    async def execute_async(self, sql: str, *, database: str = "postgres") -> None:
        """Run statements as superuser."""
        connection = await asyncpg.connect(self.admin_dsn(database))
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def create_database(self, name: str) -> str:
        """Make an empty database and return the superuser's DSN of it."""
        # Files are copied in a seventh of the time that it takes to log their pages.
        await self.execute_async(f'create database "{name}" strategy file_copy')
        return self.admin_dsn(name)

    async def drop_database(self, name: str) -> None:
        """Remove a database and whoever is still connected to it."""
        await self.execute_async(f'drop database if exists "{name}" with (force)')

    async def take_empty_database(self) -> str:
        """Return the name of an empty database, which was emptied or is new."""
        if self._empty_databases:
            return self._empty_databases.pop()
        name = f"test_{secrets.token_hex(6)}"
        await self.create_database(name)
        return name

    async def give_database_back(self, name: str) -> None:
        """Empty a database for the next test; to make another one takes five times as long.

        One that holds more than its first schema does is removed.
        """
        connection = await asyncpg.connect(self.admin_dsn(name))
        try:
            await connection.execute(_END_OTHER_SESSIONS)
            is_plain = await connection.fetchval(_IS_PLAIN)
            if is_plain:
                await connection.execute(_EMPTY_SCHEMA)
        finally:
            await connection.close()
        if is_plain:
            self._empty_databases.append(name)
        else:
            await self.drop_database(name)


class NatsServer(Server):
    """NATS with JetStream; `url` is the admin's, `url_for("worker")` a service's."""

    def __init__(self, server: nats.NatsServer, *, home: Path, probe: Probe | None = None) -> None:
        spec = nats.build_nats_spec(server)
        super().__init__(structs.replace(spec, probe=probe or spec.probe), log=home / "nats.log")
        self.server = server
        self.port = server.port

    @property
    def url(self) -> str:
        return nats.nats_url(self.server, "admin")

    @property
    def monitor_url(self) -> str:
        return nats.nats_url(self.server, nats.MONITOR)

    def url_for(self, user: str) -> str:
        return nats.nats_url(self.server, user)

    def wipe(self) -> None:
        """Kill the server, remove every stream, start it again."""
        was_running = self.is_running
        self.kill()
        shutil.rmtree(self.server.store_folder, ignore_errors=True)
        if was_running:
            self.start()


class S3Server(Server):
    """SeaweedFS; the bucket exists once it has started."""

    def __init__(self, server: seaweedfs.SeaweedFsServer, *, home: Path) -> None:
        super().__init__(seaweedfs.build_seaweedfs_spec(server), log=home / "s3.log")
        self.server = server
        self.endpoint = server.endpoint
        self.bucket = server.bucket
        self.region = seaweedfs.REGION
        self.access_key = server.access_key
        self.secret_key = server.secret_key
        self.payload_url = server.payload_url


@contextmanager
def _hold_ports(names: Iterable[str]) -> Iterator[dict[str, int]]:
    """Choose ports, and let nobody else choose them for as long as the block lasts."""
    held = loopback.HeldPorts()
    try:
        yield loopback.choose_ports(names, before={}, held=held)
    finally:
        held.close()


@contextmanager
def _run_server(server: AnyServer) -> Iterator[AnyServer]:
    """Start a server for as long as the block lasts, and kill it then."""
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def postgres_server(tmp: Path, *, is_durable: bool = False) -> Iterator[PostgresServer]:
    """A started PostgreSQL below `tmp`; not durable against power failure unless asked for."""
    with _hold_ports(["postgres"]) as chosen:
        cluster = postgres.describe_postgres(
            home=tmp,
            port=chosen["postgres"],
            password=secrets.token_urlsafe(12),
            is_durable=is_durable,
        )
        try:
            with _run_server(PostgresServer(cluster, home=tmp)) as server:
                yield server
        finally:
            _remove_cluster(cluster, tmp)


def _remove_cluster(cluster: postgres.PostgresCluster, tmp: Path) -> None:
    shutil.rmtree(cluster.directory, ignore_errors=True)
    if not cluster.directory.is_relative_to(tmp):
        shutil.rmtree(cluster.directory.parent, ignore_errors=True)


@contextmanager
def nats_server(
    tmp: Path, *, sync_interval: str = nats.SYNC_INTERVAL, workers: tuple[WorkerUser, ...] = ()
) -> Iterator[NatsServer]:
    """A started NATS with JetStream below `tmp`, and users of `workers` beside the services'."""
    with _hold_ports(["nats"]) as chosen:
        server = nats.describe_nats(
            home=tmp,
            port=chosen["nats"],
            password_by_user={
                user: secrets.token_urlsafe(12)
                for user in (*nats.USERS, *(worker.name for worker in workers))
            },
            workers=workers,
            sync_interval=sync_interval,
        )
        nats.prepare_nats(server)
        with _run_server(NatsServer(server, home=tmp)) as live:
            yield live


@contextmanager
def s3_server(tmp: Path) -> Iterator[S3Server]:
    """A started SeaweedFS below `tmp`."""
    with _hold_ports(seaweedfs.PORTS) as chosen:
        server = seaweedfs.describe_seaweedfs(
            home=tmp,
            ports=chosen,
            access_key=secrets.token_hex(8),
            secret_key=secrets.token_hex(16),
            target_access_key=secrets.token_hex(8),
            target_secret_key=secrets.token_hex(16),
        )
        seaweedfs.prepare_seaweedfs(server)
        with _run_server(S3Server(server, home=tmp)) as live:
            yield live
