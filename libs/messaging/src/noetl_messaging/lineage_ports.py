"""Who collects lineage, as one that takes a run event or says that it never will."""

from typing import Protocol

from noetl_contracts.errors import Permanent


class LineageRefused(Permanent):
    """The receiver will not take this event, however often it is sent."""


class LineageEndpoint(Protocol):
    """A receiver of OpenLineage's events."""

    async def deliver(self, body: str) -> None:
        """Hand over the JSON of one event, perhaps again.

        Raises `LineageRefused`, or `MessagingUnavailable` where sending it later may help.
        """
