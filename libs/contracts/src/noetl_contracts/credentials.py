"""Credentials as they rest: sealed, versioned, addressed by name."""

from msgspec import Struct

# The kind of a version that ends a credential: versions are never removed, so that none is reused.
DELETED = "deleted"


class SealedCredential(Struct, frozen=True, kw_only=True):
    """AES-256-GCM ciphertext of the credential's JSON fields; opened only inside a worker.

    The associated data is `<tenant>/<organization>/<name>/<version>`, so that a sealed value
    cannot be moved under another name.
    """

    name: str
    version: int
    kind: str
    key_id: str
    nonce: str
    ciphertext: str


def object_name(name: str, version: int) -> str:
    """Name the payload store's object that holds a sealed credential."""
    return f"credentials/{name}/{version:010d}"


def object_prefix(name: str) -> str:
    """Name the folder of all versions of a credential."""
    return f"credentials/{name}/"


def associated_data(tenant_id: str, organization_id: str, name: str, version: int) -> bytes:
    """Bind a sealed credential to its place."""
    return f"{tenant_id}/{organization_id}/{name}/{version}".encode()
