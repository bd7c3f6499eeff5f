"""How patient and how greedy a projector is."""

from msgspec import Struct

from noetl_contracts.ids import SHARD_COUNT_DEFAULT


class Policy(Struct, frozen=True, kw_only=True):
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
