"""Old event shapes to new ones: pure steps, each to a later schema version.

A schema that no step leads to is at its first version. A step is never changed once an event of
its target version has been written: the next change is the next version.
"""

from collections.abc import Callable, Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import Permanent, UnknownEventType

Body = dict[str, Any]
Upcaster = Callable[[Body], Body]
Registry = Mapping[tuple[str, int], tuple[int, Upcaster]]

FIRST_VERSION = 1


class BadUpcasterRegistry(Permanent):
    """The steps between event shapes do not lead from every old one to the current one."""


def _name_the_worker(body: Body) -> Body:
    """Say `previous_worker` of a frame that was abandoned, as of a command issued again."""
    return _rename_field(body, "previous_owner", "previous_worker")


def _name_the_attempt(body: Body) -> Body:
    """Say `current_attempt` of a refused commit, as of a refused command: it is the fence."""
    return _rename_field(body, "current_fence", "current_attempt")


def _rename_field(body: Body, old: str, new: str) -> Body:
    return {new if name == old else name: value for name, value in body.items()}


REGISTRY: Registry = {
    ("noetl.frame.abandoned", 1): (2, _name_the_worker),
    ("noetl.frame.commit_rejected", 1): (2, _name_the_attempt),
}


def _list_current_versions(registry: Registry) -> dict[str, int]:
    current_versions: dict[str, int] = {}
    for (name, _), (target, _) in registry.items():
        current_versions[name] = max(current_versions.get(name, FIRST_VERSION), target)
    return current_versions


_CURRENT = _list_current_versions(REGISTRY)


def get_current_version(name: str, registry: Registry = REGISTRY) -> int:
    """Return the version in which this release writes a schema, and which it reads as it is."""
    currents = _CURRENT if registry is REGISTRY else _list_current_versions(registry)
    return currents.get(name, FIRST_VERSION)


def check_registry(registry: Registry) -> None:
    """Refuse steps that do not advance or that lead nowhere; raises `BadUpcasterRegistry`."""
    currents = _list_current_versions(registry)
    for (name, version), (target, _) in registry.items():
        if target <= version:
            raise BadUpcasterRegistry(f"the upcaster of {name} from {version} does not advance")
        if target != currents[name] and (name, target) not in registry:
            raise BadUpcasterRegistry(
                f"{name} advances from {version} to {target}, but nothing leads from there to "
                f"{currents[name]}"
            )


def digest_registry(registry: Registry = REGISTRY) -> str:
    """Fingerprint which transitions exist."""
    return codec.compute_checksum(
        sorted(
            [name, version, target, step.__name__]
            for (name, version), (target, step) in registry.items()
        )
    )


def upcast_body(name: str, version: int, body: Body, registry: Registry = REGISTRY) -> Body:
    """Advance a body to the current version, leaving the given one as it is.

    Raises `UnknownEventType` for a version that is newer than this release, or that none leads
    from.
    """
    current = get_current_version(name, registry)
    while version != current:
        if (name, version) not in registry:
            raise UnknownEventType(
                f"{name} version {version} is not known to this release "
                f"(current: {current}): upgrade before reading this history"
            )
        target, step = registry[(name, version)]
        if target <= version:
            raise UnknownEventType(f"the upcaster of {name} from {version} does not advance")
        version, body = target, step(body)
    return body


check_registry(REGISTRY)
