"""Where payloads and named objects lie, and which names are let in.

`tenant/<t>/org/<o>/payloads/sha256/<aa>/<bb>/<digest>` and `tenant/<t>/org/<o>/named/<name>`;
what is put aside lies under `tenant/<t>/org/<o>/shelf/sha256/…`, the wrapped keys of a tenant
under `tenant/<t>/org/<o>/keys/`.
"""

import re

from noetl_contracts import locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads.objects import ObjectInfo
from noetl_storage.ports.errors import NameRefused
from noetl_storage.ports.payload_ports import Owner, StoredContent, StoredObject

_OWNER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME_SEGMENT = re.compile(r"[A-Za-z0-9_=@+-][A-Za-z0-9_=@+.-]{0,127}")
_NAME_LENGTH_MAX = 512
_CONTENT, _SHELF = "/payloads/sha256/", "/shelf/sha256/"
# `tenant/<t>/org/<o>`
_OWNER_SEGMENTS = 4


def build_content_key(tenant_id: TenantId, organization_id: OrganizationId, sha256: str) -> str:
    """Return the key of content; raises `NameRefused`."""
    if not _SHA256.fullmatch(sha256):
        raise NameRefused(f"{sha256!r:.80} is not a lower-case SHA-256")
    owner_prefix = _build_owner_prefix(tenant_id, organization_id)
    return f"{owner_prefix}/payloads/sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}"


def find_place(ref: PayloadRef) -> tuple[str, Owner, str]:
    """Return the key of a reference, whose it is, and its name if it has one.

    Raises `NameRefused`.
    """
    try:
        locator = locators.parse_locator(ref.uri)
    except LocatorError as failure:
        raise NameRefused(f"a payload reference has no usable locator: {failure}") from failure
    match locator.segments:
        case ("tenant", tenant, "org", organization, "payloads", "sha256", ref.sha256):
            owner = _build_owner(tenant, organization)
            return build_owned_content_key(owner, ref.sha256), owner, ""
        case ("tenant", tenant, "org", organization, "named", *segments):
            owner, name = _build_owner(tenant, organization), "/".join(segments)
            return build_owned_name_key(owner, name), owner, name
        case _:
            raise NameRefused(f"{ref.uri!r:.200} does not locate the payload {ref.sha256:.64}")


def build_owned_content_key(owner: Owner, sha256: str) -> str:
    """Return the key of an owner's content; raises `NameRefused`."""
    return build_content_key(owner.tenant_id, owner.organization_id, sha256)


def build_owned_name_key(owner: Owner, name: str) -> str:
    """Return the key of an owner's named object; raises `NameRefused`."""
    return build_named_key(name, owner.tenant_id, owner.organization_id)


def build_owned_prefix(owner: Owner) -> str:
    """Return what the keys of an owner's named objects begin with."""
    return build_named_prefix(owner.tenant_id, owner.organization_id)


def build_tenant_prefix(tenant_id: TenantId) -> str:
    """Return what the keys of all objects of a tenant begin with; raises `NameRefused`."""
    _check_owner_names(tenant_id)
    return f"tenant/{tenant_id}/"


def build_tenant_key_prefix(owner: Owner) -> str:
    """Return what the keys of the objects begin with that hold an owner's wrapped keys."""
    return f"{_build_owner_prefix(owner.tenant_id, owner.organization_id)}/keys/"


def build_shelf_key(key: str) -> str:
    """Return where content with a key lies when it is put aside."""
    return key.replace(_CONTENT, _SHELF, 1)


def list_possible_places(key: str) -> tuple[str, ...]:
    """Return where an object may be: content may be on the shelf, or just have come back."""
    is_content = key.split("/", _OWNER_SEGMENTS + 1)[_OWNER_SEGMENTS] == "payloads"
    return (key, build_shelf_key(key), key) if is_content else (key,)


def list_content_prefixes(owner: Owner) -> tuple[str, str]:
    """Return what the keys of an owner's content begin with, in place and on the shelf."""
    owner_prefix = _build_owner_prefix(owner.tenant_id, owner.organization_id)
    return f"{owner_prefix}{_CONTENT}", f"{owner_prefix}{_SHELF}"


def read_listed_content(object_info: ObjectInfo) -> StoredContent | None:
    """Read a listed object as content, or None for one that somebody else put there."""
    sha256 = object_info.key.rpartition("/")[2]
    if not _SHA256.fullmatch(sha256):
        return None
    return StoredContent(
        sha256=sha256,
        stored_bytes=object_info.stored_bytes,
        modified_at=object_info.modified_at,
        is_shelved=_SHELF in object_info.key,
    )


def read_listed_object(owner: Owner, object_info: ObjectInfo) -> StoredObject:
    """Read a listed object as a named one."""
    return StoredObject(
        name=object_info.key.removeprefix(build_owned_prefix(owner)),
        stored_bytes=object_info.stored_bytes,
        modified_at=object_info.modified_at,
    )


def find_object_name(owner: Owner, key: str) -> str:
    """Return the name of an owner's object, empty for content."""
    owner_prefix = build_owned_prefix(owner)
    return key.removeprefix(owner_prefix) if key.startswith(owner_prefix) else ""


def check_owner(owner: Owner) -> None:
    """Admit an owner whose name may stand in a key; raises `NameRefused`."""
    _build_owner_prefix(owner.tenant_id, owner.organization_id)


def build_named_key(name: str, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return the key of a named object; raises `NameRefused`."""
    segments = name.split("/")
    if len(name) > _NAME_LENGTH_MAX or not all(map(_NAME_SEGMENT.fullmatch, segments)):
        raise NameRefused(
            f"{name!r:.120} cannot name an object: use segments of letters, digits and "
            "'_=@+.-' that do not begin with a dot, separated by single slashes"
        )
    return f"{build_named_prefix(tenant_id, organization_id)}{name}"


def build_named_prefix(tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return the part of the key before a name, with its slash."""
    return f"{_build_owner_prefix(tenant_id, organization_id)}/named/"


def check_name_prefix(prefix: str) -> None:
    """Admit a prefix of names: nothing, a whole name, or one ending in a slash."""
    segments = prefix.removesuffix("/").split("/")
    if prefix and not all(map(_NAME_SEGMENT.fullmatch, segments)):
        raise NameRefused(f"{prefix!r:.120} cannot begin the name of an object")


def build_payload_ref(
    *,
    tenant_id: TenantId,
    organization_id: OrganizationId,
    sha256: str,
    payload_bytes: int,
    media_type: str,
    row_count: int | None,
    schema_digest: str | None,
    key_id: str | None = None,
) -> PayloadRef:
    """Return the reference to content that has just been stored."""
    return PayloadRef(
        uri=locators.build_payload_locator(tenant_id, organization_id, sha256),
        sha256=sha256,
        media_type=media_type,
        payload_bytes=payload_bytes,
        row_count=row_count,
        schema_digest=schema_digest,
        key_id=key_id,
    )


def _build_owner(tenant: str, organization: str) -> Owner:
    return Owner(tenant_id=TenantId(tenant), organization_id=OrganizationId(organization))


def _build_owner_prefix(tenant_id: TenantId, organization_id: OrganizationId) -> str:
    _check_owner_names(tenant_id, organization_id)
    return f"tenant/{tenant_id}/org/{organization_id}"


def _check_owner_names(*names: str) -> None:
    for name in names:
        if not _OWNER.fullmatch(name):
            raise NameRefused(f"{name!r:.80} cannot stand in a key: 1 to 64 of [A-Za-z0-9_-]")
