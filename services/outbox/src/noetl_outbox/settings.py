"""Every knob of the outbox. Variables are NOETL_OUTBOX_<FIELD>."""

import os
from typing import Annotated

from msgspec import Meta

from noetl_chassis import settings

PREFIX = "NOETL_OUTBOX_"

Seconds = Annotated[float, Meta(gt=0)]


class Settings(settings.ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field without a default must be set."""

    postgres_dsn: str
    # The slow poll is the guarantee; a poke only shortens the wait.
    poll_interval_s: Seconds = 1.0
    batch_rows_max: Annotated[int, Meta(ge=1, le=1000)] = 256
    # Longer than publishing one batch may take; rows of a dead instance wait this long.
    claim_lease_s: Seconds = 10.0
    measure_interval_s: Seconds = 5.0
    connect_s: Seconds = 30.0
    publish_s: Seconds = 5.0
    pool_connections_max: Annotated[int, Meta(ge=1, le=20)] = 2


def load_settings() -> Settings:
    """Read the process environment, once."""
    return settings.load_settings(Settings, prefix=PREFIX, environ=os.environ)
