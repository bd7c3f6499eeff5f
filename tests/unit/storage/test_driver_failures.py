"""What the driver raises for a connection that is gone is a reason to try again, by one name."""

import asyncpg
import pytest

from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.postgres.error_translation import translate_errors


@pytest.mark.parametrize(
    "failure",
    [
        # Of a connection at rest whose server has just said that it stops.
        asyncpg.InternalClientError(
            "cannot switch to state 12; another operation (2) is in progress"
        ),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
        ConnectionResetError("reset by peer"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_connection_that_is_gone_is_unavailable(failure: Exception) -> None:
    with pytest.raises(StorageUnavailable, match=str(failure)[:20]), translate_errors():
        raise failure


def test_a_call_that_can_never_work_stays_what_it_is() -> None:
    with pytest.raises(asyncpg.InterfaceError), translate_errors():
        raise asyncpg.InterfaceError("the server expects 2 arguments for this query, 1 was passed")
