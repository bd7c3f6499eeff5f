"""The roles of the database that read one tenant each."""

import base64
import hashlib  # noqa: TID251 - PBKDF2, which the contracts have no use for
import hmac
import secrets

from noetl_contracts import codec
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("tenant_roles")
_ROUNDS = 4096
_SALT_BYTES = 16


class PostgresTenantRoles:
    """Makes and drops tenants' roles, and ends what they run for too long."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_role(self, tenant_id: str, password: str, *, connections_max: int) -> str:
        """Make the role of a tenant, or give it this password; return its name.

        Raises `StorageMisconfigured` for a tenant that no role can be named after, and where the
        schema's owner may not create roles.
        """
        verifier = build_verifier(password, salt=secrets.token_bytes(_SALT_BYTES))
        role_name: str = await self._database.get_value(
            _QUERIES["create"], tenant_id, verifier, connections_max
        )
        return role_name

    async def drop_role(self, tenant_id: str) -> bool:
        """Drop the role of a tenant; False when it has none."""
        was_there: bool = await self._database.get_value(_QUERIES["drop"], tenant_id)
        return was_there

    async def find_own_tenant(self) -> str:
        """Return the tenant that `noetl_reader` reads: the installation's own."""
        tenant_id: str = await self._database.get_value(_QUERIES["find_own_tenant"])
        return tenant_id

    async def end_long_reads(self, longest_s: float) -> int:
        """End tenants' sessions that are at a statement or transaction for longer than this."""
        session_count: int = await self._database.get_value(_QUERIES["end_long_reads"], longest_s)
        return session_count


def build_verifier(password: str, *, salt: bytes) -> str:
    """Build what PostgreSQL keeps of a password (RFC 5803); it needs no more to be told."""
    salted_password = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ROUNDS)
    stored_key = codec.digest_bytes(hmac.digest(salted_password, b"Client Key", "sha256"))
    server_key = hmac.digest(salted_password, b"Server Key", "sha256")
    encoded_parts = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return "SCRAM-SHA-256${}:{}${}:{}".format(_ROUNDS, *encoded_parts)
