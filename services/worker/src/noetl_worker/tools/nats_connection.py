"""Connections to the NATS servers that credentials name, one each, made anew when one breaks."""

import asyncio
from typing import Any

import nats.errors
from msgspec import Struct
from nats.aio.client import Client, RawCredentials

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site
from noetl_worker.keys.credential_vault import Credential, Vault
from noetl_worker.tools import nats_credentials
from noetl_worker.tools.leftovers import Leftovers

_CONNECTIONS_MAX = 32
_CONNECT_S = 10

Key = tuple[str, str, str]


class Connected(Struct, kw_only=True):
    """A connection, the version of its credential, and what the server complained of last."""

    client: Client
    version: int
    complaint: str = ""


class Connections:
    """At most `_CONNECTIONS_MAX` connections; the engine's own is not among them."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._leftovers = Leftovers()
        self._connected_by_key: dict[Key, Connected] = {}
        self._connecting: dict[Key, asyncio.Lock] = {}

    async def get(self, auth: Any, site: Site) -> Connected:
        """Return a living connection; raises `ToolFailure`."""
        if auth is None:
            raise ToolFailure(_config("field 'auth' must name a credential of type nats"))
        credential = await self._vault.resolve(auth, site)
        if credential.kind != "nats":
            text = f"credential '{credential.name}' is of type '{credential.kind}', use type nats"
            raise ToolFailure(_config(text))
        name = credential.name if credential.version else repr(sorted(credential.fields.items()))
        key = (site.tenant_id, site.organization_id, name)
        if len(self._connecting) > 2 * _CONNECTIONS_MAX:
            self._forget_failures()
        async with self._connecting.setdefault(key, asyncio.Lock()):
            found = self._connected_by_key.get(key)
            if found is not None and _is_good(found, credential):
                return found
            if found is not None:
                self._drop(key)
            while len(self._connected_by_key) >= _CONNECTIONS_MAX:
                self._drop(next(iter(self._connected_by_key)))
            fresh = await open_connection(credential)
            self._connected_by_key[key] = fresh
            return fresh

    def _forget_failures(self) -> None:
        """Forget the servers that never answered."""
        for key, lock in list(self._connecting.items()):
            if key not in self._connected_by_key and not lock.locked():
                del self._connecting[key]

    def _drop(self, key: Key) -> None:
        self._leftovers.add(self._connected_by_key.pop(key).client.close())
        if not self._connecting[key].locked():
            del self._connecting[key]

    async def close(self) -> None:
        """Close every connection."""
        for key in list(self._connected_by_key):
            self._drop(key)
        await self._leftovers.finish()


def _is_good(found: Connected, credential: Credential) -> bool:
    return found.version == credential.version and found.client.is_connected


async def open_connection(credential: Credential) -> Connected:
    """Open a connection of its own; raises `ToolFailure`."""
    known, creds = nats_credentials.arguments(credential), nats_credentials.creds(credential)
    connected = Connected(client=Client(), version=credential.version)

    async def note(problem: Exception) -> None:
        connected.complaint = str(problem)

    try:
        async with asyncio.timeout(_CONNECT_S):
            await connected.client.connect(
                name="noetl-task",
                error_cb=note,
                # The next call makes a connection of its own: what is not sent is reported.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_S,
                user_credentials=None if creds is None else RawCredentials(creds),
                **known,
            )
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as problem:
        await connected.client.close()
        raise ToolFailure(_refused(problem, connected.complaint)) from problem
    return connected


def _refused(problem: Exception, complaint: str) -> Any:
    said = f"{problem} {complaint}".lower()
    if "authorization" in said or "authentication" in said:
        return failure("auth", "the NATS server refused the credential", source="nats")
    reason = str(problem) or complaint or type(problem).__name__
    return failure("connection", f"the NATS server is not reachable: {reason}", source="nats")


def _config(text: str) -> Any:
    return failure("config", text, source="nats")
