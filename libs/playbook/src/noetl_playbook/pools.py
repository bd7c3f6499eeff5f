"""What `spec.pool` may say."""

from noetl_contracts.lanes import POOL_HINT, is_pool
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading, shown


def check_pool(reading: Reading, pool: str | None, path: Path) -> None:
    """Report what cannot name a pool; whether there is such a pool the target alone knows."""
    if pool is not None and not is_pool(pool):
        reading.report("E104", (*path, "pool"), f"{shown(pool)} is not a pool", hint=POOL_HINT)
