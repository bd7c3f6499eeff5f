"""Transactions of a target database, left at once when their task is called off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg


@asynccontextmanager
async def hold_transaction(
    connection: "asyncpg.Connection[Any]", *, readonly: bool = False
) -> AsyncIterator[None]:
    """Commit what the block did, or roll it back when it fails.

    A block that is called off leaves the transaction open: its connection is closed, which rolls
    back. A rollback would wait for the statement that was cancelled, and that may ignore it.
    """
    transaction = connection.transaction(readonly=readonly)
    await transaction.start()
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException:
        await transaction.rollback()
        raise
    await transaction.commit()
