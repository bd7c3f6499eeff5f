"""Translates asyncpg's exceptions to the errors that the ports of storage promise."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from noetl_contracts.errors import NoetlError
from noetl_storage.ports.errors import (
    DuplicateKey,
    NodeNumbersExhausted,
    PlaybookOutdated,
    RequestKnown,
    RetentionRefused,
    RowRefused,
    ShardLost,
    StateMoved,
    StorageFull,
    StorageMisconfigured,
    StorageUnavailable,
    VersionConflict,
)

# What functions of ours raise, by its state.
_ERROR_BY_STATE: dict[str, type[NoetlError]] = {
    "NT001": ShardLost,
    "NT002": VersionConflict,
    "NT003": NodeNumbersExhausted,
    "NT004": RetentionRefused,
    "NT005": RequestKnown,
    "NT006": PlaybookOutdated,
    "NT007": StateMoved,
}
_KEY_IN_DETAIL = re.compile(r"\(execution_id, idempotency_key\)=\(\d+, (.*)\)[^)]*$", re.DOTALL)
# The driver has one class for a closed connection and for calls that can never work.
_CLOSED = re.compile(r"\bclos(?:ed|ing)\b|\breleased\b")

# Connection lost, server stopping or starting, no room, deadlock, statement cancelled.
_PASSING = (
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.PostgresSystemError,
    OSError,
    TimeoutError,
)
_REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedColumnError,
    asyncpg.InvalidSchemaNameError,
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the driver's exceptions into storage's; what is not known passes as it is."""
    try:
        yield
    except asyncpg.DiskFullError as failure:
        raise StorageFull(f"PostgreSQL's disk is full: {_describe_failure(failure)}") from failure
    except _PASSING as failure:
        raise StorageUnavailable(
            f"PostgreSQL did not answer: {_describe_failure(failure)}"
        ) from failure
    except _REFUSED as failure:
        raise StorageMisconfigured(f"PostgreSQL refused: {_describe_failure(failure)}") from failure
    except asyncpg.InterfaceError as failure:
        if not _CLOSED.search(str(failure)):
            raise
        raise StorageUnavailable(
            f"the connection is gone: {_describe_failure(failure)}"
        ) from failure
    except asyncpg.InternalClientError as failure:
        # A server that stops says so to connections at rest, which are then of no use.
        raise StorageUnavailable(
            f"the connection is gone: {_describe_failure(failure)}"
        ) from failure
    except asyncpg.PostgresError as failure:
        raise _name_refusal(failure) from failure


def _name_refusal(failure: asyncpg.PostgresError) -> Exception:
    """Name what a function of ours refused; anything else stays what it is."""
    error_type = _ERROR_BY_STATE.get(failure.sqlstate)
    if error_type is not None:
        return error_type(_describe_failure(failure))
    if isinstance(failure, asyncpg.UniqueViolationError):
        key = _KEY_IN_DETAIL.search(failure.detail or "")
        return DuplicateKey(key[1]) if key else VersionConflict(_describe_failure(failure))
    if isinstance(failure, asyncpg.IntegrityConstraintViolationError | asyncpg.DataError):
        return RowRefused(f"PostgreSQL refused the values: {_describe_failure(failure)}")
    return failure


def _describe_failure(failure: BaseException) -> str:
    """Say what happened in one line; a time-out of the driver has no words of its own."""
    return (str(failure) or type(failure).__name__).splitlines()[0]
