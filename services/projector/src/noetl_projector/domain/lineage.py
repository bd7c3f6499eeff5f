"""How lineage is told: how much at once, and how long to wait after a refusal."""

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.ids import SHARD_COUNT_DEFAULT
from noetl_playbook import datasets
from noetl_playbook.model import Playbook
from noetl_replay.lineage import Plan


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


def plan_of(model: object) -> Plan:
    """Read what a playbook, as the catalog keeps it, says of the data of its steps."""
    return datasets.of_playbook(codec.convert(model, Playbook))


def wait_s(failures: int, policy: LineagePolicy) -> float:
    """Return how long to wait after so many failures in a row."""
    return float(min(policy.retry_min_s * 2.0 ** (failures - 1), policy.retry_max_s))
