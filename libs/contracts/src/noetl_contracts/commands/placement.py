"""Distance between places (cluster, region, zone, node), and the choice of the nearest worker."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.locators import DISTANCES, LOCALITY_KEYS, find_distance

# What is compared; processes of one node are equally near.
PLACE_KEYS = LOCALITY_KEYS[:-1]
ANYWHERE = DISTANCES[-1]
NAME_CHARACTERS_MAX = 128
LOCALITY_BYTES_MAX = 2048
# What a claim may call a place, the word that counts most first.
_SPELLINGS = {
    "cluster": ("cluster", "cluster_id"),
    "region": ("region",),
    "zone": ("prefer_zone", "zone"),
    "node": ("prefer_node", "node", "node_id"),
}
_MAX_DISTANCE = "max_distance"

Place = Mapping[str, str]


class LocalityMalformed(Permanent):
    """A locality does not name places; the message says which part and what it may be."""


class Placement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far from its inputs a command was taken, and how far it might have been."""

    distance: str
    max_distance: str | None = None


class PlacementPreference(Struct, frozen=True, kw_only=True):
    """Where somebody is who asks for work, and how far inputs may be from there."""

    place: dict[str, str]
    max_distance: str = ANYWHERE

    @property
    def has_distance_limit(self) -> bool:
        """Tell whether there is work that may not come here."""
        return self.max_distance != ANYWHERE

    def admits_source(self, source: Place) -> bool:
        """Tell whether work on inputs of a place may come here; inputs of no place may always."""
        return not source or rank_distance(find_distance(source, self.place)) <= rank_distance(
            self.max_distance
        )

    def rank_source(self, source: Place) -> int:
        """Return a number that is smaller for work that is better done here than another.

        Inputs of no place are as near here as anywhere: after what is near, before what is far.
        """
        return (
            2 * rank_distance(find_distance(source, self.place))
            if source
            else 2 * rank_distance(ANYWHERE) - 1
        )


def rank_distance(name: str) -> int:
    """Return a distance's number, the nearest 0."""
    return DISTANCES.index(name)


def extract_place(locality: Mapping[str, Any]) -> dict[str, str]:
    """Keep what of a locality says where it is; ill-typed parts are left out."""
    localities = {key: locality[key] for key in PLACE_KEYS if key in locality}
    return {key: name for key, name in localities.items() if isinstance(name, str) and name}


def find_common_place(place: Place, other: Place) -> dict[str, str]:
    """Return what two places share, from the coarse end down to the first part that differs.

    A part that only one of them knows differs: so the order of many places does not matter.
    """
    shared: dict[str, str] = {}
    for key in PLACE_KEYS:
        if place.get(key) != other.get(key):
            break
        if key in place:
            shared[key] = place[key]
    return shared


def find_shared_place(places: Iterable[Place]) -> dict[str, str]:
    """Return what all places share; of none: nothing."""
    shared: dict[str, str] | None = None
    for place in places:
        shared = dict(place) if shared is None else find_common_place(shared, place)
    return shared or {}


def evaluate_placement(
    source: Place, locality: Mapping[str, Any], *, max_distance: str | None = None
) -> Placement | None:
    """Say how far from its inputs work was taken; None for inputs of no place."""
    if not source:
        return None
    distance = find_distance(source, extract_place(locality))
    return Placement(distance=distance, max_distance=max_distance)


def read_preference(locality: Mapping[str, Any]) -> PlacementPreference:
    """Read what a claim says of places; what is no place is not looked at.

    Raises `LocalityMalformed`.
    """
    if len(codec.encode_json(locality)) > LOCALITY_BYTES_MAX:
        raise LocalityMalformed(f"locality takes more than {LOCALITY_BYTES_MAX} bytes")
    preference: dict[str, str] = {}
    for key, spellings in _SPELLINGS.items():
        written_key = next((spelling for spelling in spellings if spelling in locality), None)
        if written_key is not None:
            preference[key] = _check_place_name(written_key, locality[written_key])
    farthest = locality.get(_MAX_DISTANCE, ANYWHERE)
    if farthest not in DISTANCES:
        raise LocalityMalformed(
            f"locality.{_MAX_DISTANCE} is {codec.encode_text(farthest)[:80]}: "
            f"use one of {', '.join(DISTANCES)}"
        )
    if farthest != ANYWHERE and not preference:
        raise LocalityMalformed(
            f"locality.{_MAX_DISTANCE} is {farthest!r}, and nothing says where the worker is: "
            f"name its {', '.join(PLACE_KEYS)}"
        )
    return PlacementPreference(place=preference, max_distance=farthest)


def _check_place_name(key: str, name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise LocalityMalformed(
            f"locality.{key} is {codec.encode_text(name)[:80]}: "
            f"use a text of 1 to {NAME_CHARACTERS_MAX} characters"
        )
    return name
