"""What the model expects, laid out as the checks need it."""

import sys
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from noetl_pft.workload import model
from noetl_pft.workload.model import Scale, Totals, Unit


class ExpectedUnit(NamedTuple):
    """One expected unit: whose it is, its payload, and whether it is a last page."""

    patient: int
    mark: bytes
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRun:
    """Every unit of a scale with the digest of its payload, by kind."""

    scale: Scale
    kinds: tuple[str, ...]
    units: dict[str, dict[tuple[int, str], ExpectedUnit]]
    names: frozenset[str]
    totals: Totals
    by_facility: dict[int, Totals]
    digest: str
    pinned: str | None


def build_expected_run(scale: Scale, *, with_details: bool) -> ExpectedRun:
    """Enumerate the model; without details only pages are units."""
    kinds = (*model.KINDS, "mds") if with_details else tuple(model.PAGED)
    units: dict[str, dict[tuple[int, str], ExpectedUnit]] = {kind: {} for kind in kinds}
    for unit in model.iterate_units(scale, with_details=with_details, with_people=with_details):
        mark = sha256(model.encode_canonical(unit.build_payload())).digest()
        # Interned, because each witness names the same units again.
        key = (unit.facility, sys.intern(unit.unit_name))
        units[unit.kind][key] = ExpectedUnit(unit.patient, mark, _is_last_page(unit))
    pins = model.PINNED_DIGESTS if with_details else model.PINNED_PAGE_DIGESTS
    return ExpectedRun(
        scale=scale,
        kinds=kinds,
        units=units,
        names=frozenset(name for of_kind in units.values() for _, name in of_kind),
        totals=model.count_totals(scale),
        by_facility={
            f: model.count_facility_totals(scale, f) for f in range(1, scale.facilities + 1)
        },
        digest=model.digest_set(
            (facility, name, expected_unit.mark.hex())
            for of_kind in units.values()
            for (facility, name), expected_unit in of_kind.items()
        ),
        pinned=pins.get((scale.facilities, scale.patients)),
    )


def _is_last_page(unit: Unit) -> bool:
    return unit.kind in model.PAGED and int(unit.item) == model.count_pages(unit.patient, unit.kind)
