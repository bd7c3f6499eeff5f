"""NATS Server with JetStream on file storage: one user per service and worker, on loopback."""

import re
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from noetl_cli.stack.processes import programs
from noetl_cli.stack.processes.coarse_timers import with_coarse_timers
from noetl_cli.stack.processes.loopback import LOOPBACK
from noetl_cli.stack.processes.process_spec import NatsProbe, ProcessSpec, ProcessTier, StoreWatch
from noetl_messaging.streams.worker_permissions import WorkerUser, render_permissions

USERS = ("admin", "planner", "worker", "projector", "outbox", "reaper", "source", "monitor")
# Workers of one pool may share it; the embedded stack has a user for each worker instead.
SHARED_WORKER = "worker"
# Belongs to the server's own account, and sees nothing of the others'.
MONITOR = "monitor"
# The ledger is the authority and the reaper re-drives what a broker lost, so a power failure
# may cost a second of repeated work, never a result. `always` was measured at a sixth of the
# throughput; a killed process loses no message under any interval, only what it noted of
# deliveries in the last tenth of a second.
SYNC_INTERVAL = "1s"
MAX_PAYLOAD = "1MB"
# Said outright: else it is a share of what is free at the start, and a server that starts on a
# disk that is nearly full would not open the streams that it has.
STORE_BYTES_MAX = "8GB"
PERMISSIONS = "nats_permissions.conf"
_SHARED_PERMISSIONS = re.compile(r"^WORKER = \{.*?^\}\n", re.MULTILINE | re.DOTALL)


class NatsServer(Struct, frozen=True, kw_only=True):
    """One server: where it keeps its streams, where it listens, who may log in."""

    binary: Path
    directory: Path
    port: int
    password_by_user: dict[str, str]
    # Those of the users that are workers with permissions of their own.
    workers: tuple[WorkerUser, ...] = ()
    sync_interval: str = SYNC_INTERVAL

    @property
    def store_folder(self) -> Path:
        """Where JetStream keeps its files; may be wiped at any time."""
        return self.directory / "jetstream"


def describe_nats(
    *,
    home: Path,
    port: int,
    password_by_user: dict[str, str],
    workers: tuple[WorkerUser, ...] = (),
    sync_interval: str = SYNC_INTERVAL,
) -> NatsServer:
    """Find the program and name the folder."""
    return NatsServer(
        binary=programs.find_nats_server(),
        directory=home / "nats",
        port=port,
        password_by_user=password_by_user,
        workers=workers,
        sync_interval=sync_interval,
    )


def prepare_nats(nats: NatsServer) -> None:
    """Write the configuration."""
    nats.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    permissions = resources.files("noetl_cli.stack") / PERMISSIONS
    text = permissions.read_text("utf-8")
    if SHARED_WORKER not in nats.password_by_user:
        # The server refuses a variable that nothing refers to.
        text = _SHARED_PERMISSIONS.sub("", text)
    (nats.directory / PERMISSIONS).write_text(text)
    configuration = nats.directory / "nats.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(_render_nats_conf(nats))


def build_nats_spec(nats: NatsServer) -> ProcessSpec:
    """Describe the server's process."""
    probe = NatsProbe(url=nats_url(nats, MONITOR))
    return ProcessSpec(
        name="nats",
        tier=ProcessTier.SERVER,
        argv=with_coarse_timers((str(nats.binary), "-c", str(nats.directory / "nats.conf"))),
        directory=nats.directory,
        environ={"GOMEMLIMIT": "512MiB"},
        probe=probe,
        # A stream whose store failed once refuses everything until the server starts again.
        watch=StoreWatch(probe=probe, folder=nats.directory, interval_s=1.0),
        port=nats.port,
    )


def nats_url(nats: NatsServer, user: str) -> str:
    """Spell the address for one user."""
    password = quote(nats.password_by_user[user], safe="")
    return f"nats://{user}:{password}@{LOOPBACK}:{nats.port}"


def render_user(user: str, password: str, worker: WorkerUser | None) -> str:
    """Render a user: a service has the permissions of its name, a worker those of its pool."""
    permissions = f"${user.upper()}" if worker is None else render_permissions(worker)
    # A name of digits alone would be read as a number.
    return f'    {{ user: "{user}", password: "{password}", permissions: {permissions} }}'


def _render_nats_conf(nats: NatsServer) -> str:
    worker_by_name = {worker.name: worker for worker in nats.workers}
    users = "\n".join(
        render_user(user, password, worker_by_name.get(user))
        for user, password in sorted(nats.password_by_user.items())
        if user != MONITOR
    )
    monitor = nats.password_by_user[MONITOR]
    return f"""\
server_name: "noetl"
listen: "{LOOPBACK}:{nats.port}"
max_payload: {MAX_PAYLOAD}
jetstream {{
  store_dir: "{nats.store_folder}"
  sync_interval: "{nats.sync_interval}"
  max_file_store: {STORE_BYTES_MAX}
  max_memory_store: 64MB
}}
include "{PERMISSIONS}"
authorization {{
  users: [
{users}
  ]
}}
accounts {{
  SYS: {{ users: [ {{ user: {MONITOR}, password: "{monitor}" }} ] }}
}}
system_account: SYS
"""
