"""A good run passes; the same run, altered in one way, fails the check that is named for it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.pft_evidence import NONCE, Evidence, copied, failed, good_run
from tests.support.servers import PostgresServer

from noetl_pft.workload.queries import parse_statements

ALTERATIONS = parse_statements(Path(__file__).with_name("pft_alterations.sql").read_text())


@pytest.fixture(scope="module")
def good(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    with good_run(postgres, tmp_path_factory.mktemp("ledgers"), "a") as evidence:
        yield evidence


@pytest.fixture
def evidence(good: Evidence, tmp_path: Path) -> Iterator[Evidence]:
    with copied(good, tmp_path / "ledgers") as evidence:
        yield evidence


def test_the_unaltered_copy_passes_every_check(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = evidence.verify(monkeypatch)
    assert failed(report) == set()
    assert code == 0
    names = [f"D{i}" for i in range(1, 12)] + [f"L{i}" for i in range(1, 9)]
    names += [f"E{i}" for i in range(1, 7)] + ["X1", "X2"]
    assert [check["check"] for check in report["checks"]] == names
    assert report["requests"] == report["expected_units"] == 1658


def test_the_general_form_passes_too(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    code, report = evidence.verify(monkeypatch, "--disturbed")
    assert (code, failed(report)) == (0, set())


IN_TABLES: dict[str, tuple[set[str], set[str]]] = {
    "a_middle_page_is_gone": ({"D1", "D11"}, {"D2", "L1"}),
    "a_last_page_is_gone": ({"D1"}, {"L1"}),
    "a_patient_is_gone": ({"D1", "D4"}, {"L1"}),
    "an_assessments_page_is_gone_with_its_ids_and_details": ({"D1", "D5", "D6"}, {"L1"}),
    "two_payloads_are_swapped": ({"D11", "D2"}, {"D1"}),
    "a_last_page_is_not_marked": ({"D3"}, {"D1", "D2"}),
    "a_patient_moved_to_another_facility": ({"D1", "D11"}, {"L1"}),
    "a_demographics_row_is_gone": ({"D4"}, {"D1"}),
    "one_answer_of_a_detail_is_another": ({"D6"}, {"D5"}),
    "a_queue_row_is_still_claimed": ({"D7"}, {"D1"}),
    "a_row_bears_another_execution": ({"D8"}, {"D1"}),
    "the_run_bears_another_nonce": ({"D8"}, {"D1"}),
    "a_unit_was_saved_twice": ({"D9"}, {"D1"}),
    "the_validation_log_counts_wrong": ({"D10"}, {"D1"}),
    "a_gate_was_passed_twice": ({"D10"}, {"D1"}),
    "an_event_is_gone": ({"E1"}, {"D1", "L1"}),
    "the_run_ended_twice": ({"E1"}, {"E3"}),
    "a_step_was_entered_twice": ({"E2"}, {"E1"}),
    "a_stage_closed_twice": ({"E3"}, {"E2"}),
    "a_frame_committed_after_its_stage_closed": ({"E1", "E3"}, {"E2"}),
    "a_frame_was_dispatched_again": ({"E4"}, {"E3"}),
    "a_commit_counts_one_row_less": ({"E5", "X1"}, {"E4"}),
    "results_are_fat": ({"E6"}, {"E5"}),
    "a_row_is_stamped_with_another_frame": ({"X1", "X2"}, {"E5"}),
    "every_table_is_empty": ({f"D{i}" for i in range(1, 8)}, {"L1"}),
}


@pytest.mark.parametrize("case", IN_TABLES)
def test_a_spoilt_table_or_event_fails_its_check(
    case: str, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    must_fail, must_pass = IN_TABLES[case]
    evidence.sql(ALTERATIONS[case])
    code, report = evidence.verify(monkeypatch)
    assert code == 1
    assert must_fail <= failed(report)
    assert not must_pass & failed(report)


def drop_a_record(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["number"] != 800]


def drop_the_last_record(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["number"] != 1658]


def double_a_record(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return lines + [line | {"number": 1659} for line in lines if line["number"] == 800]


def ask_for_a_foreign_unit(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    foreign = [line | {"number": 1659} for line in lines if line["number"] == 800]
    foreign[0]["units"] = ["conditions/51/1"]
    return lines + foreign


def answer_a_404(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        line | ({"outcome": "refused_input"} if line["number"] == 800 and "outcome" in line else {})
        for line in lines
    ]


def with_header(name: str, value: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for line in lines:
            if line["number"] == 800 and "headers" in line:
                line["headers"][name] = value
        return lines

    return change


def share_a_key(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    asked = [line for line in lines if line["at"] == "asked"]
    asked[1]["headers"]["Idempotency-Key"] = asked[0]["headers"]["Idempotency-Key"]
    return lines


@pytest.mark.parametrize(
    ("change", "must_fail"),
    [
        (drop_a_record, {"L8", "L1"}),
        (drop_the_last_record, {"L8"}),
        (double_a_record, {"L3", "L4", "L7", "L8"}),
        (ask_for_a_foreign_unit, {"L2"}),
        (answer_a_404, {"L1", "L2"}),
        (with_header("X-PFT-Run", "other"), {"L5"}),
        (with_header("X-PFT-Execution", "77"), {"L5"}),
        (with_header("X-PFT-Attempt", ""), {"L5"}),
        (with_header("X-PFT-Frame", "1"), {"L5", "X2"}),
        (with_header("Idempotency-Key", ""), {"L6"}),
        (share_a_key, {"L6"}),
    ],
)
def test_a_spoilt_ledger_fails_its_check(
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    must_fail: set[str],
    good: Evidence,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(good.ledgers, tmp_path / "ledgers")
    copy = Evidence(good.server, good.database, tmp_path / "ledgers", good.variant)
    copy.write(change(copy.lines()))
    code, report = copy.verify(monkeypatch)
    assert code == 1
    assert must_fail <= failed(report)
    assert "D1" not in failed(report)


def cut_the_file(evidence: Evidence) -> None:
    evidence.ledger().write_bytes(evidence.ledger().read_bytes()[:-20])


def rename_the_ledger(evidence: Evidence) -> None:
    (evidence.ledgers / NONCE).rename(evidence.ledgers / "another")


def forget_the_events(evidence: Evidence) -> None:
    evidence.sql("DELETE FROM noetl.event")


def lose_a_table(evidence: Evidence) -> None:
    evidence.sql("DROP TABLE pft_test_patient_assessments")


@pytest.mark.parametrize(
    "spoil", [cut_the_file, rename_the_ledger, forget_the_events, lose_a_table]
)
def test_without_a_whole_witness_there_is_no_verdict(
    spoil: Callable[[Evidence], None],
    evidence: Evidence,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(evidence)
    code, report = evidence.verify(monkeypatch)
    assert (code, report) == (2, {})
    assert "no verdict" in capsys.readouterr().err
