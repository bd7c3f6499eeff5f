"""PostgreSQL, NATS and S3 in containers of compose's images, started through testcontainers.

Each has the methods of its namesake in `tests.support.servers`. With NOETL_TEST_SERVERS=containers
the suites of the ports go over these.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import composed, containers, servers
from tests.support.servers import NatsServer, PostgresServer, S3Server, wait_until

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose"
POSTGRES, NATS, S3 = "postgres:18", "nats:2.15-alpine", "chrislusf/seaweedfs:4.48"
READY_S = 120.0
USERS = composed.list_bus_users()
REGION, BUCKET = "us-east-1", "noetl"


def are_contained() -> bool:
    """Tell whether this session's servers run in containers."""
    return os.environ.get("NOETL_TEST_SERVERS") == "containers"


def open_container(image: str, **options: Any) -> Any:
    """Return a container that is not started yet; options are those of Docker's own client.

    Without the helper that removes what a killed session leaves: its image is from a registry, and
    whoever starts a container here removes it.
    """
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    module = pytest.importorskip(
        "testcontainers.core.container", reason="testcontainers is missing: make test/containers"
    )
    return module.DockerContainer(image).with_kwargs(**options)


def skip_without_docker(*images: str) -> None:
    """Skip with the reason why no container of these images can be started."""
    if obstacle := containers.find_obstacle(images=images, is_composed=False):
        pytest.skip(obstacle)


def publish_ports(container: Any, *ports: int) -> None:
    """Let this machine, and no other, reach ports of a container."""
    for port in ports:
        container.ports[f"{port}/tcp"] = ("127.0.0.1", None)


@contextmanager
def started(container: Any, *, ready: list[str] | None = None) -> Iterator[Any]:
    """Start a container, wait until a program in it says that it is ready, remove it in the end."""
    try:
        container.start()
        if ready:
            wait_until(
                lambda: container.exec(ready).exit_code == 0,
                timeout_s=READY_S,
                what=f"{container.image} is ready",
            )
        yield container
    finally:
        container.stop()


class ContainedPostgres(PostgresServer):
    """PostgreSQL in a container; it is started and removed by who opened it."""

    def __init__(self, host: str, port: int, password: str) -> None:
        self.host, self.port, self.password = host, port, password
        self._empty_databases: list[str] = []

    def admin_dsn(self, database: str = "postgres") -> str:
        return self.dsn(user="postgres", password=self.password, database=database)

    def dsn(self, *, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{password}@{self.host}:{self.port}/{database}"


class ContainedNats(NatsServer):
    """NATS in a container, whose files are in a folder of this machine."""

    def __init__(self, port: int, monitor: int, passwords: dict[str, str], folder: Path) -> None:
        self.port, self._monitor, self._passwords = port, monitor, passwords
        self.server: Any = SimpleNamespace(store_folder=folder)

    @property
    def url(self) -> str:
        return self.url_for("admin")

    @property
    def monitor_url(self) -> str:
        return f"http://127.0.0.1:{self._monitor}"

    def url_for(self, user: str) -> str:
        return f"nats://{user}:{self._passwords[user]}@127.0.0.1:{self.port}"


class ContainedS3(S3Server):
    """SeaweedFS in a container, with compose's bucket."""

    def __init__(self, port: int, access_key: str, secret_key: str) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.bucket, self.region = BUCKET, REGION
        self.access_key, self.secret_key = access_key, secret_key
        self.payload_url = f"s3://{BUCKET}?endpoint={self.endpoint}&region={REGION}"


@contextmanager
def contained_postgres() -> Iterator[PostgresServer]:
    """A started PostgreSQL of compose's image."""
    skip_without_docker(POSTGRES)
    password = secrets.token_hex(12)
    command = ["postgres", "-c", "max_connections=200", "-c", "max_wal_size=4GB"]
    container = open_container(POSTGRES, shm_size="256m").with_command(command)
    container.with_env("POSTGRES_PASSWORD", password)
    publish_ports(container, 5432)
    with started(container, ready=["pg_isready", "-h", "127.0.0.1", "-U", "postgres"]) as running:
        yield ContainedPostgres("127.0.0.1", running.get_exposed_port(5432), password)


@contextmanager
def contained_nats(folder: Path) -> Iterator[NatsServer]:
    """A started NATS of compose's image, with compose's configuration and users."""
    skip_without_docker(NATS)
    data = folder / "data"
    data.mkdir()
    passwords = {user: secrets.token_hex(12) for user in USERS}
    # As this process, so that it may remove the files.
    container = open_container(
        NATS,
        user=f"{os.getuid()}:{os.getgid()}",
        entrypoint=["nats-server", "-c", "/etc/nats/nats.conf"],
    )
    for user, password in passwords.items():
        container.with_env(f"NATS_{user.upper()}_PASSWORD", password)
    container.with_volume_mapping(data, "/data", "rw")
    container.with_volume_mapping(COMPOSE / "nats.conf", "/etc/nats/nats.conf")
    permissions = ROOT / "deploy/nats/permissions.conf"
    container.with_volume_mapping(permissions, "/etc/nats/permissions.conf")
    publish_ports(container, 4222, 8222)
    ready = ["wget", "-qO-", "http://127.0.0.1:8222/healthz"]
    with started(container, ready=ready) as running:
        ports = (running.get_exposed_port(4222), running.get_exposed_port(8222))
        yield ContainedNats(*ports, passwords, data / "jetstream")


@contextmanager
def contained_s3(folder: Path) -> Iterator[S3Server]:
    """A started SeaweedFS of compose's image, with its bucket."""
    skip_without_docker(S3)
    access_key, secret_key = secrets.token_hex(8), secrets.token_hex(16)
    told = folder / "environment"
    told.write_text(f"ACCESS_KEY='{access_key}'\nSECRET_KEY='{secret_key}'\n")
    told.chmod(0o444)
    container = open_container(S3, entrypoint=["/bin/sh", "/etc/noetl/s3.sh"])
    container.with_volume_mapping(told, "/run/noetl/environment")
    container.with_volume_mapping(COMPOSE / "s3.sh", "/etc/noetl/s3.sh")
    publish_ports(container, 8333)
    with started(container, ready=["test", "-e", "/tmp/ready"]) as running:  # noqa: S108 - inside the container
        yield ContainedS3(running.get_exposed_port(8333), access_key, secret_key)


@contextmanager
def open_postgres(folder: Path) -> Iterator[PostgresServer]:
    """PostgreSQL as this session has it: a process or a container."""
    with contained_postgres() if are_contained() else servers.postgres_server(folder) as server:
        yield server


@contextmanager
def open_nats(folder: Path) -> Iterator[NatsServer]:
    """NATS as this session has it: a process or a container."""
    with contained_nats(folder) if are_contained() else servers.nats_server(folder) as server:
        yield server


@contextmanager
def open_s3(folder: Path) -> Iterator[S3Server]:
    """S3 as this session has it: a process or a container."""
    with contained_s3(folder) if are_contained() else servers.s3_server(folder) as server:
        yield server
