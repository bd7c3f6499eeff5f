"""What the duties of a reaper share."""

from typing import Any, cast

from noetl_reaper import wiring
from noetl_reaper.settings import Settings
from noetl_reaper.sweeps.notifier import Notifier
from noetl_reaper.sweeps.scheduler import Scheduler

CONFIG = Settings(nats_url="nats://127.0.0.1:1", postgres_dsn="postgresql://127.0.0.1:1/none")


def test_all_duties_mint_under_one_lease_of_a_number() -> None:
    """Two that mint under the same number mint the same execution id in the same millisecond."""
    # Nothing is asked of servers before the first sweep.
    reaper = wiring.wire_reaper(
        CONFIG, owner="r", database=cast("Any", object()), nats=cast("Any", object())
    )
    duties = [cast("Any", duty).__self__ for duty in reaper._more]
    minting = [duty._numbers for duty in duties if isinstance(duty, Scheduler | Notifier)]
    assert len(minting) == 2
    assert minting[0] is minting[1]
