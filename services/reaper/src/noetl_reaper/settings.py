"""Every knob of the reaper. Variables are NOETL_REAPER_<FIELD>."""

import os
from typing import Annotated

from msgspec import Meta

from noetl_chassis import settings
from noetl_contracts import subjects
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ShardCount
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_reaper import domain
from noetl_storage.ports.retention_ports import RetentionAction

PREFIX = "NOETL_REAPER_"

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class Settings(settings.ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field without a default must be set."""

    postgres_dsn: str
    payload_url: str = ""
    payload_access_key: str = ""
    payload_secret_key: str = ""
    # Keys that seal payloads, <id>:<32 bytes in base64>, newest first; or a file with one a line.
    payload_seal_key: str = ""
    payload_seal_file: str = ""
    # The topology to keep; the same values as for `python -m noetl_messaging apply`.
    shard_count: ShardCount = SHARD_COUNT_DEFAULT
    projector_count: Annotated[int, Meta(ge=1, le=1024)] = 1
    pools: tuple[str, ...] = ("default",)
    tenants: tuple[str, ...] = ()
    # How long a worker may hold a command unheard: the commands' ack wait.
    lease_s: Seconds = 30.0
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    sweep_interval_s: Seconds = 2.0
    # Another reaper takes over when the leader has been silent this long.
    leader_lease_s: Seconds = 8.0
    # How long a worker may be without its connection to the broker before its commands count as
    # lost; 0: until their leases have passed.
    worker_grace_s: Annotated[float, Meta(ge=0)] = 2.0
    # JetStream notices a dead worker first; the sweep is for what JetStream has lost.
    overdue_grace_s: Seconds = 2.0
    overdue_commands_max: Count = 500
    request_age_s: Seconds = 5.0
    requests_max: Count = 200
    stalled_age_s: Seconds = 60.0
    executions_max: Count = 100
    letters_max: Count = 100
    # Schedules that one sweep fires.
    schedules_max: Count = 200
    # Notifications that one sweep sends, and how late one may still be sent: a rule looks at no
    # execution that ended longer ago.
    notifications_max: Count = 200
    notification_lookback_s: Seconds = 86_400.0
    # The console's public address: notifications of approvals link to it.
    public_url: str = ""
    # How long the number lasts under which execution ids are minted; far longer than a sweep.
    node_lease_s: Seconds = 120.0
    # How long one statement or transaction of a tenant's database role may last: the role's own
    # limits are its to lift.
    tenant_read_s: Seconds = 120.0
    partition_months: Annotated[int, Meta(ge=1, le=24)] = 2
    # How long a payload stays that nothing mentions; 0 collects none.
    payload_ttl_s: Annotated[float, Meta(ge=0)] = 0.0
    # What was collected can still be read, and come back, for so long.
    payload_shelf_s: Seconds = 86_400.0
    # A look reads the ledger and every payload: rarely is enough.
    payload_sweep_interval_s: Seconds = 21_600.0
    # How often the objects of tenants are listed whose quota bounds what they store; 0 never.
    storage_count_interval_s: Annotated[float, Meta(ge=0)] = 300.0
    # The ledger's database as `noetl_archivist`; without it nothing ever leaves the ledger.
    retention_dsn: str = ""
    # How many days after its end a history stays, where its owner has no policy; else it stays.
    retention_keep_days: Annotated[int, Meta(ge=0, le=36_500)] | None = None
    retention_action: RetentionAction = RetentionAction.ARCHIVE
    # Deleting rows where a partition has to stay costs the ledger more than waiting for it.
    retention_can_delete: bool = False
    # 0 never looks: `noetl retention run` is then the only way.
    retention_sweep_interval_s: Annotated[float, Meta(ge=0)] = 0.0
    connect_s: Seconds = 30.0
    request_s: Seconds = 5.0
    # One of them holds what only one reaper at a time may do, while the others ask.
    pool_connections_max: Annotated[int, Meta(ge=2, le=20)] = 3


def load_settings() -> Settings:
    """Read the process environment, once."""
    config = settings.load_settings(Settings, prefix=PREFIX, environ=os.environ)
    parse_tenants(config)
    return config


def parse_tenants(config: Settings) -> frozenset[str]:
    """Read which tenants have their own share of every pool; raises `SettingsError`."""
    try:
        return frozenset(subjects.parse_tenant_shares(config.tenants))
    except subjects.SharesMalformed as problem:
        raise settings.SettingsError(f"{PREFIX}TENANTS: {problem}") from problem


def build_routes(config: Settings) -> IngestRoutes:
    """Say where facts about executions are published."""
    return IngestRoutes(shard_count=config.shard_count, tenants=parse_tenants(config))


def build_policy(config: Settings) -> domain.ReaperPolicy:
    """Say how patient the reaper is."""
    return domain.ReaperPolicy(
        lease_s=config.lease_s,
        grace_s=config.overdue_grace_s,
        stalled_age_s=config.stalled_age_s,
        routes=build_routes(config),
    )


def build_bounds(config: Settings) -> domain.SweepBounds:
    """Say how much one turn does."""
    return domain.SweepBounds(
        leader_lease_s=config.leader_lease_s,
        commands_max=config.overdue_commands_max,
        request_age_s=config.request_age_s,
        requests_max=config.requests_max,
        executions_max=config.executions_max,
        letters_max=config.letters_max,
        partition_months=config.partition_months,
    )
