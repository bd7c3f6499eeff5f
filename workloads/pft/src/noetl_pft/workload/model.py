"""What PFT fetches: every unit, its payload and the expected totals, as functions of the scale."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

Payload = dict[str, Any]
FEWEST_MDS = 5
PINNED_DIGESTS: dict[tuple[int, int], str] = {
    (1, 50): "59d29b1ec233b91afdf5a0d59c114ca3a124833459550ef9349ee7fe791fab16",
    (1, 1000): "94edf15c6ba71ab76eaf63a3f7ef76396a22992ebda283eb3d6dd8455319b849",
    (10, 100): "a0225071fb869807fbecce970df335ec99db587ec6923cd83a1824b10e5091f8",
    (10, 1000): "574712d2574e6aeb82c5b17fe5b755ff0a33ea56e629fd7d77ef78db34ee381a",
}
PINNED_PAGE_DIGESTS: dict[tuple[int, int], str] = {
    (1, 50): "ed18da05a9d95cff22288ee81302ef995c38e48e1bdbdea9c1e5db1eca2ba353",
    (1, 1000): "120af69bd9b6b9e0b242859836dca58b127758e179fabe96775f8b0fea537257",
    (10, 100): "0f0e9336fed5863aaed5a52a940f217a93fd3a01876b932ad7a0ddc34e99ba02",
    (10, 1000): "ee644e3e5ab48b41862e623ca61e8647e5e6608b24b4bdf1bcec9d1c2c7f4203",
}


class PagedKind(NamedTuple):
    """Least and most pages of a patient, and the prefix of its record ids."""

    least: int
    most: int
    prefix: str


PAGED: dict[str, PagedKind] = {
    "assessments": PagedKind(2, 4, "ASSE"),
    "conditions": PagedKind(1, 3, "COND"),
    "medications": PagedKind(2, 3, "MEDI"),
    "vital_signs": PagedKind(1, 1, "VITA"),
}
KINDS = (*PAGED, "demographics")


class Scale(NamedTuple):
    """How many facilities, and how many patients in each."""

    facilities: int
    patients: int

    @property
    def patient_count(self) -> int:
        """All patients of all facilities."""
        return self.facilities * self.patients

    def get_facility(self, patient: int) -> int:
        """Return the facility that owns a patient."""
        return (patient - 1) // self.patients + 1

    def list_members(self, facility: int) -> range:
        """Return the patients of a facility."""
        return range((facility - 1) * self.patients + 1, facility * self.patients + 1)


class Unit(NamedTuple):
    """One thing to fetch and save."""

    facility: int
    patient: int
    kind: str
    item: str

    @property
    def unit_name(self) -> str:
        """The unit's name, as ledger and digest spell it."""
        match self.kind:
            case "mds":
                return f"mds/{self.item}"
            case "demographics":
                return f"demographics/{self.patient}"
            case _:
                return f"{self.kind}/{self.patient}/{self.item}"

    def build_payload(self) -> Payload:
        """Return the body that the fixture must answer and the run must save."""
        match self.kind:
            case "mds":
                return build_detail(self.item)
            case "demographics":
                return build_demographics(self.patient)
            case _:
                return build_page_body(self.patient, self.kind, int(self.item))


class Totals(NamedTuple):
    """What a complete run leaves behind, for one facility or for all."""

    pages: dict[str, int]
    people: int
    mds: int

    @property
    def page_count(self) -> int:
        """Pages of all four paged types."""
        return sum(self.pages.values())

    @property
    def unit_count(self) -> int:
        """Requests of playbook A, and units saved."""
        return self.page_count + self.people + self.mds

    @property
    def row_count(self) -> int:
        """Rows claimed by playbooks A and B."""
        return len(KINDS) * self.people + self.mds


def spread_text(text: str) -> int:
    """Return MD5 as a number: a spreading function, not security."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest(), "big")


@lru_cache(maxsize=65536)
def count_pages(patient: int, kind: str) -> int:
    """Return how many pages of a type a patient has."""
    least, most, _ = PAGED[kind]
    return least + spread_text(f"{patient}:{kind}") % (most - least + 1)


def count_mds_ids(patient: int, page: int) -> int:
    """Return how many MDS ids an assessments page names."""
    return FEWEST_MDS + spread_text(f"{patient}:assessments:{page}") % 6


def list_mds_ids(patient: int, page: int) -> list[str]:
    """Return the MDS ids that an assessments page names."""
    return [f"MDS-{patient}-p{page}-0-{k:02d}" for k in range(1, count_mds_ids(patient, page) + 1)]


def build_record(patient: int, kind: str, page: int) -> Payload:
    """Return the one record of a page."""
    s = spread_text(f"{patient}:{kind}:{page}")
    fields: Payload = {
        "id": f"{PAGED[kind].prefix}-{patient}-p{page}-i0",
        "patientId": str(patient),
        "dataType": kind,
        "value": s % 100,
    }
    if kind == "assessments":
        fields["mdsCount"] = count_mds_ids(patient, page)
        fields["mdsAssessmentIds"] = list_mds_ids(patient, page)
    return fields


def build_page_body(patient: int, kind: str, page: int) -> Payload:
    """Return the body of a page."""
    total = count_pages(patient, kind)
    paging = {"hasMore": page < total, "page": page, "pageSize": 1, "total": total}
    return {"data": [build_record(patient, kind, page)], "paging": paging}


def build_demographics(patient: int) -> Payload:
    """Return the demographics object of a patient."""
    s = spread_text(f"{patient}:demographics")
    return {
        "patientId": str(patient),
        "firstName": f"First{s % 1000}",
        "lastName": f"Last{(s >> 8) % 1000}",
        "dob": f"19{50 + s % 50}-{1 + s % 12:02d}-{1 + (s >> 4) % 28:02d}",
        "gender": "M" if s % 2 == 0 else "F",
        "status": "active",
    }


def build_detail(assessment: str) -> Payload:
    """Return the MDS detail of an assessment id."""
    s = spread_text(assessment)
    return {"assessmentId": assessment, "status": "completed", "sections": build_sections(s)}


def build_sections(s: int) -> list[Payload]:
    """Return the sections of an MDS detail; only `s` modulo 5 matters."""
    return [
        {
            "sectionId": f"S{i}",
            "questions": [
                {"key": f"B{i}0{j}", "responses": [{"responseValue": str((s + 10 * i + j) % 5)}]}
                for j in range(1, 4)
            ],
        }
        for i in range(1, 4)
    ]


def list_legacy_mds_ids(patient: int) -> list[str]:
    """Return the ids of the older endpoint, which are no units."""
    return [f"MDS-{patient}-{k:03d}" for k in range(1, 3 + spread_text(f"{patient}:mds") % 4)]


def iterate_units(
    scale: Scale, *, with_details: bool = True, with_people: bool = True
) -> Iterator[Unit]:
    """Enumerate the units of a scale, facility by facility and patient by patient."""
    for patient in range(1, scale.patient_count + 1):
        facility = scale.get_facility(patient)
        for kind in PAGED:
            for page in range(1, count_pages(patient, kind) + 1):
                yield Unit(facility, patient, kind, str(page))
                if with_details and kind == "assessments":
                    for assessment in list_mds_ids(patient, page):
                        yield Unit(facility, patient, "mds", assessment)
        if with_people:
            yield Unit(facility, patient, "demographics", "")


def count_facility_totals(scale: Scale, facility: int) -> Totals:
    """Return the expected totals of one facility."""
    people = scale.list_members(facility)
    by_kind = {kind: sum(count_pages(p, kind) for p in people) for kind in PAGED}
    mds = sum(
        count_mds_ids(p, g) for p in people for g in range(1, count_pages(p, "assessments") + 1)
    )
    return Totals(by_kind, len(people), mds)


def count_totals(scale: Scale) -> Totals:
    """Return the expected totals of all facilities."""
    parts = [count_facility_totals(scale, f) for f in range(1, scale.facilities + 1)]
    by_kind = {kind: sum(part.pages[kind] for part in parts) for kind in PAGED}
    return Totals(by_kind, scale.patient_count, sum(part.mds for part in parts))


def count_frame_bounds(scale: Scale, *, frame_rows: int, slots: int) -> tuple[int, int]:
    """Return the least and most frames (and requests of playbook B) of a fault-free run."""
    of_types = len(KINDS) * scale.facilities * -(-scale.patients // frame_rows)
    of_mds = sum(
        -(-count_facility_totals(scale, f).mds // frame_rows)
        for f in range(1, scale.facilities + 1)
    )
    least = of_types + of_mds
    return least, least + (len(KINDS) + 1) * scale.facilities * (slots - 1)


def encode_canonical(payload: Any) -> bytes:
    """Return the form of a payload that digests are made of."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_set(entries: Iterable[tuple[int, str, str]]) -> str:
    """Return the digest of (facility, unit, payload fingerprint) entries, in any order."""
    total = hashlib.sha256()
    for line in sorted(f"{facility} {unit} {mark}\n".encode() for facility, unit, mark in entries):
        total.update(line)
    return total.hexdigest()
