"""What all shards of one process use together."""

import msgspec
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.identity import Snowflake
from noetl_messaging.ports import DeadLetters, Hints
from noetl_planner.domain.draft import Limits
from noetl_planner.shell.board import Board
from noetl_planner.shell.crowd import Crowd
from noetl_planner.shell.desk import Desk
from noetl_planner.shell.gathering import Gathering
from noetl_planner.shell.publishing import Publishing
from noetl_planner.shell.render_child import RenderChildren
from noetl_planner.shell.states import LoadedPayloads, Programs
from noetl_storage.ports import LedgerWriter, Payloads


class Bounds(Struct, frozen=True, kw_only=True):
    """How much one turn takes on, and for how long."""

    messages_max: int
    fetch_wait_s: float
    publish_lease_s: float
    shard_count: int


class Shared(Struct, frozen=True, kw_only=True):
    """What all shards of one process use together."""

    ledger: LedgerWriter
    payloads: Payloads
    programs: Programs
    loaded: LoadedPayloads
    gathering: Gathering
    publishing: Publishing
    dead_letters: DeadLetters
    hints: Hints
    crowd: Crowd
    board: Board
    desk: Desk
    clock: Clock
    snowflake: Snowflake
    limits: Limits
    bounds: Bounds
    producer: str
    children: RenderChildren = msgspec.field(default_factory=RenderChildren)
