"""Turn options, ports and secrets into the processes and jobs of one stack."""

import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from noetl_cli.stack.home_folder import stack_secrets
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.home_folder.stack_secrets import Keyring
from noetl_cli.stack.home_folder.state import StackState
from noetl_cli.stack.processes import loopback
from noetl_cli.stack.processes.loopback import LOOPBACK
from noetl_cli.stack.processes.process_spec import ProcessSpec
from noetl_cli.stack.servers import nats, postgres, roles, seaweedfs
from noetl_cli.stack.supervision import service_addresses
from noetl_cli.stack.supervision.service_addresses import ServiceAddresses
from noetl_contracts import codec
from noetl_messaging.streams.worker_permissions import WorkerUser


class StartJob(Struct, frozen=True, kw_only=True):
    """A command that must end with 0 before the services start."""

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]


class StackAssembly(Struct, frozen=True, kw_only=True):
    """One stack, ready to be started."""

    servers: tuple[ProcessSpec, ...]
    services: tuple[ProcessSpec, ...]
    migrate: StartJob
    apply: StartJob
    wires: ServiceAddresses
    ports: dict[str, int]
    urls: dict[str, str]
    postgres_folder: str | None


class OwnServers(Struct, frozen=True, kw_only=True):
    """The servers that are ours; the others are somebody else's."""

    postgres: "postgres.PostgresCluster | None"
    nats: "nats.NatsServer | None"
    s3: seaweedfs.SeaweedFsServer | None


def assemble_stack(
    home: StackHome,
    options: StackOptions,
    *,
    keyring: Keyring,
    former: StackState | None,
    environ: Mapping[str, str],
    held: loopback.HeldPorts,
) -> StackAssembly:
    """Choose ports and hold them, prepare the servers' folders and describe every process."""
    before = former.ports if former else {}
    chosen = loopback.choose_ports(_list_port_names(options), before=before, held=held)
    folder = Path(former.postgres_folder) if former and former.postgres_folder else None
    workers = service_addresses.list_worker_users(options, environ)
    keyring = stack_secrets.add_workers(home, keyring, [worker.name for worker in workers])
    servers = _prepare_servers(
        home, options, keyring=keyring, chosen=chosen, folder=folder, workers=workers
    )
    wires = _build_wires(home, options, keyring=keyring, servers=servers, environ=environ)
    return StackAssembly(
        servers=_build_server_specs(servers),
        services=service_addresses.build_service_specs(
            options, wires=wires, ports=chosen, environ=environ, directory=home.root
        ),
        migrate=_migrate_job(options, wires, environ),
        apply=_build_topology_job(options, wires, environ),
        wires=wires,
        ports=chosen,
        urls=_build_urls(options, wires=wires, servers=servers, chosen=chosen),
        postgres_folder=str(servers.postgres.directory) if servers.postgres else None,
    )


def _list_port_names(options: StackOptions) -> list[str]:
    names = [] if options.postgres_dsn else ["postgres"]
    names += [] if options.nats_url else ["nats"]
    names += seaweedfs.PORTS if _has_own_s3(options) else ()
    return names + service_addresses.list_port_names(options)


def _has_own_s3(options: StackOptions) -> bool:
    return options.has_s3 and options.payload_url is None


def _prepare_servers(
    home: StackHome,
    options: StackOptions,
    *,
    keyring: Keyring,
    chosen: dict[str, int],
    folder: Path | None,
    workers: tuple[WorkerUser, ...],
) -> OwnServers:
    own_postgres = own_nats = own_s3 = None
    if options.postgres_dsn is None:
        own_postgres = postgres.describe_postgres(
            home=home.root,
            port=chosen["postgres"],
            password=keyring.postgres_superuser,
            former=folder,
        )
        postgres.prepare_postgres(own_postgres)
    if options.nats_url is None:
        own_nats = nats.describe_nats(
            home=home.root,
            port=chosen["nats"],
            password_by_user=_choose_passwords(keyring, workers),
            workers=workers,
            sync_interval=options.nats_sync_interval or nats.SYNC_INTERVAL,
        )
        nats.prepare_nats(own_nats)
    if _has_own_s3(options):
        own_s3 = seaweedfs.describe_seaweedfs(
            home=home.root,
            ports=chosen,
            access_key=keyring.s3_access_key,
            secret_key=keyring.s3_secret_key,
            target_access_key=keyring.target_access_key,
            target_secret_key=keyring.target_secret_key,
        )
        seaweedfs.prepare_seaweedfs(own_s3)
    return OwnServers(postgres=own_postgres, nats=own_nats, s3=own_s3)


def _choose_passwords(keyring: Keyring, workers: tuple[WorkerUser, ...]) -> dict[str, str]:
    """Choose who may enter the broker: the services, and the workers that there are by now."""
    users = [*(user for user in nats.USERS if user != nats.SHARED_WORKER)]
    return {
        user: keyring.nats_by_user[user] for user in (*users, *(worker.name for worker in workers))
    }


def _build_server_specs(servers: OwnServers) -> tuple[ProcessSpec, ...]:
    specs = []
    if servers.postgres is not None:
        specs.append(postgres.build_postgres_spec(servers.postgres))
    if servers.nats is not None:
        specs.append(nats.build_nats_spec(servers.nats))
    if servers.s3 is not None:
        specs.append(seaweedfs.build_seaweedfs_spec(servers.s3))
    return tuple(specs)


def _build_wires(
    home: StackHome,
    options: StackOptions,
    *,
    keyring: Keyring,
    servers: OwnServers,
    environ: Mapping[str, str],
) -> ServiceAddresses:
    if servers.postgres is not None:
        admin_dsn, database = postgres.admin_dsn(servers.postgres), roles.DATABASE
    else:
        admin_dsn = options.postgres_dsn or ""
        database = roles.get_database_name(admin_dsn)
    users = servers.nats.password_by_user if servers.nats else nats.USERS
    url_by_user = {
        user: nats.nats_url(servers.nats, user) if servers.nats else options.nats_url or ""
        for user in users
    }
    payload_url, access_key, secret_key = _choose_payload_store(
        home, options, servers=servers, keyring=keyring, environ=environ
    )
    return ServiceAddresses(
        admin_dsn=admin_dsn,
        database=database,
        password_by_role=keyring.postgres_by_role,
        nats_url_by_user=url_by_user,
        payload_url=payload_url,
        payload_access_key=access_key,
        payload_secret_key=secret_key,
        secret_key=keyring.secret_key,
        owner_digest=codec.digest_hex(keyring.owner_token.encode()),
        only_tenant=options.only_tenant,
        nats_monitor_url=nats.nats_url(servers.nats, nats.MONITOR) if servers.nats else "",
    )


def _choose_payload_store(
    home: StackHome,
    options: StackOptions,
    *,
    servers: OwnServers,
    keyring: Keyring,
    environ: Mapping[str, str],
) -> tuple[str, str | None, str | None]:
    if servers.s3 is not None:
        return servers.s3.payload_url, keyring.s3_access_key, keyring.s3_secret_key
    if options.payload_url is not None:
        keys = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        return options.payload_url, *keys
    return home.payloads_folder.as_uri(), None, None


def _migrate_job(
    options: StackOptions, wires: ServiceAddresses, environ: Mapping[str, str]
) -> StartJob:
    own = {"NOETL_STORAGE_POSTGRES_DSN": wires.build_role_dsn("noetl_owner")}
    return StartJob(
        name="migrate",
        argv=(sys.executable, "-m", "noetl_storage", "migrate"),
        environ={**environ, **own, **options.settings},
    )


def _build_topology_job(
    options: StackOptions, wires: ServiceAddresses, environ: Mapping[str, str]
) -> StartJob:
    declared = service_addresses.build_topology_variables(options, environ)
    own = {
        "NOETL_MESSAGING_NATS_URL": wires.nats_url_by_user["admin"],
        **{f"NOETL_MESSAGING_{field}": value for field, value in declared.items()},
    }
    return StartJob(
        name="apply",
        argv=(sys.executable, "-m", "noetl_messaging", "apply"),
        environ={**environ, **own, **options.settings},
    )


def _build_urls(
    options: StackOptions, *, wires: ServiceAddresses, servers: OwnServers, chosen: dict[str, int]
) -> dict[str, str]:
    urls = {
        "postgres": wires.build_role_dsn("noetl_owner"),
        # People's tools read one tenant: this role the default one, `noetl tenant create` others.
        "postgres_reader": wires.build_role_dsn("noetl_reader"),
        "target": wires.build_role_dsn(roles.TARGET_ROLE, database=roles.TARGET_DATABASE),
        "nats": wires.nats_url_by_user["admin"],
        # The address for clients that start playbooks by messages.
        "nats_source": wires.nats_url_by_user["source"],
        "payloads": wires.payload_url,
    }
    if servers.nats is not None:
        urls["nats_monitor"] = nats.nats_url(servers.nats, nats.MONITOR)
    if servers.s3 is not None:
        urls["s3"] = servers.s3.endpoint
        urls["bucket"] = servers.s3.target_url
    if options.has_services and options.planners:
        urls["api"] = f"http://{LOOPBACK}:{chosen['planner-1.http']}"
    return urls
