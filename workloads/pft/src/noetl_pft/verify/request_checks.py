"""Checks L1 to L8: the request ledger against the model."""

from noetl_pft.verify.checks import Check, RunTerms
from noetl_pft.verify.event_log import EventLog
from noetl_pft.verify.expected_run import ExpectedRun
from noetl_pft.verify.request_summary import RequestSummary
from noetl_pft.workload import model


def check_complete_units(requests: RequestSummary, expected: ExpectedRun) -> Check:
    """L1: exactly the expected units were answered completely."""
    check = Check("L1", "units answered completely are exactly the expected ones")
    complete = {name for name, tally in requests.units.items() if tally.complete}
    check.inspected = len(complete)
    for name in expected.names - complete:
        check.record_difference(f"never answered completely: {name}")
    for name in complete - expected.names:
        check.record_difference(f"answered, but no unit: {name}")
    return check


def check_foreign_requests(requests: RequestSummary, expected: ExpectedRun) -> Check:
    """L2: nothing else was asked for."""
    check = Check("L2", "nothing outside the expected units was asked; no 400, 404, 405")
    check.inspected = requests.requests
    for name in requests.units.keys() - expected.names:
        check.record_difference(f"asked, but no unit: {name}")
    for path in requests.without_units:
        check.record_difference(f"names no unit: {path}")
    for path in requests.refused:
        check.record_difference(f"was refused: {path}")
    return check


def check_asked_once(requests: RequestSummary, expected: ExpectedRun) -> Check:
    """L3: without faults, every unit is asked for once and answered once."""
    check = Check("L3", "every unit was asked once and answered once")
    for name in expected.names:
        tally = requests.units.get(name)
        counts = (tally.requests, tally.complete) if tally else (0, 0)
        check.expect_equal(f"{name} (asked, answered)", counts, (1, 1))
    return check


def check_repeated_requests(
    requests: RequestSummary, terms: RunTerms, repeats: dict[str, int]
) -> Check:
    """L4: every repeated request is explained by its answer or by a repeated frame."""
    check = Check("L4", "repeated requests are explained")
    explained = unexplained = 0
    for name, tally in requests.units.items():
        surplus = max(tally.requests - 1, 0)
        allowed = tally.excused + repeats.get(name, 0)
        explained += min(surplus, allowed)
        unexplained += max(surplus - allowed, 0)
        check.require_condition(
            holds=surplus <= allowed,
            otherwise=f"{name}: asked {tally.requests} times, {allowed} repeats are explained",
        )
    for outcome in requests.outcomes:
        prefix, _, rule = outcome.partition(":")
        if prefix == "spoiled" and not terms.is_fault_free and rule not in terms.rules:
            check.record_difference(f"spoiled by a rule that is not in the given file: {rule}")
    check.notes |= {"explained": explained, "unexplained": unexplained}
    return check


def check_request_marks(requests: RequestSummary, terms: RunTerms, events: EventLog) -> Check:
    """L5: every request says whose it is."""
    check = Check("L5", "every request bears nonce, execution, frame and attempt")
    check.inspected = requests.requests
    for nonce, times in requests.runs.items():
        if nonce != terms.nonce:
            check.record_difference(f"{times} requests of run {nonce!r}")
    for execution, times in requests.executions.items():
        if execution != terms.execution:
            check.record_difference(f"{times} requests of execution {execution!r}")
    for frame in requests.units_of_frame:
        if frame not in events.frames:
            check.record_difference(
                f"requests of a frame that this execution does not know: {frame!r}"
            )
    for attempt, times in requests.attempts.items():
        if not attempt.isdigit() or int(attempt) < 1:
            check.record_difference(f"{times} requests of attempt {attempt!r}")
    return check


def check_idempotency_keys(requests: RequestSummary) -> Check:
    """L6: one idempotency key per unit or batch."""
    check = Check("L6", "one Idempotency-Key per logical request, none shared")
    check.inspected = len(requests.key_owners) if "" not in requests.key_owners else 0
    for pair in requests.shared_keys:
        check.record_difference(f"key {pair}")
    for name, tally in requests.units.items():
        if tally.has_other_keys:
            check.record_difference(f"{name}: more than one key")
    if "" in requests.key_owners:
        check.record_difference("there are requests without an Idempotency-Key")
    return check


def check_request_count(requests: RequestSummary, expected: ExpectedRun, terms: RunTerms) -> Check:
    """L7: without faults the number of requests is known."""
    check = Check("L7", "number of requests")
    if terms.variant != "b":
        check.expect_equal("requests", requests.requests, len(expected.names))
        return check
    least, most = model.count_frame_bounds(
        expected.scale, frame_rows=terms.frame_rows, slots=terms.slots
    )
    check.require_condition(
        holds=least <= requests.requests <= most,
        otherwise=f"{requests.requests} requests, expected {least} to {most}",
    )
    for name in expected.names:
        check.expect_equal(f"batches that ask for {name}", requests.batches_of_unit[name], 1)
    return check


def check_ledger_whole(requests: RequestSummary) -> Check:
    """L8: no record of the ledger is missing or doubled."""
    check = Check("L8", "the ledger is whole")
    check.inspected = requests.requests
    for fault in requests.faults_in_numbers:
        check.record_difference(fault)
    return check
