"""Where payloads and named objects lie, and which names are let in.

`tenant/<t>/org/<o>/payloads/sha256/<aa>/<bb>/<digest>` and `tenant/<t>/org/<o>/named/<name>`.
"""

import re

from noetl_contracts import locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.errors import NameRefused

_OWNER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME_SEGMENT = re.compile(r"[A-Za-z0-9_=@+-][A-Za-z0-9_=@+.-]{0,127}")
_NAME_LENGTH_MAX = 512


def content_key(tenant_id: TenantId, organization_id: OrganizationId, sha256: str) -> str:
    """Return the key of content; raises `NameRefused`."""
    if not _SHA256.fullmatch(sha256):
        raise NameRefused(f"{sha256!r:.80} is not a lower-case SHA-256")
    place = _place(tenant_id, organization_id)
    return f"{place}/payloads/sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}"


def key_of(ref: PayloadRef) -> str:
    """Return the key that a reference points at; raises `NameRefused`."""
    try:
        locator = locators.parse(ref.uri)
    except LocatorError as failure:
        raise NameRefused(f"a payload reference has no usable locator: {failure}") from failure
    match locator.segments:
        case ("tenant", tenant, "org", organization, "payloads", "sha256", ref.sha256):
            return content_key(TenantId(tenant), OrganizationId(organization), ref.sha256)
        case ("tenant", tenant, "org", organization, "named", *name):
            return named_key("/".join(name), TenantId(tenant), OrganizationId(organization))
        case _:
            raise NameRefused(f"{ref.uri!r:.200} does not locate the payload {ref.sha256:.64}")


def named_key(name: str, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return the key of a named object; raises `NameRefused`."""
    segments = name.split("/")
    if len(name) > _NAME_LENGTH_MAX or not all(map(_NAME_SEGMENT.fullmatch, segments)):
        raise NameRefused(
            f"{name!r:.120} cannot name an object: use segments of letters, digits and "
            "'_=@+.-' that do not begin with a dot, separated by single slashes"
        )
    return f"{named_prefix(tenant_id, organization_id)}{name}"


def named_prefix(tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return the part of the key before a name, with its slash."""
    return f"{_place(tenant_id, organization_id)}/named/"


def check_prefix(prefix: str) -> None:
    """Admit a prefix of names: nothing, a whole name, or one ending in a slash."""
    segments = prefix.removesuffix("/").split("/")
    if prefix and not all(map(_NAME_SEGMENT.fullmatch, segments)):
        raise NameRefused(f"{prefix!r:.120} cannot begin the name of an object")


def build_ref(
    *,
    tenant_id: TenantId,
    organization_id: OrganizationId,
    sha256: str,
    payload_bytes: int,
    media_type: str,
    row_count: int | None,
    schema_digest: str | None,
) -> PayloadRef:
    """Return the reference to content that has just been stored."""
    return PayloadRef(
        uri=locators.payload(tenant_id, organization_id, sha256),
        sha256=sha256,
        media_type=media_type,
        payload_bytes=payload_bytes,
        row_count=row_count,
        schema_digest=schema_digest,
    )


def _place(tenant_id: TenantId, organization_id: OrganizationId) -> str:
    for owner in (tenant_id, organization_id):
        if not _OWNER.fullmatch(owner):
            raise NameRefused(f"{owner!r:.80} cannot stand in a key: 1 to 64 of [A-Za-z0-9_-]")
    return f"tenant/{tenant_id}/org/{organization_id}"
