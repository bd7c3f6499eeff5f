"""The hand-written bodies are the model's, and wrong requests are refused with a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_pft.fixture import routes
from noetl_pft.fixture.routes import RefusedError, resolve_route
from noetl_pft.workload import model

PEOPLE = st.integers(min_value=1, max_value=10_000_000)


def body(target: str, *, mini: bool = False) -> Any:
    return json.loads(resolve_route(target, mini=mini).body())


@given(PEOPLE, st.sampled_from(list(model.PAGED)), st.integers(min_value=1, max_value=4))
def test_a_page_is_the_models(patient: int, kind: str, page: int) -> None:
    assert json.loads(routes.build_page(patient, kind, page)) == model.build_page_body(
        patient, kind, page
    )


@given(PEOPLE, st.integers(min_value=1, max_value=4), st.integers(min_value=1, max_value=10))
def test_a_detail_is_the_models(patient: int, page: int, k: int) -> None:
    assessment = f"MDS-{patient}-p{page}-0-{k:02d}"
    assert json.loads(routes.build_detail(assessment)) == model.build_detail(assessment)


def test_the_routes_answer_what_the_model_says() -> None:
    assert body("/api/v1/patient/conditions?patientId=7") == model.build_page_body(
        7, "conditions", 1
    )
    second = body("/api/v1/patient/assessments?patientId=7&page=2&pageSize=1")
    assert second == model.build_page_body(7, "assessments", 2)
    assert body("/api/v1/patient/demographics?patientId=7") == model.build_demographics(7)
    assert body("/api/v1/mds/assessment/MDS-1-p1-0-01") == model.build_detail("MDS-1-p1-0-01")


def test_a_batch_holds_all_pages_of_every_patient_in_request_order() -> None:
    path = "/api/v1/pft/batch/assessments?patientIds=101,7&patientIds=8&patientsPerFacility=100"
    route, answer = resolve_route(path, mini=False), body(path)
    wanted = [
        (p, g) for p in (101, 7, 8) for g in range(1, model.count_pages(p, "assessments") + 1)
    ]
    assert [(row["patient_id"], row["page_number"]) for row in answer["rows"]] == wanted
    assert route.units == tuple(f"assessments/{p}/{g}" for p, g in wanted)
    assert [row["facility_mapping_id"] for row in answer["rows"]][-1] == 1
    assert answer["rows"][0]["facility_mapping_id"] == 2
    assert answer["rowCount"] == len(wanted)
    assert answer["patientCount"] == 3
    for row in answer["rows"]:
        page = model.build_page_body(row["patient_id"], "assessments", row["page_number"])
        assert row["payload"] == page
        assert row["is_last_page"] is (not page["paging"]["hasMore"])


def test_batches_of_people_and_details() -> None:
    people = body("/api/v1/pft/batch/demographics?patientIds=1,2")
    assert people["rows"][1]["payload"] == model.build_demographics(2)
    details = body("/api/v1/pft/mds/details?assessmentIds=MDS-1-p1-0-01,MDS-1-p1-0-02")
    assert details["rows"][1]["payload"] == model.build_detail("MDS-1-p1-0-02")
    assert body("/api/v1/pft/mds/details?assessmentId=MDS-1-p1-0-01")["rowCount"] == 1


def test_the_older_id_list_is_kept_and_names_no_unit() -> None:
    answer = body("/api/v1/mds/assessment_ids?patientId=3")
    assert answer["count"] == len(answer["assessmentIds"]) == 2 + model.spread_text("3:mds") % 4
    assert sum(len(model.list_legacy_mds_ids(p)) for p in range(1, 10_001)) == 34_981


def test_the_mini_body_is_about_a_kilobyte() -> None:
    target = "/api/v1/patient/demographics?patientId=5"
    assert body(target, mini=True)["data"][0]["patientId"] == 5
    assert 900 < len(resolve_route(target, mini=True).body()) < 1100


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/api/v1/patient/conditions", 400),
        ("/api/v1/patient/conditions?patientId=0", 400),
        ("/api/v1/patient/conditions?patientId=-1", 400),
        ("/api/v1/patient/conditions?patientId=x", 400),
        ("/api/v1/patient/conditions?patientId=1,2", 400),
        ("/api/v1/patient/conditions?patientId=1&patientId=2", 400),
        ("/api/v1/patient/conditions?patientId=1&page=0", 400),
        ("/api/v1/patient/vital_signs?patientId=1&page=2", 404),
        ("/api/v1/patient/allergies?patientId=1", 404),
        ("/api/v1/pft/batch/conditions", 400),
        ("/api/v1/pft/batch/conditions?patientIds=" + ",".join(["1"] * 501), 400),
        ("/api/v1/pft/mds/details?assessmentId=a,b", 400),
        ("/api/v1/mds/assessment/a,b", 400),
        ("/", 404),
    ],
)
def test_a_wrong_request_is_refused(target: str, status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        resolve_route(target, mini=False)
    assert refused.value.status == status
