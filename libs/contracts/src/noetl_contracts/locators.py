"""`noetl://` locators: parse, build, and map to subjects.

Grammar: `noetl://` and segments, each percent-encoded and none empty. First come pairs of key and
value that say whose and where: `tenant/<t>/org/<o>`, then any of `cluster`, `region`, `zone`,
`node`, `build_process_locator`, in this order and each at most once. What follows names the thing:
a kind and one or more segments of identity, such as `worker/<id>`, `payloads/sha256/<digest>`,
`named/<name>…` or `stream/<stream>/<shard>`. Without an owner stands only
`execution/<id>/result/<step>/<run>[/<task>]`.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import LocatorError
from noetl_contracts.ids import OrganizationId, TenantId

SCHEME = "noetl://"
OWNER_KEYS = ("tenant", "org")
# From coarse to fine.
LOCALITY_KEYS = ("cluster", "region", "zone", "node", "process")
# How far apart two places are, from near to far; what is not known counts as far.
DISTANCES = ("node", "zone", "region", "cluster", "any")
_LENGTH_MAX = 2048
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENCODED = re.compile(r"(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})+")


class Locator(Struct, frozen=True, kw_only=True):
    """A parsed locator: its decoded segments, in order."""

    segments: tuple[str, ...]

    def find_segment(self, key: str) -> str | None:
        """Return what an owner or a place is called, or None.

        Only the pairs before the kind are looked at: names of things may spell anything.
        """
        return self._read_scope_pairs().get(key)

    def get_kind_and_identity(self) -> tuple[str, tuple[str, ...]]:
        """Return the kind and the identity; both are empty for a mere place."""
        own_segments = self.segments[2 * len(self._read_scope_pairs()) :]
        return (own_segments[0], own_segments[1:]) if own_segments else ("", ())

    def _read_scope_pairs(self) -> dict[str, str]:
        """Read pairs as long as their keys come in the grammar's order."""
        scope_pairs: dict[str, str] = {}
        known_keys = iter((*OWNER_KEYS, *LOCALITY_KEYS))
        for key, value in zip(self.segments[::2], self.segments[1::2], strict=False):
            # `in` moves the iterator on: a key that comes too late, or again, is not there.
            if key not in known_keys:
                break
            scope_pairs[key] = value
        return scope_pairs

    def __str__(self) -> str:
        return build_locator(*self.segments)


def build_locator(*segments: str) -> str:
    """Build a locator from decoded segments; raises `LocatorError` for an unusable one."""
    if not segments:
        raise LocatorError("a locator needs at least one segment")
    text = SCHEME + "/".join(_encode_segment(segment) for segment in segments)
    if len(text) > _LENGTH_MAX:
        raise LocatorError(f"a locator is limited to {_LENGTH_MAX} characters, got {len(text)}")
    return text


def parse_locator(text: str) -> Locator:
    """Parse a locator; raises `LocatorError` naming what is wrong."""
    if not text.startswith(SCHEME):
        raise LocatorError(f"{text[:80]!r} does not begin with {SCHEME}")
    if len(text) > _LENGTH_MAX:
        raise LocatorError(f"a locator is limited to {_LENGTH_MAX} characters, got {len(text)}")
    parts = text.removeprefix(SCHEME).split("/")
    for part in parts:
        if not _ENCODED.fullmatch(part):
            raise LocatorError(f"segment {part[:80]!r} is empty or not percent-encoded")
    try:
        segments = tuple(unquote(part, errors="strict") for part in parts)
    except UnicodeDecodeError as failure:
        raise LocatorError(f"{text[:80]!r} does not decode as UTF-8") from failure
    if build_locator(*segments) != text:
        raise LocatorError(
            f"{text[:80]!r} is not in canonical form: {build_locator(*segments)!r} is"
        )
    return Locator(segments=segments)


def build_payload_locator(tenant_id: TenantId, organization_id: OrganizationId, sha256: str) -> str:
    """Locate immutable content by digest."""
    if not _SHA256.fullmatch(sha256):
        raise LocatorError(f"{sha256!r} is not a lower-case SHA-256")
    return build_locator("tenant", tenant_id, "org", organization_id, "payloads", "sha256", sha256)


def build_named_locator(tenant_id: TenantId, organization_id: OrganizationId, name: str) -> str:
    """Locate an object that is written once under a name of slash-separated segments."""
    return build_locator("tenant", tenant_id, "org", organization_id, "named", *name.split("/"))


def build_result_locator(execution_id: str, step: str, run: str, task: str | None = None) -> str:
    """Locate the result of a step run, or of one of its tasks."""
    tail = () if task is None else (task,)
    return build_locator("execution", execution_id, "result", step, run, *tail)


def build_resource_locator(
    tenant_id: TenantId,
    organization_id: OrganizationId,
    kind: str,
    *identity: str,
    locality: Mapping[str, str] | None = None,
) -> str:
    """Write the locator of something that an owner has: its kind and its identity.

    With `locality` it also says where that is, as in a region or on a node. Lineage, and the names
    of planners and workers, are made of it.

    Raises `LocatorError` for places that the grammar does not know, and for a kind that would be
    read as a place.
    """
    places = locality or {}
    unknown = sorted(places.keys() - set(LOCALITY_KEYS))
    if unknown:
        raise LocatorError(f"{unknown[0]!r} is no place: use {', '.join(LOCALITY_KEYS)}")
    if kind in OWNER_KEYS or kind in LOCALITY_KEYS or not identity:
        raise LocatorError(f"{kind!r} cannot be a kind, or has no identity behind it")
    parts = [part for key in LOCALITY_KEYS if key in places for part in (key, places[key])]
    return build_locator("tenant", tenant_id, "org", organization_id, *parts, kind, *identity)


def build_worker_locator(
    tenant_id: TenantId, organization_id: OrganizationId, locality: dict[str, str], worker_id: str
) -> str:
    """Locate a worker, from coarse to fine."""
    return build_resource_locator(
        tenant_id, organization_id, "worker", worker_id, locality=locality
    )


def build_process_locator(
    kind: str, name: str, tenant_id: TenantId, organization_id: OrganizationId
) -> str:
    """Locate a process by its name alone, or by the name's digest where no segment spells it."""
    try:
        return build_resource_locator(tenant_id, organization_id, kind, name)
    except LocatorError:
        digest = codec.digest_hex(name.encode(errors="surrogatepass"))
        return build_resource_locator(tenant_id, organization_id, kind, "sha256", digest)


def find_distance(locality: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the nearest of `DISTANCES` that two localities share; `any` when they share none.

    Two nodes of one name are one node only where all that is known of their surroundings agrees.
    """
    for key in DISTANCES[:-1]:
        around = LOCALITY_KEYS[: LOCALITY_KEYS.index(key)]
        is_same = key in locality and locality.get(key) == other.get(key)
        if is_same and all(
            locality[up] == other[up] for up in around if up in locality and up in other
        ):
            return key
    return DISTANCES[-1]


def _encode_segment(segment: str) -> str:
    if not segment or segment in {".", ".."} or any(ord(char) < 32 for char in segment):  # noqa: PLR2004 - control characters end at 32
        raise LocatorError(f"segment {segment!r} is empty, a dot segment or has control characters")
    try:
        return quote(segment, safe="")
    except UnicodeEncodeError as failure:
        raise LocatorError(f"segment {segment!r} is not valid Unicode") from failure
