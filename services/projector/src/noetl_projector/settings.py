"""Every knob of the projector. Variables are NOETL_PROJECTOR_<FIELD>."""

import os
import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, structs

from noetl_chassis import settings
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ShardCount
from noetl_projector.domain.policy import LineagePolicy, ProjectorPolicy

PREFIX = "NOETL_PROJECTOR_"

_ORDINAL = re.compile(r"-([0-9]{1,4})$")

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class Settings(settings.ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field without a default must be set."""

    postgres_dsn: str
    # Where archived histories are; needed once histories leave the ledger.
    payload_url: str = ""
    payload_access_key: str = ""
    payload_secret_key: str = ""
    payload_seal_key: str = ""
    payload_seal_file: str = ""
    # This projector's number from 0, and how many there are: the ordinal and size of the set.
    shard_index: Annotated[int, Meta(ge=0)] = 0
    # The pod's name: its ordinal is the number where SHARD_INDEX does not say it.
    pod_name: str = ""
    shard_count: ShardCount = 1
    # Into how many shards executions are divided; the planner's and the topology's number.
    execution_shard_count: ShardCount = SHARD_COUNT_DEFAULT
    # Every message of one fetch is projected in one transaction.
    batch_messages_max: Annotated[int, Meta(ge=1, le=1000)] = 200
    fetch_wait_s: Seconds = 0.25
    # Between two transactions at least: what comes meanwhile shares the next. 0 never waits.
    pace_s: Annotated[float, Meta(ge=0, le=1)] = 0.05
    # How long each server may take to answer at the start.
    connect_s: Seconds = 30.0
    # How often all positions are compared with the ledger, which may not have gone backwards.
    ledger_check_interval_s: Seconds = 300.0
    # After an error the messages come again no sooner than this.
    retry_delay_s: Seconds = 0.5
    gap_page_events: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    # The ledger is compared with the projection this often, and a message may be this late before
    # the ledger is read instead: what a wiped bus lost is shown within the sum of both.
    catch_up_interval_s: Seconds = 1.0
    catch_up_after_s: Seconds = 2.0
    catch_up_executions_max: Annotated[int, Meta(ge=1, le=10_000)] = 200
    # How often each shard's epoch is committed, and how young an append it does not vouch for:
    # longer than any append takes. A full comparison follows every LEDGER_CHECK_INTERVAL_S.
    epoch_interval_s: Seconds = 1.0
    epoch_horizon_s: Seconds = 60.0
    # Epochs of a shard that are kept.
    epochs_max: Annotated[int, Meta(ge=1, le=10_000)] = 60
    states_max: Count = 1000
    states_bytes_max: Count = 128 * 1024 * 1024
    snapshot_every_versions: Count = 1000
    snapshot_at_end_versions: Count = 200
    pool_connections_max: Annotated[int, Meta(ge=2, le=100)] = 4
    # Snapshots for looking back into an execution are forgotten so long after its end: looking
    # then takes as long as folding it. Its latest snapshot stays.
    past_keep_s: Seconds = 30 * 86400.0
    prune_interval_s: Seconds = 600.0
    # Lineage is told, kept and sent here; empty: none of it. The receiver's address, to which the
    # path of the standard is added, and its key.
    openlineage_url: Annotated[str, Meta(pattern="^(https?://.+)?$")] = ""
    openlineage_api_key: str = ""
    lineage_interval_s: Seconds = 2.0
    # Readiness fails when no turn has succeeded for so long.
    stale_after_s: Seconds = 30.0


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the process environment, once."""
    config = settings.load_settings(Settings, prefix=PREFIX, environ=environ)
    if config.pod_name:
        has_shard_index = f"{PREFIX}SHARD_INDEX" in environ
        config = structs.replace(
            config, shard_index=_read_ordinal(config, has_shard_index=has_shard_index)
        )
    if config.shard_index >= config.shard_count:
        raise settings.SettingsError(
            f"{PREFIX}SHARD_INDEX is {config.shard_index} but {PREFIX}SHARD_COUNT is "
            f"{config.shard_count}: projectors are numbered from 0 to {config.shard_count - 1}."
        )
    if config.shard_count > config.execution_shard_count:
        raise settings.SettingsError(
            f"{PREFIX}SHARD_COUNT is {config.shard_count} but executions have only "
            f"{config.execution_shard_count} shards: run no more projectors than that."
        )
    return config


def _read_ordinal(config: Settings, *, has_shard_index: bool) -> int:
    """Read a projector's number from its pod's name; raises `SettingsError`."""
    digits = _ORDINAL.search(config.pod_name)
    if digits is None:
        raise settings.SettingsError(
            f"{PREFIX}POD_NAME is {config.pod_name!r}, which ends in no ordinal: run projectors as "
            f"a stateful set, or set {PREFIX}SHARD_INDEX instead."
        )
    ordinal = int(digits[1])
    if has_shard_index and ordinal != config.shard_index:
        raise settings.SettingsError(
            f"{PREFIX}SHARD_INDEX is {config.shard_index} but {PREFIX}POD_NAME {config.pod_name!r} "
            f"says {ordinal}: set one of them."
        )
    return ordinal


def build_policy(config: Settings) -> ProjectorPolicy:
    """Tell the service what it needs to know of its settings."""
    return ProjectorPolicy(
        index=config.shard_index,
        count=config.shard_count,
        execution_shard_count=config.execution_shard_count,
        batch_messages_max=config.batch_messages_max,
        fetch_wait_s=config.fetch_wait_s,
        pace_s=config.pace_s,
        retry_delay_s=config.retry_delay_s,
        gap_page_events=config.gap_page_events,
        catch_up_after_s=config.catch_up_after_s,
        catch_up_executions_max=config.catch_up_executions_max,
        epoch_horizon_s=config.epoch_horizon_s,
        epochs_max=config.epochs_max,
        states_max=config.states_max,
        states_bytes_max=config.states_bytes_max,
        snapshot_every_versions=config.snapshot_every_versions,
        snapshot_at_end_versions=config.snapshot_at_end_versions,
    )


def build_lineage_policy(config: Settings) -> LineagePolicy:
    """Tell lineage which executions it is about, and whether it is wanted at all."""
    return LineagePolicy(
        is_kept=bool(config.openlineage_url),
        index=config.shard_index,
        count=config.shard_count,
        execution_shard_count=config.execution_shard_count,
    )
