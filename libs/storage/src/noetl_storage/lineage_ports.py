"""What lineage asks of storage: the few events of a history that matter, and rows that are kept."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from noetl_contracts.envelope import Envelope
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId


class LineageRow(Struct, frozen=True, kw_only=True):
    """A run event as its receiver gets it; `body` is its JSON, byte for byte."""

    version: int
    ordinal: int
    event_type: str
    event_time: datetime
    run_id: str
    job: str
    body: str


class LineageBehind(Struct, frozen=True, kw_only=True):
    """An execution of whose history a part was not told; `state` is None before the first."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    head: int
    kept: int
    state: bytes | None


class Undelivered(Struct, frozen=True, kw_only=True):
    """A row that its receiver has not acknowledged."""

    execution_id: ExecutionId
    version: int
    ordinal: int
    body: str


class LineageHistories(Protocol):
    """Reads what lineage is told from."""

    async def read_steps(
        self, execution_id: ExecutionId, *, after_version: int, until_version: int
    ) -> list[Envelope]:
        """Return the events of a range of versions that runs and steps begin, end or result in.

        What items, frames and commands came to is left out; `until_version` is read too.
        """


class LineageRows(Protocol):
    """Run events that are kept until, and after, they were delivered."""

    async def list_behind(
        self, *, shard: int, shard_count: int, lineage_version: int, executions_max: int
    ) -> list[LineageBehind]:
        """Return executions of a shard whose ledger is ahead, or that an older release told.

        Those whose beginning has left the ledger are none of them.
        """

    async def keep(
        self,
        behind: LineageBehind,
        rows: Sequence[LineageRow],
        *,
        until: int,
        state: bytes,
        lineage_version: int,
    ) -> bool:
        """Write rows and move the position in one transaction; False when it stands elsewhere.

        Told from the beginning, rows that are no more are removed; those that say the same as
        before stay as delivered as they were.
        """

    async def list_rows(
        self, execution_id: ExecutionId, *, after: tuple[int, int] = (0, -1), rows_max: int
    ) -> list[LineageRow]:
        """Return the rows of an execution, in order, after a version and ordinal."""

    async def list_undelivered(
        self, *, shard: int, shard_count: int, rows_max: int
    ) -> list[Undelivered]:
        """Return rows of a shard to deliver, in order within each execution."""

    async def settle(self, row: Undelivered, *, refusal: str | None = None) -> None:
        """Note that a row was delivered, or why its receiver will never take it."""

    async def forget(self, execution_id: ExecutionId) -> bool:
        """Have an execution told again from its beginning; False when it was not told."""
