"""Checks D1 to D11: the target tables against the model."""

from collections import Counter

from noetl_pft.verify.checks import Check, RunTerms
from noetl_pft.verify.expected_run import ExpectedRun, ExpectedUnit
from noetl_pft.verify.target_tables import SAVED_KINDS, QueueRow, TargetTables
from noetl_pft.workload import model


def check_saved_pages(target: TargetTables, expected: ExpectedRun) -> Check:
    """D1: the saved pages are exactly the expected ones, per facility and type."""
    check = Check("D1", "saved pages equal the expected set")
    for kind in model.PAGED:
        _compare_sets(check, target, expected, kind)
        counter = Counter(facility for facility, _ in target.saved[kind])
        check.notes[kind] = {
            "saved": counter.total(),
            "expected": expected.totals.pages[kind],
            "saved_by_facility": dict(sorted(counter.items())),
        }
    return check


def check_page_payloads(target: TargetTables, expected: ExpectedRun) -> Check:
    """D2: every saved page is the model's."""
    check = Check("D2", "page payloads equal the model's")
    for kind in model.PAGED:
        _compare_payloads(check, target, expected, kind)
    return check


def check_last_pages(target: TargetTables, expected: ExpectedRun) -> Check:
    """D3: the last page, and no other, is marked as the last."""
    check = Check("D3", "is_last_page is true exactly on last pages")
    for kind in model.PAGED:
        for key, expected_unit in expected.units[kind].items():
            saved = target.saved[kind].get(key)
            if saved is not None:
                check.expect_equal(f"{key[1]} is_last_page", saved.is_last, expected_unit.is_last)
    return check


def check_demographics(target: TargetTables, expected: ExpectedRun) -> Check:
    """D4: demographics of exactly the expected patients."""
    check = Check("D4", "demographics: set and payloads")
    _compare_sets(check, target, expected, "demographics")
    _compare_payloads(check, target, expected, "demographics")
    return check


def check_mds_work(target: TargetTables, expected: ExpectedRun) -> Check:
    """D5: the MDS ids are the model's, not what was saved."""
    check = Check("D5", "MDS work rows equal the model's ids, all done")
    rows = target.mds_work or [row for row in target.page_work if row.kind == "mds"]
    row_by_unit = {(row.facility, f"mds/{row.item}"): row for row in rows}
    if len(row_by_unit) != len(rows):
        check.record_difference(f"{len(rows) - len(row_by_unit)} ids are listed twice")
    for key, unit in expected.units["mds"].items():
        row = row_by_unit.pop(key, None)
        if row is None:
            check.record_difference(f"missing: {key[1]} of facility {key[0]}")
            continue
        check.expect_equal(
            f"{key[1]} patient and status", (row.patient, row.status), (unit.patient, "done")
        )
    for facility, name in row_by_unit:
        check.record_difference(f"surplus: {name} of facility {facility}")
    return check


def check_details(target: TargetTables, expected: ExpectedRun) -> Check:
    """D6: details of exactly the expected MDS ids."""
    check = Check("D6", "MDS details: set and payloads")
    _compare_sets(check, target, expected, "mds")
    _compare_payloads(check, target, expected, "mds")
    return check


def check_queue_rows(target: TargetTables, expected: ExpectedRun, terms: RunTerms) -> Check:
    """D7: every queue row is there, done, and bears its frame."""
    check = Check("D7", "queue rows complete, done, with a frame id")
    rows = target.page_work if terms.variant == "c" else target.queue
    if terms.variant == "c":
        row_keys = {_build_row_key(f, name, u.patient) for f, name, u in _list_all_units(expected)}
    else:
        people = range(1, expected.scale.patient_count + 1)
        row_keys = {
            (expected.scale.get_facility(p), kind, p, "") for p in people for kind in model.KINDS
        }
    keys = Counter((row.facility, row.kind, row.patient, row.item) for row in rows)
    for key in sorted(row_keys - set(keys)):
        check.record_difference(f"missing: {_describe_row(key)}")
    for key, times in keys.items():
        if key not in row_keys or times > 1:
            check.record_difference(f"surplus: {_describe_row(key)}")
    for row in rows:
        check.require_condition(
            holds=_is_row_done(row), otherwise=f"{_describe_work(row)} is {row.status}"
        )
    check.notes["rows"] = len(rows)
    return check


def check_provenance(target: TargetTables, terms: RunTerms) -> Check:
    """D8: everything in the tables belongs to this run."""
    check = Check("D8", "every row bears this execution; the run row is this run's")
    expected_row = {
        "execution_id": terms.execution,
        "run_nonce": terms.nonce,
        "variant": terms.variant,
        "facilities": terms.facilities,
        "patients": terms.patients,
    }
    check.expect_equal("pft_test_run", target.runs, [expected_row])
    for units in target.saved.values():
        for (_, name), unit in units.items():
            check.require_condition(
                holds=unit.execution == terms.execution,
                otherwise=f"{name} was saved by execution {unit.execution}",
            )
    for row in (*target.queue, *target.mds_work, *target.page_work):
        check.require_condition(
            holds=row.execution == terms.execution,
            otherwise=f"{_describe_work(row)} belongs to execution {row.execution}",
        )
    for name in ("validation", "done_facts", "gates"):
        for fact in getattr(target, name):
            check.expect_equal(f"{name} execution", fact["execution_id"], terms.execution)
    return check


def check_save_counts(target: TargetTables, terms: RunTerms, repeats: dict[str, int]) -> Check:
    """D9: no unit was saved more often than repeated frames and saves explain."""
    check = Check("D9", "save counts are explained")
    surplus = 0
    is_strict = terms.is_fault_free or terms.is_exactly_once
    for units in target.saved.values():
        for (_, name), unit in units.items():
            surplus += unit.save_count - 1
            allowed = 0 if is_strict else repeats.get(name, 0) + unit.save_attempt - 1
            check.require_condition(
                holds=0 <= unit.save_count - 1 <= allowed,
                otherwise=f"{name}: save_count {unit.save_count}, {allowed} repeats are explained",
            )
    check.notes["surplus_saves"] = surplus
    return check


def check_playbook_records(target: TargetTables, expected: ExpectedRun, terms: RunTerms) -> Check:
    """D10: the playbook's own validation rows, facts and gates."""
    check = Check("D10", "validation rows, done facts and stage gates")
    rows = {int(row["facility"]): row for row in target.validation}
    check.expect_equal("validation rows", sorted(rows), sorted(expected.by_facility))
    for facility, totals in expected.by_facility.items():
        expected_counts = {
            **{f"{kind}_done": count for kind, count in totals.pages.items()},
            "demographics_done": totals.people,
            "assessments_queue_done": totals.people,
            "mds_expected": totals.mds,
            "mds_details_done": totals.mds,
            "total_expected": totals.unit_count,
        }
        row = rows.get(facility, {})
        check.expect_equal(
            f"facility {facility}",
            {name: row.get(name) for name in expected_counts},
            expected_counts,
        )
    active = [row["facility"] for row in target.facilities if row["active"]]
    check.expect_equal("active facilities", active, [])
    facilities = sorted(expected.by_facility)
    facts = sorted((f["facility"], f["data_type"]) for f in target.done_facts)
    check.expect_equal("done facts", facts, sorted((f, k) for f in facilities for k in model.KINDS))
    gates = sorted((g["facility"], g["stage"]) for g in target.gates)
    check.expect_equal(
        "stage gates", gates, sorted((f, k) for f in facilities for k in SAVED_KINDS)
    )
    for gate in target.gates if terms.is_fault_free else ():
        place = f"gate {gate['stage']} of facility {gate['facility']}, advanced_count"
        check.expect_equal(place, gate["advanced_count"], 1)
    return check


def check_set_digest(target: TargetTables, expected: ExpectedRun) -> Check:
    """D11: the digest over facility, unit and payload."""
    check = Check("D11", "set digest of the tables")
    digest = target.compute_digest(expected.kinds)
    check.expect_equal("digest", digest, expected.digest)
    if expected.pinned is not None:
        check.expect_equal("pinned digest", digest, expected.pinned)
    check.notes |= {"tables": digest, "model": expected.digest, "pinned": expected.pinned}
    return check


def _compare_sets(check: Check, target: TargetTables, expected: ExpectedRun, kind: str) -> None:
    saved, expected_units = target.saved[kind], expected.units[kind]
    check.inspected += len(saved)
    for facility, name in expected_units.keys() - saved.keys():
        check.record_difference(f"missing: {name} of facility {facility}")
    for facility, name in saved.keys() - expected_units.keys():
        check.record_difference(f"surplus: {name} of facility {facility}")


def _compare_payloads(check: Check, target: TargetTables, expected: ExpectedRun, kind: str) -> None:
    expected_units = expected.units[kind]
    for key, unit in target.saved[kind].items():
        if key in expected_units:
            same = unit.mark == expected_units[key].mark
            check.require_condition(
                holds=same, otherwise=f"{key[1]}: the payload is not the model's"
            )


def _list_all_units(expected: ExpectedRun) -> list[tuple[int, str, ExpectedUnit]]:
    return [
        (facility, name, unit)
        for of_kind in expected.units.values()
        for (facility, name), unit in of_kind.items()
    ]


def _build_row_key(facility: int, name: str, patient: int) -> tuple[int, str, int, str]:
    kind, _, unit_place = name.partition("/")
    if kind == "mds":
        return facility, kind, patient, unit_place
    return facility, kind, patient, "" if kind == "demographics" else unit_place.partition("/")[2]


def _is_row_done(row: QueueRow) -> bool:
    return row.status == "done" and bool(row.frame)


def _describe_work(row: QueueRow) -> str:
    return _describe_row((row.facility, row.kind, row.patient, row.item))


def _describe_row(key: tuple[int, str, int, str]) -> str:
    facility, kind, patient, item = key
    return f"row {kind}/{patient}{f'/{item}' if item else ''} of facility {facility}"
