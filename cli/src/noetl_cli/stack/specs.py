"""What one process of the stack is: how it starts, how it shows that it works, how it ends."""

import signal
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from msgspec import Struct

from noetl_cli.stack.owners import Owner


class HttpProbe(Struct, frozen=True, kw_only=True):
    """Ready when this address answers 200."""

    url: str


class CommandProbe(Struct, frozen=True, kw_only=True):
    """Ready when this command ends with 0."""

    argv: tuple[str, ...]


class BucketProbe(Struct, frozen=True, kw_only=True):
    """Ready when an object can be put into this bucket, which is made when it is missing."""

    endpoint: str
    bucket: str
    region: str
    access_key: str
    secret_key: str


Probe = HttpProbe | CommandProbe | BucketProbe


class StoreWatch(Struct, frozen=True, kw_only=True):
    """Stuck when this probe is refused, time and again, although this folder's disk has room."""

    probe: HttpProbe
    folder: Path
    interval_s: float


class Tier(IntEnum):
    """What starts first and stops last."""

    SERVER = 0
    SERVICE = 1


class ProcessSpec(Struct, frozen=True, kw_only=True):
    """One process: the supervisor and the tests start it from this value alone."""

    name: str
    tier: Tier
    argv: tuple[str, ...]
    directory: Path
    environ: dict[str, str] = {}
    owner: Owner | None = None
    # Done before each start, the ones after a crash included; a `StackError` delays the start.
    before_start: Callable[[], None] | None = None
    probe: Probe | None = None
    # Looked at for as long as the process runs: one that is stuck is started again.
    watch: StoreWatch | None = None
    port: int | None = None
    health_url: str | None = None
    stop_signal: int = signal.SIGTERM
    # Ends it at once where its data is deleted next; None where ending takes no time.
    discard_signal: int | None = None
    stop_timeout_s: float = 15.0
    ready_timeout_s: float = 60.0
