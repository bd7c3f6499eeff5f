"""Every knob of the planner. Variables are NOETL_PLANNER_<FIELD>."""

import os
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from noetl_chassis import settings
from noetl_chassis.tls import CertificateError, CertificateFiles, ReloadedContext
from noetl_contracts import subjects
from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_contracts.commands.worker_pools import POOL_PATTERN, Pools
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ShardCount, TenantId
from noetl_planner.identity.openid.oidc_settings import OidcSettings, is_loopback_url
from noetl_planner.identity.permissions import Role, UnknownRole, parse_role
from noetl_planner.identity.served_tenants import ServedTenants

PREFIX = "NOETL_PLANNER_"

Seconds = Annotated[float, Meta(gt=0)]
PoolNames = tuple[Annotated[str, Meta(pattern=POOL_PATTERN)], ...]


class Settings(settings.ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field without a default must be set."""

    postgres_dsn: str
    payload_url: str
    secret_key: str
    payload_access_key: str = ""
    payload_secret_key: str = ""
    # Keys that seal payloads, <id>:<32 bytes in base64>, newest first; or a file with one a line.
    payload_seal_key: str = ""
    payload_seal_file: str = ""
    http_host: str = "127.0.0.1"
    # PEM files of the API's certificate and its key, read again on change; empty: plain HTTP.
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    # Names by which the planner is called from outside, as `noetl.example.org` or `*.example.org`,
    # besides addresses and private names: a page could give its own name this address.
    http_hosts: tuple[str, ...] = ()
    # off-on-loopback lets everybody in, as the owner: for tests, on a loopback address alone.
    # Also set as NOETL_AUTH.
    auth: Literal["on", "off-on-loopback"] = "on"
    # The SHA-256 of the token of the installation's owner, who has all roles; and a file with it.
    owner_token_sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    owner_name: Annotated[str, Meta(max_length=100)] = "owner"
    # Roles of the provider's groups in this organization, as data-team:author,platform:admin.
    group_roles: tuple[str, ...] = ()
    # How often a principal may call in a second; 0: as often as it likes. The owner always may.
    calls_per_s: Annotated[float, Meta(ge=0)] = 500
    http_port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    # A user of NATS's system account, who may ask how often messages are written to the disk.
    nats_monitor_url: str = ""
    # How many clients may follow executions: all, those of one address, those of one execution.
    streams_max: Annotated[int, Meta(ge=0)] = 256
    streams_client_max: Annotated[int, Meta(ge=1)] = 64
    streams_execution_max: Annotated[int, Meta(ge=1)] = 128
    shard_count: ShardCount = SHARD_COUNT_DEFAULT
    # A dead planner's shards are free after one lease; the renewal leaves two tries.
    shard_lease_s: Seconds = 5.0
    shard_renewal_s: Seconds = 1.5
    # One transaction holds at most this many messages' worth of decisions.
    batch_messages_max: Annotated[int, Meta(ge=1, le=1000)] = 256
    fetch_wait_s: Seconds = 1.0
    # How long each server may take to answer at the start.
    connect_s: Seconds = 30.0
    # How long the outbox leaves to this process what it has just committed.
    publish_lease_s: Seconds = 10.0
    states_max: Annotated[int, Meta(ge=1)] = 1000
    # Values that templates looked into; beside it a shard's decision holds those of its own.
    payload_cache_bytes: Annotated[int, Meta(ge=0)] = 64 * 1024 * 1024
    pool_connections_max: Annotated[int, Meta(ge=1, le=100)] = 10
    activations_max: Annotated[int, Meta(ge=1)] = 100_000
    items_max: Annotated[int, Meta(ge=1)] = 100_000
    in_flight_max: Annotated[int, Meta(ge=1)] = 10_000
    # What `ctx` may hold besides what it holds by reference.
    ctx_bytes_max: Annotated[int, Meta(ge=1024)] = 4 * 1024 * 1024
    # Tool kinds that the workers of this deployment run; empty: all that this release has.
    tools: tuple[str, ...] = ()
    # Pools whose workers get their commands from JetStream, and pools whose workers ask over HTTP.
    pools: PoolNames = (DEFAULT_POOL,)
    http_pools: PoolNames = ()
    # Tenants with their own share of every pool: the same as the workers', weights aside.
    tenants: tuple[str, ...] = ()
    # Whether it serves `tenant_id` alone, from a database of that tenant's own.
    only_tenant: bool = False
    # Tenants that another installation serves, with its address: acme=https://acme.example.org.
    tenants_elsewhere: tuple[str, ...] = ()
    # How long a command with large inputs is the nearest worker's alone to take, before it goes to
    # its pool; 0: nothing is offered. It matters where workers say that they are on several nodes.
    offer_s: Annotated[float, Meta(ge=0, le=60)] = 1.0
    cancel_grace_s: Seconds = 30.0
    command_lease_s: Seconds = 30.0
    command_heartbeat_s: Seconds = 10.0
    step_attempts_max: Annotated[int, Meta(ge=1)] = 3
    # Frames that compute at once in a pool: of all its workers, and of its Spark. With both known,
    # and more of Spark's, `engine: auto` moves what is left of a loop to where it ends sooner.
    io_cores: Annotated[int, Meta(ge=0, le=100_000)] = 0
    spark_cores: Annotated[int, Meta(ge=0, le=100_000)] = 0
    # Rows from which on `engine: auto` takes Spark from the start for frames that only compute;
    # 0: never.
    spark_rows_min: Annotated[int, Meta(ge=0)] = 0
    # Names of variables that templates may read as `env`; also set as NOETL_TEMPLATE_ENV.
    template_env: dict[str, str] = msgspec.field(default_factory=dict)
    # Where people sign in: an issuer of OpenID Connect, and our name there. Without a secret the
    # client is a public one. The command line may have a client of its own.
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: str = ""
    oidc_cli_client_id: str = ""
    # Names of this API in access tokens, and further issuers whose access tokens for one of them
    # count, such as a cluster's for its workloads.
    oidc_audiences: tuple[str, ...] = ()
    oidc_token_issuers: tuple[str, ...] = ()
    # A claim, or a path of claims such as realm_access.roles.
    oidc_groups_claim: str = "groups"
    oidc_scopes: tuple[str, ...] = ("openid", "profile", "email")
    # How browsers reach this API; the provider sends them back to its /auth/callback.
    public_url: str = ""


def load_settings() -> Settings:
    """Read the process environment, once."""
    config = settings.load_settings(Settings, prefix=PREFIX, environ=os.environ)
    parse_pools(config)
    parse_tenants(config)
    parse_served_tenants(config)
    parse_group_roles(config)
    check_auth(config)
    open_api_tls(config)
    parse_oidc(config)
    return config


def check_auth(config: Settings) -> None:
    """Refuse to let everybody in on an address that others reach; raises `SettingsError`."""
    if config.auth != "on" and not _is_loopback(config.http_host):
        raise settings.SettingsError(
            f"{settings.AUTH}=off-on-loopback lets everybody in, and "
            f"{PREFIX}HTTP_HOST={config.http_host} is no loopback address: "
            "set it to 127.0.0.1, or leave authentication on"
        )


def open_api_tls(config: Settings) -> ReloadedContext | None:
    """Read the API's certificate, None where there is none; raises `SettingsError`."""
    if not config.tls_certificate_file:
        return None
    files = CertificateFiles(certificate=config.tls_certificate_file, key=config.tls_key_file)
    try:
        return ReloadedContext(files, is_server=True)
    except CertificateError as failure:
        raise settings.SettingsError(f"{PREFIX}TLS_CERTIFICATE_FILE: {failure}") from failure


def parse_group_roles(config: Settings) -> dict[str, Role]:
    """Read which groups of the provider have which role; raises `SettingsError`."""
    role_by_group = {}
    for text in config.group_roles:
        group, _, role = text.rpartition(":")
        try:
            role_by_group[group] = parse_role(role)
        except UnknownRole as problem:
            raise settings.SettingsError(f"{PREFIX}GROUP_ROLES: {text[:80]!r}: {problem}") from None
        if not group:
            raise settings.SettingsError(
                f"{PREFIX}GROUP_ROLES: {text[:80]!r} names no group: write GROUP:ROLE"
            )
    return role_by_group


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def parse_oidc(config: Settings) -> OidcSettings | None:
    """Read how people sign in; None where no issuer is named. Raises `SettingsError`."""
    if not config.oidc_issuer:
        return None
    if not config.oidc_client_id:
        raise settings.SettingsError(
            f"{PREFIX}OIDC_CLIENT_ID is missing: name the client that {config.oidc_issuer} knows"
        )
    addresses = {"OIDC_ISSUER": config.oidc_issuer, "PUBLIC_URL": config.public_url}
    for name, address in addresses.items():
        _check_address(name, address)
    for address in config.oidc_token_issuers:
        _check_address("OIDC_TOKEN_ISSUERS", address)
    if config.oidc_token_issuers and not config.oidc_audiences:
        raise settings.SettingsError(
            f"{PREFIX}OIDC_AUDIENCES is missing: {PREFIX}OIDC_TOKEN_ISSUERS needs the name of"
            " this API in their tokens"
        )
    return OidcSettings(
        issuer=config.oidc_issuer,
        client_id=config.oidc_client_id,
        client_secret=config.oidc_client_secret,
        cli_client_id=config.oidc_cli_client_id or config.oidc_client_id,
        audiences=config.oidc_audiences,
        token_issuers=config.oidc_token_issuers,
        groups_claim=config.oidc_groups_claim,
        scopes=tuple(dict.fromkeys(("openid", *config.oidc_scopes))),
        public_url=config.public_url.rstrip("/"),
    )


def list_own_hosts(config: Settings) -> tuple[str, ...]:
    """Name the hosts by which the API may be called from outside."""
    host = urlsplit(config.public_url).hostname
    names = (*config.http_hosts, *([host] if host else []))
    return tuple(dict.fromkeys(name.lower() for name in names))


def _check_address(name: str, address: str) -> None:
    if address and not address.startswith("https://") and not is_loopback_url(address):
        raise settings.SettingsError(
            f"{PREFIX}{name}: {address!r} is neither https nor an address of this machine: "
            "what signs people in must not be read or changed on its way"
        )


def parse_pools(config: Settings) -> Pools:
    """Read which pools there are; raises `SettingsError` for one that is served both ways."""
    both = set(config.pools) & set(config.http_pools)
    if both:
        raise settings.SettingsError(
            f"{PREFIX}HTTP_POOLS: {', '.join(sorted(both))} is in {PREFIX}POOLS as well: "
            "a pool is served by JetStream or over HTTP"
        )
    return Pools(by_stream=config.pools, by_http=config.http_pools)


def parse_tenants(config: Settings) -> frozenset[str]:
    """Read which tenants have their own share; raises `SettingsError`."""
    try:
        return frozenset(subjects.parse_tenant_shares(config.tenants))
    except subjects.SharesMalformed as problem:
        raise settings.SettingsError(f"{PREFIX}TENANTS: {problem}") from problem


def parse_served_tenants(config: Settings) -> ServedTenants:
    """Read which tenants are served here, and where others are; raises `SettingsError`."""
    url_by_tenant: dict[str, str] = {}
    for entry in config.tenants_elsewhere:
        tenant, _, url = entry.partition("=")
        if not subjects.is_subject_token(tenant) or not urlsplit(url).hostname:
            raise settings.SettingsError(
                f"{PREFIX}TENANTS_ELSEWHERE: {entry[:80]!r} names no tenant with its address: "
                "write acme=https://acme.example.org"
            )
        _check_address("TENANTS_ELSEWHERE", url)
        if tenant == config.tenant_id or tenant in url_by_tenant or tenant in config.tenants:
            raise settings.SettingsError(
                f"{PREFIX}TENANTS_ELSEWHERE: tenant {tenant!r} is named twice, or in "
                f"{PREFIX}TENANT_ID or {PREFIX}TENANTS, which are served here"
            )
        url_by_tenant[tenant] = url.rstrip("/")
    if config.only_tenant and url_by_tenant:
        raise settings.SettingsError(
            f"{PREFIX}ONLY_TENANT: every tenant but {config.tenant_id!r} is elsewhere: "
            f"leave {PREFIX}TENANTS_ELSEWHERE out"
        )
    only = TenantId(config.tenant_id) if config.only_tenant else None
    return ServedTenants(only=only, url_by_tenant=url_by_tenant)
