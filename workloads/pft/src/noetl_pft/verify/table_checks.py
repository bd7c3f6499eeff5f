"""Checks D1 to D11: the target tables against the model."""

from collections import Counter

from noetl_pft import model
from noetl_pft.verify.expected import Expected, Wanted
from noetl_pft.verify.outcome import Check, Terms
from noetl_pft.verify.target import SAVED_KINDS, Target, Work


def check_pages(target: Target, expected: Expected) -> Check:
    """D1: the saved pages are exactly the expected ones, per facility and type."""
    check = Check("D1", "saved pages equal the expected set")
    for kind in model.PAGED:
        _compare_sets(check, target, expected, kind)
        found = Counter(facility for facility, _ in target.saved[kind])
        check.notes[kind] = {
            "saved": found.total(),
            "expected": expected.totals.pages[kind],
            "saved_by_facility": dict(sorted(found.items())),
        }
    return check


def check_payloads(target: Target, expected: Expected) -> Check:
    """D2: every saved page is the model's."""
    check = Check("D2", "page payloads equal the model's")
    for kind in model.PAGED:
        _compare_payloads(check, target, expected, kind)
    return check


def check_last_pages(target: Target, expected: Expected) -> Check:
    """D3: the last page, and no other, is marked as the last."""
    check = Check("D3", "is_last_page is true exactly on last pages")
    for kind in model.PAGED:
        for key, wanted in expected.units[kind].items():
            saved = target.saved[kind].get(key)
            if saved is not None:
                check.expect(f"{key[1]} is_last_page", saved.is_last, wanted.is_last)
    return check


def check_people(target: Target, expected: Expected) -> Check:
    """D4: demographics of exactly the expected patients."""
    check = Check("D4", "demographics: set and payloads")
    _compare_sets(check, target, expected, "demographics")
    _compare_payloads(check, target, expected, "demographics")
    return check


def check_mds_work(target: Target, expected: Expected) -> Check:
    """D5: the MDS ids are the model's, not what was saved."""
    check = Check("D5", "MDS work rows equal the model's ids, all done")
    rows = target.mds_work or [row for row in target.page_work if row.kind == "mds"]
    found = {(row.facility, f"mds/{row.item}"): row for row in rows}
    if len(found) != len(rows):
        check.differ(f"{len(rows) - len(found)} ids are listed twice")
    for key, unit in expected.units["mds"].items():
        row = found.pop(key, None)
        if row is None:
            check.differ(f"missing: {key[1]} of facility {key[0]}")
            continue
        check.expect(
            f"{key[1]} patient and status", (row.patient, row.status), (unit.patient, "done")
        )
    for facility, name in found:
        check.differ(f"surplus: {name} of facility {facility}")
    return check


def check_details(target: Target, expected: Expected) -> Check:
    """D6: details of exactly the expected MDS ids."""
    check = Check("D6", "MDS details: set and payloads")
    _compare_sets(check, target, expected, "mds")
    _compare_payloads(check, target, expected, "mds")
    return check


def check_queue(target: Target, expected: Expected, terms: Terms) -> Check:
    """D7: every queue row is there, done, and bears its frame."""
    check = Check("D7", "queue rows complete, done, with a frame id")
    rows = target.page_work if terms.variant == "c" else target.queue
    if terms.variant == "c":
        wanted = {_row_key(f, name, u.patient) for f, name, u in _all_units(expected)}
    else:
        people = range(1, expected.scale.people + 1)
        wanted = {(expected.scale.facility(p), kind, p, "") for p in people for kind in model.KINDS}
    keys = Counter((row.facility, row.kind, row.patient, row.item) for row in rows)
    for key in sorted(wanted - set(keys)):
        check.differ(f"missing: {_row_name(key)}")
    for key, times in keys.items():
        if key not in wanted or times > 1:
            check.differ(f"surplus: {_row_name(key)}")
    for row in rows:
        check.require(holds=_is_done(row), otherwise=f"{_work_name(row)} is {row.status}")
    check.notes["rows"] = len(rows)
    return check


def check_provenance(target: Target, terms: Terms) -> Check:
    """D8: everything in the tables belongs to this run."""
    check = Check("D8", "every row bears this execution; the run row is this run's")
    wanted = {
        "execution_id": terms.execution,
        "run_nonce": terms.nonce,
        "variant": terms.variant,
        "facilities": terms.facilities,
        "patients": terms.patients,
    }
    check.expect("pft_test_run", target.runs, [wanted])
    for units in target.saved.values():
        for (_, name), unit in units.items():
            check.require(
                holds=unit.execution == terms.execution,
                otherwise=f"{name} was saved by execution {unit.execution}",
            )
    for row in (*target.queue, *target.mds_work, *target.page_work):
        check.require(
            holds=row.execution == terms.execution,
            otherwise=f"{_work_name(row)} belongs to execution {row.execution}",
        )
    for name in ("validation", "done_facts", "gates"):
        for fact in getattr(target, name):
            check.expect(f"{name} execution", fact["execution_id"], terms.execution)
    return check


def check_save_counts(target: Target, terms: Terms, repeats: dict[str, int]) -> Check:
    """D9: no unit was saved more often than repeated frames and saves explain."""
    check = Check("D9", "save counts are explained")
    surplus = 0
    is_strict = terms.is_fault_free or terms.is_exactly_once
    for units in target.saved.values():
        for (_, name), unit in units.items():
            surplus += unit.save_count - 1
            allowed = 0 if is_strict else repeats.get(name, 0) + unit.save_attempt - 1
            check.require(
                holds=0 <= unit.save_count - 1 <= allowed,
                otherwise=f"{name}: save_count {unit.save_count}, {allowed} repeats are explained",
            )
    check.notes["surplus_saves"] = surplus
    return check


def check_log(target: Target, expected: Expected, terms: Terms) -> Check:
    """D10: the playbook's own validation rows, facts and gates."""
    check = Check("D10", "validation rows, done facts and stage gates")
    rows = {int(row["facility"]): row for row in target.validation}
    check.expect("validation rows", sorted(rows), sorted(expected.by_facility))
    for facility, totals in expected.by_facility.items():
        wanted = {
            **{f"{kind}_done": count for kind, count in totals.pages.items()},
            "demographics_done": totals.people,
            "assessments_queue_done": totals.people,
            "mds_expected": totals.mds,
            "mds_details_done": totals.mds,
            "total_expected": totals.units,
        }
        row = rows.get(facility, {})
        check.expect(f"facility {facility}", {name: row.get(name) for name in wanted}, wanted)
    active = [row["facility"] for row in target.facilities if row["active"]]
    check.expect("active facilities", active, [])
    facilities = sorted(expected.by_facility)
    facts = sorted((f["facility"], f["data_type"]) for f in target.done_facts)
    check.expect("done facts", facts, sorted((f, k) for f in facilities for k in model.KINDS))
    gates = sorted((g["facility"], g["stage"]) for g in target.gates)
    check.expect("stage gates", gates, sorted((f, k) for f in facilities for k in SAVED_KINDS))
    for gate in target.gates if terms.is_fault_free else ():
        place = f"gate {gate['stage']} of facility {gate['facility']}, advanced_count"
        check.expect(place, gate["advanced_count"], 1)
    return check


def check_digest(target: Target, expected: Expected) -> Check:
    """D11: the digest over facility, unit and payload."""
    check = Check("D11", "set digest of the tables")
    found = target.digest(expected.kinds)
    check.expect("digest", found, expected.digest)
    if expected.pinned is not None:
        check.expect("pinned digest", found, expected.pinned)
    check.notes |= {"tables": found, "model": expected.digest, "pinned": expected.pinned}
    return check


def _compare_sets(check: Check, target: Target, expected: Expected, kind: str) -> None:
    saved, wanted = target.saved[kind], expected.units[kind]
    check.inspected += len(saved)
    for facility, name in wanted.keys() - saved.keys():
        check.differ(f"missing: {name} of facility {facility}")
    for facility, name in saved.keys() - wanted.keys():
        check.differ(f"surplus: {name} of facility {facility}")


def _compare_payloads(check: Check, target: Target, expected: Expected, kind: str) -> None:
    wanted = expected.units[kind]
    for key, unit in target.saved[kind].items():
        if key in wanted:
            same = unit.mark == wanted[key].mark
            check.require(holds=same, otherwise=f"{key[1]}: the payload is not the model's")


def _all_units(expected: Expected) -> list[tuple[int, str, Wanted]]:
    return [
        (facility, name, unit)
        for of_kind in expected.units.values()
        for (facility, name), unit in of_kind.items()
    ]


def _row_key(facility: int, name: str, patient: int) -> tuple[int, str, int, str]:
    kind, _, rest = name.partition("/")
    if kind == "mds":
        return facility, kind, patient, rest
    return facility, kind, patient, "" if kind == "demographics" else rest.partition("/")[2]


def _is_done(row: Work) -> bool:
    return row.status == "done" and bool(row.frame)


def _work_name(row: Work) -> str:
    return _row_name((row.facility, row.kind, row.patient, row.item))


def _row_name(key: tuple[int, str, int, str]) -> str:
    facility, kind, patient, item = key
    return f"row {kind}/{patient}{f'/{item}' if item else ''} of facility {facility}"
