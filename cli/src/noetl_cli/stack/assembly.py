"""Turn options, ports and secrets into the processes and jobs of one stack."""

import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from noetl_cli.stack import nats, ports, postgres, roles, seaweedfs, wiring
from noetl_cli.stack.home import Home
from noetl_cli.stack.keyring import Keyring
from noetl_cli.stack.options import Options
from noetl_cli.stack.ports import LOOPBACK
from noetl_cli.stack.specs import ProcessSpec
from noetl_cli.stack.state import State
from noetl_cli.stack.wiring import Wires

READER_OPTIONS = "?options=-c%20app.tenant%3Ddefault"


class Job(Struct, frozen=True, kw_only=True):
    """A command that must end with 0 before the services start."""

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]


class Assembly(Struct, frozen=True, kw_only=True):
    """One stack, ready to be started."""

    servers: tuple[ProcessSpec, ...]
    services: tuple[ProcessSpec, ...]
    migrate: Job
    apply: Job
    wires: Wires
    ports: dict[str, int]
    urls: dict[str, str]
    postgres_folder: str | None


class Servers(Struct, frozen=True, kw_only=True):
    """The servers that are ours; the others are somebody else's."""

    postgres: postgres.Postgres | None
    nats: nats.Nats | None
    s3: seaweedfs.SeaweedFs | None


def assemble(
    home: Home,
    options: Options,
    *,
    keyring: Keyring,
    former: State | None,
    environ: Mapping[str, str],
) -> Assembly:
    """Choose ports, prepare the servers' folders and describe every process."""
    chosen = ports.choose(_port_names(options), before=former.ports if former else {})
    folder = Path(former.postgres_folder) if former and former.postgres_folder else None
    servers = _prepare_servers(home, options, keyring=keyring, chosen=chosen, folder=folder)
    wires = _wires(home, options, keyring=keyring, servers=servers, environ=environ)
    return Assembly(
        servers=_server_specs(servers),
        services=wiring.specs(
            options, wires=wires, ports=chosen, environ=environ, directory=home.root
        ),
        migrate=_migrate(options, wires, environ),
        apply=_apply(options, wires, environ),
        wires=wires,
        ports=chosen,
        urls=_urls(options, wires=wires, servers=servers, chosen=chosen),
        postgres_folder=str(servers.postgres.directory) if servers.postgres else None,
    )


def _port_names(options: Options) -> list[str]:
    names = [] if options.postgres_dsn else ["postgres"]
    names += [] if options.nats_url else ["nats", "nats-monitor"]
    names += seaweedfs.PORTS if _has_own_s3(options) else ()
    return names + wiring.port_names(options)


def _has_own_s3(options: Options) -> bool:
    return options.has_s3 and options.payload_url is None


def _prepare_servers(
    home: Home,
    options: Options,
    *,
    keyring: Keyring,
    chosen: dict[str, int],
    folder: Path | None,
) -> Servers:
    own_postgres = own_nats = own_s3 = None
    if options.postgres_dsn is None:
        own_postgres = postgres.describe(
            home=home.root,
            port=chosen["postgres"],
            password=keyring.postgres_superuser,
            former=folder,
        )
        postgres.prepare(own_postgres)
    if options.nats_url is None:
        own_nats = nats.describe(
            home=home.root,
            port=chosen["nats"],
            monitor_port=chosen["nats-monitor"],
            password_by_user=keyring.nats_by_user,
            sync_interval=options.nats_sync_interval or nats.SYNC_INTERVAL,
        )
        nats.prepare(own_nats)
    if _has_own_s3(options):
        own_s3 = seaweedfs.describe(
            home=home.root,
            ports=chosen,
            access_key=keyring.s3_access_key,
            secret_key=keyring.s3_secret_key,
        )
        seaweedfs.prepare(own_s3)
    return Servers(postgres=own_postgres, nats=own_nats, s3=own_s3)


def _server_specs(servers: Servers) -> tuple[ProcessSpec, ...]:
    found = []
    if servers.postgres is not None:
        found.append(postgres.spec(servers.postgres))
    if servers.nats is not None:
        found.append(nats.spec(servers.nats))
    if servers.s3 is not None:
        found.append(seaweedfs.spec(servers.s3))
    return tuple(found)


def _wires(
    home: Home,
    options: Options,
    *,
    keyring: Keyring,
    servers: Servers,
    environ: Mapping[str, str],
) -> Wires:
    if servers.postgres is not None:
        admin_dsn, database = postgres.admin_dsn(servers.postgres), roles.DATABASE
    else:
        admin_dsn = options.postgres_dsn or ""
        database = roles.database_of(admin_dsn)
    url_by_user = {
        user: nats.url(servers.nats, user) if servers.nats else options.nats_url or ""
        for user in nats.USERS
    }
    payload_url, access_key, secret_key = _payloads(
        home, options, servers=servers, keyring=keyring, environ=environ
    )
    return Wires(
        admin_dsn=admin_dsn,
        database=database,
        password_by_role=keyring.postgres_by_role,
        nats_url_by_user=url_by_user,
        payload_url=payload_url,
        payload_access_key=access_key,
        payload_secret_key=secret_key,
        secret_key=keyring.secret_key,
    )


def _payloads(
    home: Home,
    options: Options,
    *,
    servers: Servers,
    keyring: Keyring,
    environ: Mapping[str, str],
) -> tuple[str, str | None, str | None]:
    if servers.s3 is not None:
        return servers.s3.payload_url, keyring.s3_access_key, keyring.s3_secret_key
    if options.payload_url is not None:
        keys = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        return options.payload_url, *keys
    return home.payloads.as_uri(), None, None


def _migrate(options: Options, wires: Wires, environ: Mapping[str, str]) -> Job:
    own = {"NOETL_STORAGE_POSTGRES_DSN": wires.dsn("noetl_owner")}
    return Job(
        name="migrate",
        argv=(sys.executable, "-m", "noetl_storage", "migrate"),
        environ={**environ, **own, **options.settings},
    )


def _apply(options: Options, wires: Wires, environ: Mapping[str, str]) -> Job:
    declared = wiring.topology(options, environ)
    own = {
        "NOETL_MESSAGING_NATS_URL": wires.nats_url_by_user["admin"],
        **{f"NOETL_MESSAGING_{field}": value for field, value in declared.items()},
    }
    return Job(
        name="apply",
        argv=(sys.executable, "-m", "noetl_messaging", "apply"),
        environ={**environ, **own, **options.settings},
    )


def _urls(
    options: Options, *, wires: Wires, servers: Servers, chosen: dict[str, int]
) -> dict[str, str]:
    urls = {
        "postgres": wires.dsn("noetl_owner"),
        # People's tools read one tenant at a time; this address chooses it.
        "postgres_reader": wires.dsn("noetl_reader") + READER_OPTIONS,
        "target": wires.dsn(roles.TARGET_ROLE, database=roles.TARGET_DATABASE),
        "nats": wires.nats_url_by_user["admin"],
        # For whoever starts playbooks by messages.
        "nats_source": wires.nats_url_by_user["source"],
        "payloads": wires.payload_url,
    }
    if servers.nats is not None:
        urls["nats_monitor"] = nats.monitor_url(chosen["nats-monitor"])
    if servers.s3 is not None:
        urls["s3"] = servers.s3.endpoint
    if options.has_services and options.planners:
        urls["api"] = f"http://{LOOPBACK}:{chosen['planner-1.http']}"
    return urls
