"""Good runs of playbooks B and C pass; altered in one way, they fail the check named for it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.pft_evidence import Evidence, copied, failed, good_run
from tests.support.servers import PostgresServer

from noetl_pft.workload.queries import parse_statements

ALTERATIONS = parse_statements(Path(__file__).with_name("pft_alterations.sql").read_text())
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def batches(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Evidence]:
    with good_run(postgres, tmp_path_factory.mktemp("ledgers"), "b") as evidence:
        yield evidence


@pytest.fixture(scope="module")
def chained(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Evidence]:
    folder = tmp_path_factory.mktemp("ledgers")
    with good_run(postgres, folder, "c", fan_out=True) as evidence:
        yield evidence


@pytest.fixture
def spoilt_batches(batches: Evidence, tmp_path: Path) -> Iterator[Evidence]:
    with copied(batches, tmp_path / "ledgers") as evidence:
        yield evidence


@pytest.fixture
def spoilt_chain(chained: Evidence, tmp_path: Path) -> Iterator[Evidence]:
    with copied(chained, tmp_path / "ledgers") as evidence:
        yield evidence


ALL = {*(f"D{i}" for i in range(1, 12)), *(f"L{i}" for i in range(1, 9))}
ALL |= {*(f"E{i}" for i in range(1, 7)), "X1", "X2"}


def test_a_good_run_of_b_passes_every_check(
    batches: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = batches.verify(monkeypatch)
    assert (code, failed(report)) == (0, set())
    assert {check["check"] for check in report["checks"]} == ALL
    assert report["expected_units"] == 1658
    assert report["requests"] == report["frames"]


def test_a_good_run_of_c_passes_every_check(
    chained: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = chained.verify(monkeypatch, "--fan-out")
    assert (code, failed(report)) == (0, set())
    assert {check["check"] for check in report["checks"]} == ALL - {"D10"} | {"X3"}
    assert report["requests"] == report["expected_units"] == 1658


def test_c_without_fan_out_is_its_pages(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with good_run(postgres, tmp_path / "ledgers", "c") as evidence:
        code, report = evidence.verify(monkeypatch)
        assert (code, failed(report)) == (0, set())
        assert report["requests"] == report["expected_units"] == 423
        code, report = evidence.verify(monkeypatch, "--fan-out")
        assert code == 1
        assert {"D4", "D5", "D6", "D7", "D11", "L1"} <= failed(report)


@pytest.mark.parametrize(
    ("case", "must_fail", "must_pass"),
    [
        ("a_middle_page_is_gone", {"D1", "D11"}, {"L1"}),
        ("two_payloads_are_swapped", {"D2", "D11"}, {"D1"}),
        ("a_queue_row_is_still_claimed", {"D7"}, {"D1"}),
        ("a_row_is_stamped_with_another_frame", {"X1", "X2"}, {"E5"}),
    ],
)
def test_spoilt_tables_of_b_fail(
    case: str,
    must_fail: set[str],
    must_pass: set[str],
    spoilt_batches: Evidence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoilt_batches.sql(ALTERATIONS[case])
    code, report = spoilt_batches.verify(monkeypatch)
    assert code == 1
    assert must_fail <= failed(report)
    assert not must_pass & failed(report)


def ask_again_in_another_batch(lines: Lines) -> Lines:
    first, other = [line for line in lines if line["at"] == "asked"][:2]
    other["units"] = [*other["units"], first["units"][0]]
    return lines


def ask_for_one_unit_alone(lines: Lines) -> Lines:
    asked = next(line for line in lines if line["at"] == "asked")
    asked["path"] = "/api/v1/patient/assessments?patientId=1"
    return lines


def share_a_key(lines: Lines) -> Lines:
    first, other = [line for line in lines if line["at"] == "asked"][:2]
    other["headers"]["Idempotency-Key"] = first["headers"]["Idempotency-Key"]
    return lines


def repeat_under_another_key(lines: Lines) -> Lines:
    number = max(line["number"] for line in lines)
    again = [line | {"number": number + 1} for line in lines if line["number"] == 1]
    again[0]["headers"] = again[0]["headers"] | {"Idempotency-Key": "new"}
    return lines + again


@pytest.mark.parametrize(
    ("change", "must_fail"),
    [
        (ask_again_in_another_batch, {"L3", "L6", "L7", "X2"}),
        (ask_for_one_unit_alone, {"L7"}),
        (share_a_key, {"L6"}),
        (repeat_under_another_key, {"L3", "L4", "L6", "L8"}),
    ],
)
def test_a_spoilt_ledger_of_b_fails(
    change: Callable[[Lines], Lines],
    must_fail: set[str],
    batches: Evidence,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(batches.ledgers, tmp_path / "ledgers")
    copy = Evidence(batches.server, batches.database, tmp_path / "ledgers", "b")
    copy.write(change(copy.lines()))
    code, report = copy.verify(monkeypatch)
    assert code == 1
    assert must_fail <= failed(report)
    assert "D1" not in failed(report)


@pytest.mark.parametrize(
    ("case", "must_fail", "must_pass"),
    [
        ("a_last_page_is_gone", {"D1"}, {"L1"}),
        ("one_answer_of_a_detail_is_another", {"D6"}, {"D5"}),
        ("a_page_row_is_still_claimed", {"D7"}, {"D1"}),
        ("a_page_row_is_gone", {"D7", "X1", "X2", "X3"}, {"D1"}),
        ("a_page_was_enqueued_before_its_time", {"X3"}, ALL),
        ("an_id_was_enqueued_after_its_time", {"X3"}, ALL),
        ("an_id_row_is_gone", {"D5", "D7", "X3"}, {"D6"}),
        ("a_page_row_has_another_frame", {"X1", "X2"}, {"D7"}),
        ("a_stage_closed_twice", {"E3"}, {"E2"}),
        ("every_table_is_empty", {*(f"D{i}" for i in range(1, 8)), "X3"}, {"L1"}),
    ],
)
def test_spoilt_evidence_of_c_fails(
    case: str,
    must_fail: set[str],
    must_pass: set[str],
    spoilt_chain: Evidence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoilt_chain.sql(ALTERATIONS[case])
    code, report = spoilt_chain.verify(monkeypatch, "--fan-out")
    assert code == 1
    assert must_fail <= failed(report)
    assert not must_pass & failed(report)
