"""Limits, latency and fault rules decide as they are written."""

from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from noetl_pft.fixture.answer_policy import AnswerPolicy
from noetl_pft.fixture.faults import FaultError, parse_rules
from noetl_pft.fixture.profile import PROFILES, Profile, ProfileError, make_profile
from noetl_pft.fixture.routes import resolve_route
from noetl_pft.fixture.shared_counters import SharedCounters


@pytest.fixture
def board(tmp_path: Path) -> Iterator[SharedCounters]:
    board = SharedCounters(tmp_path / "board")
    yield board
    board.close()


def decide(
    board: SharedCounters, rules: list[Any], target: str, profile: Profile | None = None
) -> str:
    conduct = AnswerPolicy(profile or PROFILES["plain"], parse_rules(rules), board)
    return conduct.decide_answer(resolve_route(target, mini=False), board).outcome


def page(patient: int, kind: str = "conditions", number: int = 1) -> str:
    return f"/api/v1/patient/{kind}?patientId={patient}&page={number}"


def test_the_limiter_admits_exactly_the_limit_in_a_second(board: SharedCounters) -> None:
    profile = make_profile("plain", {"limit": 5})
    outcomes = [decide(board, [], page(1), profile) for _ in range(8)]
    assert outcomes == ["complete"] * 5 + ["limited"] * 3


def test_a_batch_may_cost_its_units(board: SharedCounters) -> None:
    profile = make_profile("plain", {"limit": 5, "batch_cost": "unit"})
    batch = "/api/v1/pft/batch/vital_signs?patientIds=1,2,3"
    assert [decide(board, [], batch, profile) for _ in range(3)] == [
        *("complete", "complete", "limited")
    ]


@pytest.mark.parametrize(
    ("form", "start"), [("seconds", "Retry-After: 1\r\n"), ("date", "Retry-After: "), ("none", "")]
)
def test_a_limited_answer_says_when_to_return(board: SharedCounters, form: str, start: str) -> None:
    conduct = AnswerPolicy(make_profile("plain", {"limit": 1, "retry_after": form}), (), board)
    route = resolve_route(page(1), mini=False)
    conduct.decide_answer(route, board)
    limited = conduct.decide_answer(route, board)
    assert limited.status == 429
    assert limited.headers.startswith(start)


def test_the_real_latency_has_its_median_and_its_tail_and_can_be_repeated() -> None:
    real = PROFILES["real"]
    delays = [real.compute_delay_s(f"conditions/{p}/1", 1) for p in range(1, 5001)]
    cuts = quantiles(delays, n=100)
    assert 0.019 < cuts[49] < 0.021
    assert 0.17 < cuts[98] < 0.23
    assert delays[0] == real.compute_delay_s("conditions/1/1", 1)
    assert delays[0] != real.compute_delay_s("conditions/1/1", 2)


def test_a_rule_hits_the_first_requests_of_each_unit(board: SharedCounters) -> None:
    rules = [{"id": "r", "when": {"first": 2}, "action": {"status": 503}}]
    conduct = AnswerPolicy(PROFILES["plain"], parse_rules(rules), board)
    for patient in (1, 2):
        route = resolve_route(page(patient), mini=False)
        outcomes = [conduct.decide_answer(route, board).outcome for _ in range(3)]
        assert outcomes == ["spoiled:r", "spoiled:r", "complete"]


def test_a_limited_request_is_not_one_of_the_first(board: SharedCounters) -> None:
    rules = parse_rules([{"id": "r", "when": {"first": 1}, "action": {"status": 500}}])
    conduct = AnswerPolicy(make_profile("plain", {"limit": 1}), rules, board)
    route, other = resolve_route(page(1), mini=False), resolve_route(page(2), mini=False)
    assert conduct.decide_answer(route, board).outcome == "spoiled:r"
    assert conduct.decide_answer(other, board).outcome == "limited"
    board.clear_admissions()
    assert conduct.decide_answer(other, board).outcome == "spoiled:r"


def test_a_window_opens_at_a_request_number(board: SharedCounters) -> None:
    rules = [{"id": "w", "when": {"after": 3, "seconds": 60}, "action": {"status": 503}}]
    conduct = AnswerPolicy(PROFILES["plain"], parse_rules(rules), board)
    route = resolve_route(page(1), mini=False)
    outcomes = [conduct.decide_answer(route, board).outcome for _ in range(5)]
    assert outcomes == ["complete"] * 2 + ["spoiled:w"] * 3


def test_a_window_closes_after_its_seconds(board: SharedCounters) -> None:
    rules = [{"id": "w", "when": {"after": 1, "seconds": 0}, "action": {"status": 503}}]
    assert decide(board, rules, page(1)) == "complete"


def test_a_share_picks_about_that_many_units() -> None:
    rule = parse_rules(
        [{"id": "s", "match": {"share": 0.02, "seed": 3}, "action": {"status": 500}}]
    )[0]
    names = [f"conditions/{p}/1" for p in range(1, 10_001)]
    route = resolve_route(page(1), mini=False)
    assert 150 < sum(rule.is_about(route, name) for name in names) < 250


@pytest.mark.parametrize(
    ("match", "target", "hit"),
    [
        ({"endpoint": "patient"}, page(1), True),
        ({"endpoint": "mds"}, page(1), False),
        ({"type": "conditions"}, page(1), True),
        ({"type": "medications"}, page(1), False),
        ({"patients": [1, 2]}, page(2), True),
        ({"patients": [1, 2]}, page(3), False),
        ({"patients": [1]}, "/api/v1/mds/assessment/MDS-1-p1-0-01", True),
        ({"page": 2}, page(1, "assessments", 2), True),
        ({"page": 2}, page(1, "assessments", 1), False),
        ({"patients": [3]}, "/api/v1/pft/batch/conditions?patientIds=2,3", True),
    ],
)
def test_a_rule_matches_what_it_names(
    board: SharedCounters, match: dict[str, Any], target: str, *, hit: bool
) -> None:
    outcome = decide(board, [{"id": "m", "match": match, "action": {"status": 500}}], target)
    assert (outcome == "spoiled:m") is hit


def test_the_first_matching_rule_applies(board: SharedCounters) -> None:
    rules = [
        {"id": "a", "match": {"patients": [9]}, "action": "garbage"},
        {"id": "b", "action": {"status": 500}},
    ]
    assert decide(board, rules, page(9)) == "spoiled:a"
    assert decide(board, rules, page(8)) == "spoiled:b"


def test_the_lying_rules_lie(board: SharedCounters) -> None:
    route = resolve_route(page(1, "assessments"), mini=False)
    cut = AnswerPolicy(PROFILES["plain"], parse_rules([{"id": "c", "action": "cut"}]), board)
    assert b'"hasMore":false' in cut.decide_answer(route, board).body
    swap = AnswerPolicy(PROFILES["plain"], parse_rules([{"id": "s", "action": "swap"}]), board)
    assert b'"patientId":"2"' in swap.decide_answer(route, board).body


@pytest.mark.parametrize(
    "rules",
    [
        {},
        [{}],
        [{"id": "a"}],
        [{"id": "a", "action": {"status": 418}}],
        [{"id": "a", "action": "explode"}],
        [{"id": "a", "action": "cut", "match": {"colour": 1}}],
        [{"id": "a", "action": "cut", "when": {"first": 1, "after": 2}}],
        [{"id": "a", "action": "cut"}, {"id": "a", "action": "cut"}],
    ],
)
def test_a_meaningless_rule_is_refused(rules: Any) -> None:
    with pytest.raises(FaultError):
        parse_rules(rules)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fast", {}),
        ("plain", {"limit": -1}),
        ("plain", {"latency": "gauss:1"}),
        ("plain", {"limit_scope": "world"}),
        ("plain", {"colour": "red"}),
    ],
)
def test_a_meaningless_profile_is_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        make_profile(name, changes)


def test_repeats_of_a_unit_are_counted_in_one_table_by_all(tmp_path: Path) -> None:
    item, two = SharedCounters(tmp_path / "b"), SharedCounters(tmp_path / "b")
    counts = [board.count_unit(unit) for unit in ("a", "b") for board in (item, two)]
    assert counts == [1, 2, 1, 2]
    item.reset_all()
    assert two.count_unit("a") == 1
    item.close()
    two.close()
