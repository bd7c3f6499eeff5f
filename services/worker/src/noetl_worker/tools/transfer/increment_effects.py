"""Transfers of increments into PostgreSQL: noted in the transaction that writes the rows.

The note has the outcome with the cursor that was reached. A later attempt of the same transfer
finds it: it writes nothing again, and moves the state no further than what was written.
"""

from typing import Any

from noetl_contracts import codec
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.postgres import effects
from noetl_worker.tools.postgres.postgres_session import PostgresSession


class AlreadyMoved(Exception):  # noqa: N818 - an earlier attempt has succeeded
    """An earlier attempt has written the rows; `outcome` is what it said."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        super().__init__("the rows were written before")
        self.outcome = outcome


def build_marker(call: Call) -> tuple[str, str]:
    """Name the effect of a transfer: the same in every attempt of it."""
    return call.site.execution_id, f"transfer/{call.idempotency_key}"


async def check_effect(session: PostgresSession, call: Call) -> None:
    """Make room for the note; raises `AlreadyMoved` when it is there."""
    connection = session.connection
    await effects.create_markers(connection)
    await _check_outcome(session, call)


async def store_effect(session: PostgresSession, call: Call, outcome: dict[str, Any]) -> None:
    """Note an outcome inside the transaction of its rows.

    Raises `AlreadyMoved`, which undoes them, when an attempt beside this one was first.
    """
    connection = session.connection
    if not await effects.write_marker(connection, *build_marker(call)):
        await _check_outcome(session, call)
    await effects.store_outcome(connection, *build_marker(call), codec.encode_text(outcome))


async def _check_outcome(session: PostgresSession, call: Call) -> None:
    done = await effects.find_outcome(session.connection, *build_marker(call))
    if done is not None:
        raise AlreadyMoved(done)
