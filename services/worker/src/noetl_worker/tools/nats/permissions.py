"""What a NATS server forbids, told to the calls that asked for it.

A server answers no request that it forbids: it complains of a subject on the connection that calls
share. Without this, such a call would wait for its timeout.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

_VIOLATION = "permissions violation"
# Inboxes are how a client is answered at all: without them no call can end.
_INBOX = "_inbox"
_BETWEEN_TOKENS = re.compile(r"[\s\"'.]+")


class WatchedCall(Struct, kw_only=True, eq=False):
    """A call under way: what it names, how it is ended, and what the server forbade it."""

    names: frozenset[str]
    limit: asyncio.Timeout
    complaint: str = ""


def list_names(fields: Mapping[str, Any]) -> frozenset[str]:
    """List how subjects name what a task's fields name, in the case of complaints."""
    bucket, stream, subject = (
        str(fields.get(name) or "").lower() for name in ("bucket", "stream", "subject")
    )
    of_bucket = {bucket, f"kv_{bucket}", f"obj_{bucket}"} if bucket else set()
    return frozenset({*of_bucket, stream, subject} - {""})


class PermissionWatch:
    """The calls of one connection, of which the server's complaints end the ones they concern."""

    def __init__(self) -> None:
        self._calls: list[WatchedCall] = []
        self.can_be_answered = True

    @asynccontextmanager
    async def watch_call(self, fields: Mapping[str, Any]) -> AsyncIterator[WatchedCall]:
        """Run a block that ends with `TimeoutError` once the server forbids what it asks for."""
        async with asyncio.timeout(None) as limit:
            call = WatchedCall(names=list_names(fields), limit=limit)
            self._calls.append(call)
            try:
                yield call
            finally:
                self._calls.remove(call)

    def report_complaint(self, complaint: str) -> None:
        """End the calls that a complaint of the server concerns."""
        if _VIOLATION not in complaint.lower():
            return
        self.can_be_answered &= _INBOX not in _list_tokens(complaint)
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            if not call.complaint and _concerns_call(complaint, call.names):
                call.complaint = complaint
                call.limit.reschedule(now)


def _concerns_call(complaint: str, names: frozenset[str]) -> bool:
    tokens = _list_tokens(complaint)
    is_quoted = any(f'"{name}"' in complaint.lower() for name in names)
    return _INBOX in tokens or bool(names & tokens) or is_quoted


def _list_tokens(complaint: str) -> set[str]:
    return set(_BETWEEN_TOKENS.split(complaint.lower()))
