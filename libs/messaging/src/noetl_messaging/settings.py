"""Settings of the topology job. Variables are NOETL_MESSAGING_<FIELD>."""

import os
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from noetl_contracts.errors import Permanent
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ShardCount
from noetl_messaging.streams.topology import LEASE_S_DEFAULT

PREFIX = "NOETL_MESSAGING_"
_MISSING = re.compile(r"missing required field `([a-z_]+)`")


class SettingsError(Permanent):
    """The environment does not say what to apply."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field without a default must be set."""

    nats_url: str
    shard_count: ShardCount = SHARD_COUNT_DEFAULT
    projector_count: Annotated[int, Meta(ge=1, le=1024)] = 1
    # Separated by commas.
    pools: str = "default"
    # Tenants with their own share of every pool, separated by commas; `=weight` is left aside.
    tenants: str = ""
    lease_s: Annotated[float, Meta(gt=0)] = LEASE_S_DEFAULT
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    connect_s: Annotated[float, Meta(gt=0)] = 30.0


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:  # noqa: TID251 - the job's only reader of the environment
    """Read the environment, once."""
    fields = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX) and value
    }
    try:
        return msgspec.convert(fields, Settings, strict=False)
    except msgspec.ValidationError as failure:
        missing = _MISSING.search(str(failure))
        reason = f"{missing[1].upper()} must be set" if missing else f"*: {failure}"
        raise SettingsError(f"{PREFIX}{reason}") from failure
