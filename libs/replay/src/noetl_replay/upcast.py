"""Old event shapes to new ones: pure steps, each to a later schema version."""

from collections.abc import Callable, Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import UnknownEventType

Body = dict[str, Any]
Upcaster = Callable[[Body], Body]
Registry = Mapping[tuple[str, int], tuple[int, Upcaster]]

# The current schemas are the first ones: nothing to advance.
REGISTRY: Registry = {}
CURRENT_VERSION = 1


def digest(registry: Registry = REGISTRY) -> str:
    """Fingerprint which transitions exist."""
    return codec.checksum(
        sorted([name, version, target] for (name, version), (target, _) in registry.items())
    )


def upcast(name: str, version: int, body: Body, registry: Registry = REGISTRY) -> Body:
    """Advance a body to the current version; raises `UnknownEventType` for a newer one."""
    while version != CURRENT_VERSION:
        if (name, version) not in registry:
            raise UnknownEventType(
                f"{name} version {version} is not known to this release "
                f"(current: {CURRENT_VERSION}): upgrade before reading this history"
            )
        target, step = registry[(name, version)]
        if target <= version:
            raise UnknownEventType(f"upcaster of {name} from {version} does not advance")
        version, body = target, step(body)
    return body
