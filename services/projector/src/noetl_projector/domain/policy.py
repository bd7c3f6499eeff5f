"""Policies of a projector: its share of the executions, batch sizes, and waits after failures."""

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.ids import SHARD_COUNT_DEFAULT
from noetl_playbook import step_data
from noetl_playbook.model.playbook import Playbook
from noetl_replay.lineage import Plan


class ProjectorPolicy(Struct, frozen=True, kw_only=True):
    """Which share of the executions, and how much at once."""

    index: int = 0
    count: int = 1
    execution_shard_count: int = SHARD_COUNT_DEFAULT
    batch_messages_max: int = 200
    fetch_wait_s: float = 0.25
    pace_s: float = 0.05
    retry_delay_s: float = 0.5
    gap_page_events: int = 1000
    catch_up_after_s: float = 2.0
    catch_up_executions_max: int = 200
    catch_up_pages_max: int = 10
    epoch_horizon_s: float = 60.0
    epochs_max: int = 60
    states_max: int = 1000
    states_bytes_max: int = 128 * 1024 * 1024
    snapshot_every_versions: int = 1000
    snapshot_at_end_versions: int = 200


class LineagePolicy(Struct, frozen=True, kw_only=True):
    """Which share of the executions is told, if any, and how much at once."""

    is_kept: bool = False
    index: int = 0
    count: int = 1
    execution_shard_count: int = SHARD_COUNT_DEFAULT
    executions_max: int = 100
    page_versions: int = 5000
    pages_max: int = 20
    deliveries_max: int = 200
    deliveries_at_once: int = 8
    retry_min_s: float = 1.0
    retry_max_s: float = 60.0


def read_lineage_plan(model: object) -> Plan:
    """Read what a playbook, as the catalog keeps it, says of the data of its steps."""
    return step_data.list_step_data(codec.convert_value(model, Playbook))


def compute_retry_wait_s(failures: int, policy: LineagePolicy) -> float:
    """Return how long to wait after so many failures in a row."""
    return float(min(policy.retry_min_s * 2.0 ** (failures - 1), policy.retry_max_s))
