"""The formulas agree with constants typed in by hand, so that a common error cannot pass."""

import hashlib
from typing import Any

import pytest

from noetl_pft.workload import model
from noetl_pft.workload.model import PAGED, Scale

TOTALS = {
    Scale(1, 50): (155, 94, 124, 50, 423, 50, 1185, 1658, 1435),
    Scale(1, 1000): (3000, 2043, 2485, 1000, 8528, 1000, 22630, 32158, 27630),
    Scale(10, 100): (3000, 2043, 2485, 1000, 8528, 1000, 22630, 32158, 27630),
    Scale(10, 1000): (29898, 19907, 25024, 10000, 84829, 10000, 224443, 319272, 274443),
}
FRAMES = {
    Scale(1, 50): (29, 71),
    Scale(1, 1000): (553, 595),
    Scale(10, 100): (558, 978),
    Scale(10, 1000): (5495, 5915),
}


def digest_payload(payload: Any) -> str:
    return hashlib.sha256(model.encode_canonical(payload)).hexdigest()


def test_the_spreading_function_is_md5() -> None:
    assert model.spread_text("1:assessments") == 0x9F186E0FA2C74D5C6F1D482768244699


@pytest.mark.parametrize(
    ("patient", "expected"),
    [(1, [2, 3, 2, 1]), (50, [2, 2, 3, 1]), (1000, [2, 1, 3, 1]), (10000, [2, 3, 3, 1])],
)
def test_pages_of_known_patients(patient: int, expected: list[int]) -> None:
    assert [model.count_pages(patient, kind) for kind in PAGED] == expected


def test_values_of_known_records() -> None:
    assert [model.count_mds_ids(1, 1), model.count_mds_ids(1, 2)] == [5, 10]
    assert [model.count_mds_ids(10000, 1), model.count_mds_ids(10000, 2)] == [6, 7]
    assert model.build_record(1, "assessments", 1)["value"] == 76
    assert model.build_record(1, "assessments", 1)["id"] == "ASSE-1-p1-i0"
    assert model.build_record(1, "vital_signs", 1)["value"] == 49
    assert model.build_record(10000, "conditions", 1)["value"] == 56


def test_demographics_of_known_patients() -> None:
    first, last = model.build_demographics(1), model.build_demographics(10000)
    assert list(first.values()) == ["1", "First571", "Last353", "1971-12-17", "F", "active"]
    assert list(last.values()) == ["10000", "First440", "Last419", "1990-09-20", "M", "active"]


def test_an_mds_detail_and_its_fingerprint() -> None:
    body = model.build_detail("MDS-1-p1-0-01")
    answers = [
        [q["responses"][0]["responseValue"] for q in section["questions"]]
        for section in body["sections"]
    ]
    assert answers == [["3", "4", "0"]] * 3
    expected = "9e5510018594ecd5874e7eb4c6c9f91c0d8497015048c38878b7227191f03eee"
    assert digest_payload(body) == expected


def test_the_fingerprint_of_the_first_page() -> None:
    expected = "f33eff255d08744a6b8d588b8973f2b32c6589a4bd1a0bf3c24f97477182dc28"
    assert digest_payload(model.build_page_body(1, "assessments", 1)) == expected


@pytest.mark.parametrize("scale", TOTALS)
def test_totals_of_every_pinned_scale(scale: Scale) -> None:
    totals = model.count_totals(scale)
    numbers = (*totals.pages.values(), totals.page_count, totals.people, totals.mds)
    assert (*numbers, totals.unit_count, totals.row_count) == TOTALS[scale]
    assert model.count_frame_bounds(scale, frame_rows=50, slots=8) == FRAMES[scale]


def test_totals_per_facility_at_full_scale() -> None:
    parts = [model.count_facility_totals(Scale(10, 1000), f) for f in range(1, 11)]
    assert [p.pages["assessments"] for p in parts] == [
        *(3000, 2993, 2995, 2987, 3018, 2988, 2983, 3000, 2946, 2988)
    ]
    assert [p.page_count for p in parts] == [
        *(8528, 8470, 8440, 8489, 8521, 8441, 8461, 8492, 8427, 8560)
    ]
    assert [p.mds for p in parts] == [
        *(22630, 22360, 22475, 22453, 22578, 22362, 22482, 22459, 22123, 22521)
    ]


def expected_digest(scale: Scale, *, pages_only: bool = False) -> str:
    units = model.iterate_units(scale, with_details=not pages_only, with_people=not pages_only)
    return model.digest_set(
        (unit.facility, unit.unit_name, digest_payload(unit.build_payload())) for unit in units
    )


@pytest.mark.parametrize("scale", [Scale(1, 50), Scale(10, 100)])
def test_the_set_digests_are_the_pinned_ones(scale: Scale) -> None:
    assert expected_digest(scale) == model.PINNED_DIGESTS[scale]
    assert expected_digest(scale, pages_only=True) == model.PINNED_PAGE_DIGESTS[scale]


def test_units_are_as_many_as_the_totals_say() -> None:
    scale = Scale(2, 25)
    names = [unit.unit_name for unit in model.iterate_units(scale)]
    assert len(names) == len(set(names)) == model.count_totals(scale).unit_count
