"""Connections to NATS: built from a credential, shared by calls, and their refusals as failures."""

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import nats.errors
import nkeys
from msgspec import Struct
from nats.aio.client import Client, RawCredentials

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import Credential, CredentialVault
from noetl_worker.tools.calls.background_tasks import BackgroundTasks
from noetl_worker.tools.nats.permissions import PermissionWatch

_SCHEMES = ("nats", "tls")
# As the tools of NATS write it: https://docs.nats.io/using-nats/developer/connecting/creds
_FILE = """\
-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
_JWT, _SEED = (
    re.compile(rf"^-+BEGIN {part}-+\s+([A-Za-z0-9_.-]+)\s+-+END {part}-+\s*$", re.MULTILINE)
    for part in ("NATS USER JWT", "USER NKEY SEED")
)
_CONNECTIONS_MAX = 32
_CONNECT_S = 10
_PORT = 4222
Key = tuple[str, str, str]


def build_nats_arguments(credential: Credential) -> dict[str, Any]:
    """Return what the client is opened with; raises `ToolFailure`."""
    return {
        "servers": [_get_url(credential)],
        **{
            name: credential.find_text_field(name) or None for name in ("user", "password", "token")
        },
    }


def _get_url(credential: Credential) -> str:
    url = credential.fields.get("url")
    if not isinstance(url, str) or not url:
        raise credential.build_unusable_failure("has no 'url'")
    # What is wrong with an address may be part of a password, so it is not told.
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        is_address = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise credential.build_unusable_failure(
            "has a 'url' that is no nats://host:port, nor tls://host:port"
        )
    return url


def build_credentials_file(credential: Credential) -> str | None:
    """Write the text of a credentials file anew; raises `ToolFailure` for what is none.

    Of a text without its parts the client would read on without end.
    """
    text_field = credential.find_text_field("creds")
    if not text_field:
        return None
    jwt, seed = _JWT.search(text_field), _SEED.search(text_field)
    if jwt is None or seed is None or not _is_seed(seed[1]):
        raise credential.build_unusable_failure(
            "has 'creds' that are not the text of a credentials file, a user's JWT and its seed"
        )
    return _FILE.format(jwt=jwt[1], seed=seed[1])


def _is_seed(text: str) -> bool:
    try:
        nkeys.from_seed(bytearray(text.encode()))
    except (nkeys.NkeysError, ValueError):
        return False
    return True


class NatsConnection(Struct, kw_only=True):
    """A connection, the version of its credential, its calls, and the server's last complaint."""

    client: Client
    version: int
    permissions: PermissionWatch
    complaint: str = ""


class NatsConnections:
    """At most `_CONNECTIONS_MAX` connections; the engine's own is not among them."""

    def __init__(self, vault: CredentialVault) -> None:
        self._vault = vault
        self._leftovers = BackgroundTasks()
        self._connected_by_key: dict[Key, NatsConnection] = {}
        self._connecting: dict[Key, asyncio.Lock] = {}

    async def get_connection(self, auth: Any, site: UnitScope) -> NatsConnection:
        """Return a living connection; raises `ToolFailure`."""
        if auth is None:
            raise ToolFailure(
                _build_config_error("field 'auth' must name a credential of type nats")
            )
        credential = await self._vault.resolve_auth(auth, site)
        if credential.kind != "nats":
            text = f"credential '{credential.name}' is of type '{credential.kind}', use type nats"
            raise ToolFailure(_build_config_error(text))
        name = credential.name if credential.version else repr(sorted(credential.fields.items()))
        key = (site.tenant_id, site.organization_id, name)
        if len(self._connecting) > 2 * _CONNECTIONS_MAX:
            self._forget_failures()
        async with self._connecting.setdefault(key, asyncio.Lock()):
            nats_connection = self._connected_by_key.get(key)
            if nats_connection is not None and _is_usable(nats_connection, credential):
                return nats_connection
            if nats_connection is not None:
                self._drop_connection(key)
            while len(self._connected_by_key) >= _CONNECTIONS_MAX:
                self._drop_connection(next(iter(self._connected_by_key)))
            fresh = await open_nats_connection(credential)
            self._connected_by_key[key] = fresh
            return fresh

    def _forget_failures(self) -> None:
        """Forget the servers that never answered."""
        for key, lock in list(self._connecting.items()):
            if key not in self._connected_by_key and not lock.locked():
                del self._connecting[key]

    def _drop_connection(self, key: Key) -> None:
        self._leftovers.start_task(self._connected_by_key.pop(key).client.close())
        if not self._connecting[key].locked():
            del self._connecting[key]

    async def close(self) -> None:
        """Close every connection."""
        for key in list(self._connected_by_key):
            self._drop_connection(key)
        await self._leftovers.wait_for_all()


def _is_usable(nats_connection: NatsConnection, credential: Credential) -> bool:
    is_current = nats_connection.version == credential.version
    # The client asks for its inbox once, so that only a new connection is told again.
    can_answer = nats_connection.permissions.can_be_answered
    return is_current and can_answer and nats_connection.client.is_connected


async def open_nats_connection(credential: Credential) -> NatsConnection:
    """Open a connection of its own; raises `ToolFailure`."""
    arguments, creds = build_nats_arguments(credential), build_credentials_file(credential)
    connected = NatsConnection(
        client=Client(), version=credential.version, permissions=PermissionWatch()
    )

    async def note_complaint(problem: Exception) -> None:
        connected.complaint = str(problem)
        connected.permissions.report_complaint(connected.complaint)

    try:
        async with asyncio.timeout(_CONNECT_S):
            await connected.client.connect(
                name="noetl-task",
                error_cb=note_complaint,
                # The next call makes a connection of its own: what is not sent is reported.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_S,
                user_credentials=None if creds is None else RawCredentials(creds),
                **arguments,
            )
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as problem:
        await connected.client.close()
        raise ToolFailure(_classify_refusal(problem, connected.complaint, credential)) from problem
    return connected


def _classify_refusal(problem: Exception, complaint: str, credential: Credential) -> Any:
    url = _get_url(credential)
    # No part of the address but these is told: it may hold a password.
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    server = f"the NATS server at {parts.hostname}:{parts.port or _PORT}"
    message = f"{problem} {complaint}".lower()
    if "authorization" in message or "authentication" in message:
        text = f"{server} refused the credential '{credential.name}'"
        return build_error("auth", text, source="nats")
    reason = str(problem) or complaint or type(problem).__name__
    text = f"{server} is not reachable with credential '{credential.name}': {reason}"
    return build_error("connection", text, source="nats")


def _build_config_error(text: str) -> Any:
    return build_error("config", text, source="nats")
