"""Where each service finds its servers, and the environment that says so."""

import getpass
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.processes.loopback import LOOPBACK
from noetl_cli.stack.processes.process_spec import HttpProbe, ProcessSpec, ProcessTier
from noetl_cli.stack.servers import roles
from noetl_contracts import subjects
from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_messaging.streams.worker_permissions import WorkerUser

TENANT = "default"
ORGANIZATION = "default"
POOL = DEFAULT_POOL
WORKER_TENANTS = "NOETL_WORKER_TENANTS"
# Which service gets which addresses and keys. A service cannot reach what is not listed for it.
WITH_POSTGRES = {"planner", "projector", "outbox", "reaper"}
WITH_PAYLOADS = {"planner", "worker", "reaper", "projector"}
WITH_SECRET_KEY = {"planner", "worker"}
# Services that tell others where the planner is, and the setting for that.
PLANNER_URL_FIELDS = {"worker": "CALLBACK_URL", "reaper": "PUBLIC_URL"}
# People who start a stack of their own write its playbooks, too: python tasks may require packages
# and ask for the network, containers are of any image. Other workers refuse that until an operator
# allows it.
WORKER_DEFAULTS = {
    "NOETL_WORKER_PYTHON_REQUIREMENTS": "any",
    "NOETL_WORKER_PYTHON_NETWORK_BY_TASK": "true",
    "NOETL_WORKER_CONTAINERS": "docker",
    "NOETL_WORKER_CONTAINER_IMAGES": "*",
    "NOETL_WORKER_CONTAINER_NETWORK_BY_TASK": "true",
}


class ServiceAddresses(Struct, frozen=True, kw_only=True):
    """The addresses and keys that the stack hands to its services."""

    admin_dsn: str
    database: str
    password_by_role: dict[str, str]
    nats_url_by_user: dict[str, str]
    payload_url: str
    payload_access_key: str | None
    payload_secret_key: str | None
    secret_key: str
    owner_digest: str
    # Of roles that open this database alone; none where the stack's roles are the server's.
    only_tenant: str | None = None
    # Of a user of the server's own account; empty: the broker is not ours.
    nats_monitor_url: str = ""

    def build_role_dsn(self, role: str, *, database: str | None = None) -> str:
        """Spell the database's address for one role."""
        suffix = roles.build_role_suffix(self.only_tenant) if self.only_tenant else ""
        return roles.build_role_dsn(
            self.admin_dsn,
            role=f"{role}{suffix}",
            password=self.password_by_role[role],
            database=f"{database}{suffix}" if database else self.database,
        )


class ServiceInstance(Struct, frozen=True, kw_only=True):
    """One service process: which of how many, from 1, and for a worker its pool."""

    service: str
    index: int
    count: int
    pool: str = POOL

    @property
    def instance_name(self) -> str:
        """Return what logs and state call it."""
        of_pool = "" if self.pool == POOL else f"{self.pool}-"
        return f"{self.service}-{of_pool}{self.index}"


def list_instances(options: StackOptions) -> list[ServiceInstance]:
    """List every service process."""
    counts = {
        "planner": options.planners,
        "worker": options.workers,
        "projector": options.projectors,
        "outbox": options.outboxes,
        "reaper": options.reapers,
    }
    if not options.has_services:
        return []
    service_instances = [
        ServiceInstance(service=name, index=i, count=n)
        for name, n in counts.items()
        for i in range(1, n + 1)
    ]
    return service_instances + [
        ServiceInstance(service="worker", index=i, count=n, pool=pool)
        for pool, n in options.pools.items()
        for i in range(1, n + 1)
    ]


def list_worker_users(options: StackOptions, environ: Mapping[str, str]) -> tuple[WorkerUser, ...]:
    """Describe the broker's user of each worker, named as the process; raises `StackError`."""
    environ_settings = {**environ, **options.settings}
    entries = (entry.strip() for entry in environ_settings.get(WORKER_TENANTS, "").split(","))
    try:
        tenants = tuple(subjects.parse_tenant_shares(filter(None, entries)))
    except subjects.SharesMalformed as problem:
        raise StackError(
            f"{WORKER_TENANTS}: {problem}.", way_out="For example: acme,globex=3"
        ) from problem
    return tuple(
        WorkerUser(name=instance.instance_name, pool=instance.pool, tenants=tenants)
        for instance in list_instances(options)
        if instance.service == "worker"
    )


def list_port_names(options: StackOptions) -> list[str]:
    """Name the ports that the services need."""
    instances = list_instances(options)
    names = [f"{instance.instance_name}.health" for instance in instances]
    return names + [
        f"{instance.instance_name}.http" for instance in instances if instance.service == "planner"
    ]


def build_topology_variables(options: StackOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Say which streams and consumers there are: to the job that makes and the service that keeps.

    A command's lease is its unacknowledged delivery: the broker's and the planner's are one.
    """
    fields = {
        "PROJECTOR_COUNT": str(max(1, options.projectors)),
        "POOLS": ",".join((POOL, *options.pools)),
    }
    lease_s = {**environ, **options.settings}.get("NOETL_PLANNER_COMMAND_LEASE_S")
    return {**fields, "LEASE_S": lease_s} if lease_s else fields


def build_service_specs(
    options: StackOptions,
    *,
    wires: ServiceAddresses,
    ports: Mapping[str, int],
    environ: Mapping[str, str],
    directory: Path,
) -> tuple[ProcessSpec, ...]:
    """Describe every service process."""
    specs = []
    for item in list_instances(options):
        service, instance = item.service, item.instance_name
        service_environ = _build_service_environ(item, wires=wires, ports=ports)
        if service == "reaper":
            declared = build_topology_variables(options, environ)
            service_environ |= {f"NOETL_REAPER_{field}": value for field, value in declared.items()}
            service_environ["NOETL_REAPER_RETENTION_DSN"] = wires.build_role_dsn("noetl_archivist")
        if service == "worker":
            # The workers of this machine share the locks, and the files that outlive executions.
            service_environ["NOETL_WORKER_WORK_DIRECTORY"] = environ.get(
                "NOETL_WORKER_WORK_DIRECTORY", str(directory / "files")
            )
            service_environ["NOETL_WORKER_HTTP_ALLOW"] = ",".join(
                (*filter(None, (environ.get("NOETL_WORKER_HTTP_ALLOW"),)), *options.http_allow)
            )
        if service == "planner":
            service_environ["NOETL_PLANNER_POOLS"] = ",".join((POOL, *options.pools))
            service_environ["NOETL_PLANNER_HTTP_POOLS"] = ",".join(options.http_pools)
        health = ports[f"{instance}.health"]
        specs.append(
            ProcessSpec(
                name=instance,
                tier=ProcessTier.SERVICE,
                argv=(sys.executable, "-m", f"noetl_{service}"),
                directory=directory,
                environ={
                    **(WORKER_DEFAULTS if service == "worker" else {}),
                    **environ,
                    **service_environ,
                    **options.settings,
                },
                probe=HttpProbe(url=f"http://{LOOPBACK}:{health}/readyz"),
                port=ports.get(f"{instance}.http", health),
                health_url=f"http://{LOOPBACK}:{health}",
                stop_timeout_s=20.0,
            )
        )
    return tuple(specs)


def _build_service_environ(
    service_instance: ServiceInstance, *, wires: ServiceAddresses, ports: Mapping[str, int]
) -> dict[str, str]:
    service, instance = service_instance.service, service_instance.instance_name
    fields = {
        # A worker has a user of its own in a broker of ours.
        "NATS_URL": wires.nats_url_by_user.get(instance) or wires.nats_url_by_user[service],
        "HEALTH_PORT": str(ports[f"{instance}.health"]),
        "LOG_FORMAT": "json",
        "INSTANCE": instance,
        "TENANT_ID": wires.only_tenant or TENANT,
        "ORGANIZATION_ID": ORGANIZATION,
    }
    if service in WITH_POSTGRES:
        fields["POSTGRES_DSN"] = wires.build_role_dsn(f"noetl_{service}")
    if service in WITH_PAYLOADS:
        fields["PAYLOAD_URL"] = wires.payload_url
        if wires.payload_access_key and wires.payload_secret_key:
            fields["PAYLOAD_ACCESS_KEY"] = wires.payload_access_key
            fields["PAYLOAD_SECRET_KEY"] = wires.payload_secret_key
    if service in WITH_SECRET_KEY:
        fields["SECRET_KEY"] = wires.secret_key
    if service in PLANNER_URL_FIELDS and "planner-1.http" in ports:
        fields[PLANNER_URL_FIELDS[service]] = f"http://{LOOPBACK}:{ports['planner-1.http']}"
    match service:
        case "planner":
            fields["HTTP_HOST"] = LOOPBACK
            fields["ONLY_TENANT"] = "true" if wires.only_tenant else "false"
            fields["OWNER_TOKEN_SHA256"] = wires.owner_digest
            fields["NATS_MONITOR_URL"] = wires.nats_monitor_url
            fields["OWNER_NAME"] = getpass.getuser()
            fields["HTTP_PORT"] = str(ports[f"{instance}.http"])
        case "worker":
            fields["POOL"] = service_instance.pool
            fields["HTTP_PLATFORM_PORTS"] = ",".join(map(str, sorted(set(ports.values()))))
        case "projector":
            fields["SHARD_INDEX"] = str(service_instance.index - 1)
            fields["SHARD_COUNT"] = str(service_instance.count)
        case _:
            pass
    return {f"NOETL_{service.upper()}_{field}": value for field, value in fields.items()}
