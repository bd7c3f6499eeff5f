"""The port of what wraps the keys of sealed objects, and whose they are."""

from typing import Protocol

from noetl_contracts.ids import OrganizationId, TenantId


class Owner(Protocol):
    """The tenant and organization that an object belongs to."""

    @property
    def tenant_id(self) -> TenantId:
        """Name the tenant."""

    @property
    def organization_id(self) -> OrganizationId:
        """Name the organization."""


class KeyService(Protocol):
    """Wraps keys with the tenants' keys: in this process, or by a key management service.

    `associated_data` names the object: a key wrapped for one object does not unwrap for another.
    """

    def get_key_id(self, owner: Owner) -> str:
        """Name the key that wraps for an owner now."""

    def wrap_key(self, owner: Owner, key: bytes, associated_data: bytes) -> bytes:
        """Wrap an object's key with the owner's current key."""

    def unwrap_key(
        self, owner: Owner, key_id: str, wrapped: bytes, associated_data: bytes
    ) -> bytes:
        """Return an object's key; raises `PayloadKeyUnknown`, `PayloadSealBroken`."""
