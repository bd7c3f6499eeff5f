"""Errors of storage."""

from noetl_contracts.errors import Permanent, Retryable


class VersionConflict(Retryable):
    """The history has another version than the writer expected: load it and decide again."""


class ShardLost(Retryable):
    """The shard belongs to another epoch: stop deciding for it."""


class StateMoved(VersionConflict):
    """A value of `state` has another revision than the writer read: read it and decide again."""


class DuplicateKey(Permanent):
    """An event with this idempotency key is already in the history."""

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} is already in the history")
        self.key = key


class RequestKnown(Permanent):
    """A request with this identity, or with this idempotency key, has been kept before."""


class PlaybookOutdated(Retryable):
    """The playbook has a later version: look it up again."""


class PayloadMissing(Retryable):
    """No bytes are stored under this reference."""


class PayloadCorrupt(Permanent):
    """The stored bytes do not have the digest that their reference promises."""


class StorageUnavailable(Retryable):
    """The store did not answer; whether a write took effect shows when it is made again."""


class StorageFull(StorageUnavailable):
    """The store's disk is full: nothing was stored, and the same succeeds once there is room."""


class StorageRefused(Retryable):
    """The store answers, and not with what was asked for; the same may succeed later."""


class StorageMisconfigured(Permanent):
    """The store answers, but not in a way that a service can rely on: change its settings."""


class NameRefused(Permanent):
    """The name cannot stand in a key of the payload store."""


class SchemaMismatch(Permanent):
    """The database's schema is not the one that this release expects."""


class NodeNumbersExhausted(Retryable):
    """Every snowflake node number is leased to a live instance."""


class RowRefused(Permanent):
    """Values break a rule of their table or type; nothing of the transaction was stored."""


class RetentionRefused(Permanent):
    """What was archived and what the ledger has disagree: nothing leaves before that is cleared."""


class ArchiveUnreachable(Permanent):
    """The history was archived, and this process was not told where the payload store is."""


class HistoryDropped(Permanent):
    """The history was removed by its owner's retention policy, and kept nowhere."""
