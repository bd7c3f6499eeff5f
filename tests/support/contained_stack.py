"""The five images and their servers, each container started by itself through testcontainers.

They get what compose gives them: its variables, its jobs, its walls. All are in one network, and
this machine reaches them by their addresses in it.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support import composed
from tests.support.composed import COMPOSE, ROOT, SERVICES, read_made, read_services
from tests.support.container_servers import (
    NATS,
    POSTGRES,
    READY_S,
    S3,
    open_container,
    skip_without_docker,
    started,
)
from tests.support.servers import wait_until
from tests.support.stack import Stack

REAPER = "noetl-reaper"
SETTINGS = "/run/noetl"
DEFAULT = re.compile(r"\$\{[A-Z0-9_]+:-(.*?)\}")
LOCKED: dict[str, Any] = {"read_only": True, "cap_drop": ["ALL"]}
NO_NEW = "no-new-privileges:true"
JOBS = {
    "migrate": ["job", "noetl_storage", "migrate"],
    "topology": ["job", "noetl_messaging", "apply"],
}
TARGET = "target"


class ContainedStack:
    """What runs: containers by name, and the address of this machine as they see it."""

    def __init__(self, folder: Path, network: Any) -> None:
        self.folder = folder
        self.network = network
        self.containers: dict[str, Any] = {}

    @property
    def gateway(self) -> str:
        """Where containers reach servers of this machine."""
        network = self.network._unwrap_network
        network.reload()
        return str(network.attrs["IPAM"]["Config"][0]["Gateway"])

    def address(self, name: str) -> str:
        """Where this machine, and every other container, reaches a container."""
        container = self.containers[name].get_wrapped_container()
        container.reload()
        return str(container.attrs["NetworkSettings"]["Networks"][self.network.name]["IPAddress"])

    def made(self, consumer: str) -> dict[str, str]:
        """Read what the first start made for a container."""
        return read_made(self.folder, consumer)

    def describe(self, image: str, consumer: str, name: str, **options: Any) -> Any:
        """Describe a container with its settings and its name in the network."""
        container = open_container(image, **options).with_network(self.network)
        container.with_network_aliases(name)
        return container.with_volume_mapping(self.folder / "made" / consumer, SETTINGS)


@contextmanager
def contained_stack(folder: Path, *, http_allow: str = "") -> Iterator[Stack]:
    """A started stack of containers; `http_allow` is what its worker may call besides the world.

    `{gateway}` in it is the address of this machine. The stack answers to what tests ask of one:
    its addresses, and executions.
    """
    skip_without_docker(POSTGRES, NATS, S3, *(f"noetl-{service}" for service in SERVICES))
    networks = pytest.importorskip("testcontainers.core.network")
    assert composed.make_secrets(folder).returncode == 0
    with ExitStack() as opened:
        whole = ContainedStack(folder, opened.enter_context(networks.Network()))
        _start_servers(whole, opened)
        roles = whole.describe(
            POSTGRES,
            "postgres",
            "roles",
            user="999:999",
            entrypoint=["/bin/sh", "/etc/noetl/roles.sh"],
        )
        for name in ("roles.sh", "walls.sql"):
            roles.with_volume_mapping(COMPOSE / name, f"/etc/noetl/{name}")
        run_job(roles)
        for name, command in JOBS.items():
            run_job(whole.describe(REAPER, "jobs", name).with_command(command))
        allowed = http_allow.format(gateway=whole.gateway)
        for service in SERVICES:
            described = _describe_service(whole, service)
            if service == "worker" and allowed:
                described.with_env("NOETL_WORKER_HTTP_ALLOW", allowed)
            whole.containers[service] = opened.enter_context(started(described))
        for service in SERVICES:
            wait_healthy(whole.containers[service])
        yield _as_stack(whole)


def _start_servers(whole: ContainedStack, opened: ExitStack) -> None:
    """Start PostgreSQL, NATS and S3 as compose does, and wait until they answer."""
    source = f"set -a; . {SETTINGS}/environment; set +a; exec "
    postgres = whole.describe(
        POSTGRES,
        "postgres",
        "postgres",
        shm_size="256m",
        entrypoint=["/bin/sh", "-c", f'{source} docker-entrypoint.sh "$@"', "postgres"],
    ).with_command(["postgres", "-c", "max_connections=200"])
    nats_entry = ["/bin/sh", "-c", f"{source} nats-server -c /etc/nats/nats.conf"]
    nats = whole.describe(NATS, "nats", "nats", entrypoint=nats_entry)
    nats.with_volume_mapping(COMPOSE / "nats.conf", "/etc/nats/nats.conf")
    nats.with_volume_mapping(ROOT / "deploy/nats/permissions.conf", "/etc/nats/permissions.conf")
    # It stores on a disk of memory: the container alone knows the folder.
    nats.with_tmpfs_mount("/data", "size=1g")
    s3 = whole.describe(S3, "s3", "s3", entrypoint=["/bin/sh", "/etc/noetl/s3.sh"])
    s3.with_volume_mapping(COMPOSE / "s3.sh", "/etc/noetl/s3.sh")
    checks = {
        "postgres": (postgres, ["pg_isready", "-h", "127.0.0.1", "-U", "postgres"]),
        "nats": (nats, ["wget", "-qO-", "http://127.0.0.1:8222/healthz"]),
        "s3": (s3, ["test", "-e", "/tmp/ready"]),  # noqa: S108 - inside the container
    }
    for name, (described, ready) in checks.items():
        whole.containers[name] = opened.enter_context(started(described, ready=ready))


def _describe_service(whole: ContainedStack, service: str) -> Any:
    """Describe a service with compose's variables and walls."""
    told = read_services()[service]
    security = [NO_NEW]
    if service == "worker":
        # Docker's API takes the profile itself where its command line takes a file.
        profile = msgspec.json.encode(msgspec.json.decode((COMPOSE / "seccomp.json").read_bytes()))
        security.append(f"seccomp={profile.decode()}")
    shared = {"shm_size": told["shm_size"]} if "shm_size" in told else {}
    container = whole.describe(
        f"noetl-{service}", service, service, security_opt=security, **LOCKED, **shared
    )
    for line in told["tmpfs"]:
        path, _, options = line.partition(":")
        container.with_tmpfs_mount(path, options or None)
    for name, value in told["environment"].items():
        container.with_env(name, DEFAULT.sub(r"\1", value))
    return container


def run_job(described: Any) -> None:
    """Run a container to its end, which must be a good one."""
    with started(described) as running:
        code = running.wait()
        assert code == 0, running.get_logs()


def wait_healthy(container: Any) -> None:
    """Wait until the check of the image is content."""
    wrapped = container.get_wrapped_container()

    def is_healthy() -> bool:
        wrapped.reload()
        assert wrapped.status == "running", container.get_logs()
        return bool(wrapped.attrs["State"]["Health"]["Status"] == "healthy")

    wait_until(is_healthy, timeout_s=READY_S, what=f"{container.image} is healthy")


def _as_stack(whole: ContainedStack) -> Stack:
    """Write down where everything is, as the supervisor of a stack does, and make its target."""
    password = whole.made("postgres")["PGPASSWORD"]
    host = whole.address("postgres")
    admin = f"postgresql://postgres:{password}@{host}:5432"
    psql = ["psql", "--host", "127.0.0.1", "--username", "postgres", "--no-psqlrc", "--command"]
    made = (
        whole.containers["postgres"]
        .get_wrapped_container()
        .exec_run([*psql, f"create database {TARGET}"], environment={"PGPASSWORD": password})
    )
    assert made.exit_code == 0, made.output
    reader = whole.made("postgres")["READER_PASSWORD"]
    folder = whole.folder / "stack"
    folder.mkdir()
    (folder / "token").write_text(composed.make_secrets(whole.folder, "token").stdout)
    state = {
        "ports": {"planner-1.http": 8080},
        "processes": {},
        "urls": {
            "api": f"http://{whole.address('planner')}:8080",
            "postgres": f"{admin}/noetl",
            "target": f"{admin}/{TARGET}",
            "postgres_reader": f"postgresql://noetl_reader:{reader}@{host}:5432/noetl",
            "gateway": whole.gateway,
        },
    }
    (folder / "state.json").write_bytes(msgspec.json.encode(state))
    return Stack(folder)
