"""`noetl://` locators: parse, build, and map to subjects.

Grammar (seeds, 10.1): `noetl://` followed by alternating key and value segments, each
percent-encoded, ending in a kind and an id. Payload references end in `payloads/sha256/<digest>`,
execution results in `execution/<id>/result/<step>/<run>[/<task>]`.
"""

import re
from urllib.parse import quote, unquote

from msgspec import Struct

from noetl_contracts.errors import LocatorError
from noetl_contracts.ids import OrganizationId, TenantId

SCHEME = "noetl://"
LOCALITY_KEYS = ("region", "zone", "cluster", "node", "process")
_LENGTH_MAX = 2048
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENCODED = re.compile(r"(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})+")


class Locator(Struct, frozen=True, kw_only=True):
    """A parsed locator: its decoded segments, in order."""

    segments: tuple[str, ...]

    def find(self, key: str) -> str | None:
        """Return the segment that follows `key`, or None."""
        pairs = zip(self.segments[::2], self.segments[1::2], strict=False)
        return next((value for name, value in pairs if name == key), None)

    def locality(self) -> dict[str, str]:
        """Return the parts that say where the thing is."""
        found = {key: self.find(key) for key in LOCALITY_KEYS}
        return {key: value for key, value in found.items() if value is not None}

    def __str__(self) -> str:
        return build(*self.segments)


def build(*segments: str) -> str:
    """Build a locator from decoded segments; raises `LocatorError` for an unusable one."""
    if not segments:
        raise LocatorError("a locator needs at least one segment")
    text = SCHEME + "/".join(_encode(segment) for segment in segments)
    if len(text) > _LENGTH_MAX:
        raise LocatorError(f"a locator is limited to {_LENGTH_MAX} characters, got {len(text)}")
    return text


def parse(text: str) -> Locator:
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
    if build(*segments) != text:
        raise LocatorError(f"{text[:80]!r} is not in canonical form: {build(*segments)!r} is")
    return Locator(segments=segments)


def payload(tenant_id: TenantId, organization_id: OrganizationId, sha256: str) -> str:
    """Locate immutable content by digest."""
    if not _SHA256.fullmatch(sha256):
        raise LocatorError(f"{sha256!r} is not a lower-case SHA-256")
    return build("tenant", tenant_id, "org", organization_id, "payloads", "sha256", sha256)


def named(tenant_id: TenantId, organization_id: OrganizationId, name: str) -> str:
    """Locate an object that is written once under a name of slash-separated segments."""
    return build("tenant", tenant_id, "org", organization_id, "named", *name.split("/"))


def result(execution_id: str, step: str, run: str, task: str | None = None) -> str:
    """Locate the result of a step run, or of one of its tasks."""
    tail = () if task is None else (task,)
    return build("execution", execution_id, "result", step, run, *tail)


def worker(
    tenant_id: TenantId, organization_id: OrganizationId, locality: dict[str, str], worker_id: str
) -> str:
    """Locate a worker, from coarse to fine."""
    where = [part for key in LOCALITY_KEYS if key in locality for part in (key, locality[key])]
    return build("tenant", tenant_id, "org", organization_id, *where, "worker", worker_id)


def to_subject(locator: Locator) -> str:
    """Map a locator to a NATS subject: one token a segment, unsafe bytes written as `=XX`."""
    return "noetl.locator." + ".".join(_to_token(segment) for segment in locator.segments)


def from_subject(subject: str) -> Locator:
    """Map a subject made by `to_subject` back; raises `LocatorError`."""
    prefix = "noetl.locator."
    if not subject.startswith(prefix):
        raise LocatorError(f"{subject!r} is not a locator's subject")
    tokens = subject.removeprefix(prefix).split(".")
    try:
        decoded = tuple(unquote(token.replace("=", "%"), errors="strict") for token in tokens)
    except UnicodeDecodeError as failure:
        raise LocatorError(f"{subject!r} does not decode as UTF-8") from failure
    locator = Locator(segments=decoded)
    if to_subject(locator) != subject:
        raise LocatorError(f"{subject!r} is not in canonical form")
    return locator


def _encode(segment: str) -> str:
    if not segment or segment in {".", ".."} or any(ord(char) < 32 for char in segment):  # noqa: PLR2004 - control characters end at 32
        raise LocatorError(f"segment {segment!r} is empty, a dot segment or has control characters")
    try:
        return quote(segment, safe="")
    except UnicodeEncodeError as failure:
        raise LocatorError(f"segment {segment!r} is not valid Unicode") from failure


def _to_token(segment: str) -> str:
    return _encode(segment).replace(".", "%2E").replace("~", "%7E").replace("%", "=")
