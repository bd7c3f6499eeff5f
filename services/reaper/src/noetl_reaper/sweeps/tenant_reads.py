"""Ends what tenants' roles of the database run for too long: they can lift their own limits."""

from typing import Protocol

import structlog

from noetl_chassis.observability import instruments, names

log = structlog.get_logger(__name__)


class TenantRoles(Protocol):
    """The roles of the database that read one tenant each."""

    async def end_long_reads(self, longest_s: float) -> int:
        """End the sessions that are at something for longer than this; return how many."""


class TenantReadLimit:
    """Bounds how long one statement or transaction of a tenant's reader lasts."""

    def __init__(self, roles: TenantRoles, *, longest_s: float) -> None:
        self._roles = roles
        self._longest_s = longest_s

    async def end_long_reads(self) -> None:
        """End what lasts for too long."""
        ended = await self._roles.end_long_reads(self._longest_s)
        if ended:
            instruments.add_to_counter(names.TENANT_READS_ENDED, ended)
            log.warning("tenants' reads ended", sessions=ended, longest_s=self._longest_s)
