"""Errors of messaging."""

from noetl_contracts.errors import Permanent, Retryable


class MessagingUnavailable(Retryable):
    """The server cannot be reached or did not confirm in time; it may have stored the message."""


class ServerLimitReached(MessagingUnavailable):
    """A limit of the NATS server or account is too small; an administrator can raise it."""


class MessageTooLarge(Permanent):
    """The message exceeds what a stream takes; send a reference instead."""


class TopologyMismatch(Permanent):
    """A stream or consumer is missing or differs from its declaration."""
