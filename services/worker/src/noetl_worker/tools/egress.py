"""Name resolution for the HTTP tool that admits only addresses which may be reached."""

import asyncio
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from noetl_worker.domain import egress
from noetl_worker.domain.failures import ToolFailure, failure


class CheckedResolver(AbstractResolver):
    """Resolves once and hands out only addresses that passed the check, so none is swapped."""

    def __init__(
        self,
        allowances: tuple[egress.Allowance, ...],
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._allowances = allowances
        self._resolver = resolver or ThreadedResolver(loop=asyncio.get_running_loop())

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the allowed addresses of a host; raises `ToolFailure` when there are none."""
        found = await self._resolver.resolve(host, port, family)
        allowed = [
            entry
            for entry in found
            if egress.is_allowed(entry["host"], host=host, port=port, allowances=self._allowances)
        ]
        if not allowed:
            raise denied(host, port)
        return allowed

    async def close(self) -> None:
        """Free the resolver."""
        await self._resolver.close()


def check_literal(host: str, port: int, allowances: tuple[egress.Allowance, ...]) -> None:
    """Refuse a URL whose host is a forbidden address; names are checked when they resolve."""
    # The client takes such hosts for addresses and would never resolve them.
    if ":" not in host and not host.replace(".", "").isdigit():
        return
    try:
        is_allowed = egress.is_allowed(host, host=host, port=port, allowances=allowances)
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise denied(host, port)


def denied(host: str, port: int) -> ToolFailure:
    """Say why a request was not sent."""
    return ToolFailure(
        failure(
            "config",
            f"requests to {host}:{port} are not allowed: the address is not public; "
            "an operator can allow it with NOETL_WORKER_HTTP_ALLOW",
            source="http",
        )
    )
