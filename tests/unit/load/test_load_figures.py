"""What the loads make of what they saw: trends and verdicts, right ends, pages and drawings."""

from typing import Any

import pytest
from tests.load import concurrent, soak, summing, sweep, walks
from tests.load.filling import OWNER, by_shard, story_of
from tests.load.mix import CANCEL, KINDS, LOOP, WRONG, Kind
from tests.load.page import SECTIONS, page
from tests.load.plots import draw
from tests.load.samples import Held, Sample
from tests.load.trend import GROWTH_SHARE_MAX, HOUR_S, settled, slope, trend
from tests.support.api import ApiWorld
from tests.support.builders import STORIES
from tests.support.identities import open_client
from tests.support.moving import moved

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.app import create_app
from noetl_playbook.parse import playbook

MACHINE = {"cores": 2, "memory_gib": 24, "python": "3.11", "load": [1.5, 9.0]}


def a_line(
    gain_h: float, *, start: float = 100.0, wobble: float = 0.0
) -> list[tuple[float, float]]:
    """Figures of an hour, one every ten seconds."""
    return [
        (at, start + gain_h * at / HOUR_S + wobble * (-1) ** (at // 10))
        for at in range(0, int(HOUR_S) + 1, 10)
    ]


def test_a_slope_is_that_of_the_line_through_the_noise() -> None:
    assert slope(a_line(36.0)) == pytest.approx(0.01)
    assert slope(a_line(36.0, wobble=5)) == pytest.approx(0.01, rel=0.02)
    assert slope(a_line(0.0)) == 0


def test_what_fills_up_in_the_first_half_counts_for_nothing() -> None:
    filling = [(at, min(figure, 130.0)) for at, figure in a_line(100.0)]
    assert settled(filling)[0][0] == HOUR_S / 2
    assert trend(filling).is_flat
    assert trend(filling).slope_h == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("gain_h", "is_flat"), [(0.0, True), (4.0, True), (6.0, False), (-50.0, True)]
)
def test_memory_is_flat_if_it_gains_less_than_its_bound(gain_h: float, *, is_flat: bool) -> None:
    found = trend(a_line(gain_h))
    assert found.is_flat is is_flat
    assert found.is_flat is (found.share_h < GROWTH_SHARE_MAX)
    assert found.slope_h == pytest.approx(gain_h)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_playbook_of_the_soak_is_one(kind: Kind) -> None:
    assert playbook.parse_playbook(kind.playbook).problems == ()


def ended(status: str, *, error: str | None = None, **variables: Any) -> dict[str, Any]:
    told = None if error is None else {"kind": error}
    return {"status": status, "variables": variables, "error": told}


def test_an_end_is_right_only_with_its_status_its_variables_and_its_error() -> None:
    assert soak.difference(LOOP, ended("COMPLETED", total=132)) is None
    assert soak.difference(CANCEL, ended("CANCELLED", began=True)) is None
    assert soak.difference(WRONG, ended("FAILED", error="template")) is None
    assert soak.difference(LOOP, ended("COMPLETED", total=131)) is not None
    assert soak.difference(LOOP, ended("CANCELLED", total=132)) is not None
    assert soak.difference(WRONG, ended("FAILED", error="timeout")) is not None


def samples(count: int = 40, *, gain_h: float = 0.0) -> list[Sample]:
    return [
        Sample(
            at_s=at,
            held={
                name: Held(
                    pid=1,
                    family_mib=200 + at,
                    family_private_mib=100 + gain_h * at / HOUR_S,
                    files=20,
                    processes=1,
                    cpu_s=at / 10,
                )
                for name in ("planner-1", "worker-1")
            },
            events=int(at * 100),
            outbox_rows=0,
            connections=20,
            ledger_mib=10 + at / 10,
            jetstream_mib=5,
            payloads_mib=3,
            shared_mib=1,
            logs_mib=0,
            machine_busy=90,
        )
        for at in (90.0 * number for number in range(count))
    ]


def a_soak(**summed: Any) -> dict[str, Any]:
    return {
        "machine": MACHINE,
        "minutes": 60.0,
        "each_s": 2.0,
        "asked": {"loop": 3, "wrong": 2},
        "right": {"loop": 3, "wrong": 2},
        "wrong": [],
        "pft": 4,
        "held_back": 0,
        "statuses": {"expected": {"COMPLETED": 3}, "found": {"COMPLETED": 3}},
        "audit": {
            "executions": 5,
            "events": 99,
            "ok": 5,
            "damaged": 0,
            "projected": {"same": 5},
            "damage": [],
        },
        "compared": 5,
        "differ": [],
        "restarts": {},
        **(summed or summing.summed(samples())),
    }


def found() -> dict[str, Any]:
    each = {"cpu_us": {"planner": 9_000.0}, "transactions": 2.5, "wal_bytes": 900}
    span = {"first": 100.0, "most": 150.0, "last": 140.0}
    percent = {"p50": 20, "p95": 30, "most": 31}
    way = {
        "alone": percent,
        "beside": percent,
        "flood_open_at_the_end": 7,
        "flood_refused_meanwhile": 9,
    }
    route = {
        "requests": 3,
        "p50_ms": 1.0,
        "p95_ms": 2.0,
        "p99_ms": 2.0,
        "most_ms": 2.0,
        "bytes_most": 100,
        "pages_most": 1,
        "statuses": {"200": 3},
        "slowest": "/api/health",
    }
    scanned = {"seconds": 12, "tables": {}}
    return {
        "soak": a_soak(),
        "concurrent": {
            "machine": MACHINE,
            "executions": 5,
            "open_at_once": 5,
            "right": 5,
            "different": 5,
            "repeated": 0,
            "restarts": {},
            "audit": a_soak()["audit"],
            **dict.fromkeys(
                ("submitted_per_s", "waiting_per_s", "signalled_per_s", "ended_per_s"), 7.5
            ),
            "connections": 21,
            "outbox_rows": 3,
            "each": each,
            **dict.fromkeys(("planner_mib", "worker_mib", "projector_mib"), span),
        },
        "sweep": {
            "machine": MACHINE,
            "executions": 100_000,
            "events": 900_000,
            "routes": {"/api/health": route},
            "scans": {"seconds": 90, "tables": {"event_default": 2}},
            "idle": scanned,
        },
        "tenants": {
            "machine": MACHINE,
            "flood": 2_000,
            "items": 20,
            "small": 50,
            "together": way,
            "shares": way,
            "bounded": way,
            "running_max": 2,
        },
        "console": {
            "machine": MACHINE,
            "items": 100_000,
            "lines": 100_000,
            "runs": 1_000,
            "pages": [{"page": "runs", "seconds": 0.5, "heap_mib": 3.0, "nodes": 900}],
            "logs": {
                "found": 10,
                "lines": 100_000,
                "seconds": 0.2,
                "pages": 1,
                "longest_s": 0.2,
            },
            "watching": {
                "minutes": 15.0,
                "events_per_s": 40.0,
                "heap_mib_first": 5.0,
                "heap_mib_last": 5.1,
                "heap_mib_an_hour": 0.4,
                "nodes_first": 900,
                "nodes_last": 900,
            },
            "watchers": {"alone": 0.1, "watched": 0.14, "watchers": 50, "share": 0.04},
        },
    }


@pytest.mark.parametrize("name", SECTIONS)
def test_a_load_has_a_section_of_its_own(name: str) -> None:
    assert page({name: found()[name]}).count("\n## ") == 1
    assert page(found()).count("\n## ") == len(SECTIONS)
    assert "load 1.5 to 9.0" in page({name: found()[name]})


def test_a_soak_is_judged_by_its_ends_its_histories_and_its_memory() -> None:
    assert soak.wrong(a_soak()) == []
    growing = a_soak(**summing.summed(samples(gain_h=30)))
    assert soak.wrong(growing) == ["memory of planner-1 grows", "memory of worker-1 grows"]
    assert "**no**" in page({"soak": growing})
    assert soak.wrong({**a_soak(), "differ": ["7"]}) != []
    assert soak.wrong({**a_soak(), "statuses": {"expected": {"A": 1}, "found": {}}}) != []
    damaged = {**a_soak()["audit"], "damaged": 1, "projected": {"same": 4, "differs": 1}}
    assert soak.wrong({**a_soak(), "audit": damaged}) != []


def test_a_soak_says_how_its_stores_grew() -> None:
    one = summing.summed(samples())
    assert one["stores"]["events"]["slope_h"] == pytest.approx(360_000)
    assert one["bytes_per_event"] == round(2**20 / 1000)
    assert draw(a_soak()).startswith(b"<?xml")
    assert b"src=" not in draw(a_soak()), "nothing is loaded"


def test_a_lost_or_a_doubled_execution_is_no_success() -> None:
    one = found()["concurrent"]
    assert concurrent.wrong(one) == []
    assert concurrent.wrong({**one, "open_at_once": 4}) == ["open_at_once: 4, not 5"]
    assert concurrent.wrong({**one, "different": 4}) == ["different: 4, not 5"]


def test_an_error_of_the_server_and_an_answer_without_bound_are_named() -> None:
    one = found()["sweep"]
    assert sweep.wrong(one) == []
    route = one["routes"]["/api/health"]
    failed = {"/api/health": {**route, "statuses": {"200": 2, "500": 1}}}
    assert sweep.wrong({**one, "routes": failed}) == ["/api/health: 500"]
    long = {"/api/health": {**route, "bytes_most": 2**30}}
    assert sweep.wrong({**one, "routes": long}) == [f"/api/health: {2**30} bytes"]


def test_answers_without_a_provider_and_a_route_that_nothing_is_asked_of_are_right() -> None:
    one = found()["sweep"]
    route = one["routes"]["/api/health"]
    unasked = sweep.WalkResult().told()
    assert unasked["requests"] == 0
    routes = {"/auth/login": {**route, "statuses": {"404": 2}}, "/api/health": unasked}
    assert sweep.wrong({**one, "routes": routes}) == []
    failed = {"/auth/login": {**route, "statuses": {"401": 1}}}
    assert sweep.wrong({**one, "routes": failed}) == ["/auth/login: 401"]


async def test_the_state_that_the_sweep_sets_is_read_by_its_playbook() -> None:
    app = create_app(ApiWorld().services())
    async with open_client(app) as client:
        typed = {"Content-Type": "text/yaml"}
        kept = await client.post("/api/catalog/register", content=sweep.INCREMENTS, headers=typed)
        answer = await client.put("/api/state/value", json=sweep.STATE)
    assert (kept.status_code, answer.status_code) == (200, 200), answer.text


def test_the_sweep_walks_every_get_of_the_api() -> None:
    described = create_app(ApiWorld().services()).openapi_schema.to_schema()["paths"]
    assert walks.uncovered([path for path, item in described.items() if "get" in item]) == []


def test_a_filled_history_is_that_of_another_execution() -> None:
    names = tuple(STORIES)
    told = {story_of(number, names) for number in range(20 * len(names))}
    assert told == set(names)
    history = STORIES["cursor-loop"]()
    other = moved(history, ExecutionId("7000000"), **OWNER)
    assert [envelope.event for envelope in other.envelopes] == [
        envelope.event for envelope in history.envelopes
    ]
    assert {envelope.execution_id for envelope in other.envelopes} == {"7000000"}
    assert [len(some) for _, some in by_shard([other])] == [1]
