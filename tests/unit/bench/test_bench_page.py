"""The page of benchmarks, on canned figures: whatever was run is shown, and nothing else."""

from typing import Any

import pytest
from tests.bench.page import SECTIONS, page
from tests.bench.plots import FILES, draw
from tests.bench.series import SERIES

MACHINE = {"cores": 2, "memory_gib": 24, "python": "3.11", "system": "Linux"}
EACH = {
    "cpu_us": {"planner": 500.0, "worker": 1_200.4, "postgres": 90.0, "site": 7.0},
    "transactions": 1.25,
    "wal_bytes": 2_048,
}


def rates(median: float) -> dict[str, Any]:
    apart = {"median": median, "least": median / 2, "most": median * 2}
    return {"units": 1_000, "rounds": 5, "per_s": apart, "each": EACH}


def report() -> dict[str, Any]:
    some = {"median": 8.0, "least": 7.0, "most": 9.5}
    return {
        "machine": MACHINE,
        "durability": {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "sync_interval": "1s",
        },
        "admitting": {
            "requests": 1_000,
            "new_requests": 10,
            "goal_us": 150.0,
            "kinds": [
                {
                    "name": "an API key",
                    "known": {"p50_us": 4.0, "p95_us": 5.0, "p99_us": 7.5},
                    "new": {"p50_us": 158.0, "p95_us": 280.0, "p99_us": 1_250.0},
                }
            ],
        },
        "w1": {"units": 50, "rounds": 5, "p50_ms": some, "p95_ms": some, "each": EACH},
        "w2": {**rates(200), "processors": {"alone_ms": 8.5, "together_ms": 15.0}},
        "w3": {"by_items": {"1000": rates(900), "10000": rates(800)}, "planner_growth": 1.1},
        "w3f": {"frame_rows": 100, "by_items": {"10000": rates(15_000)}},
        "w4": {
            "requests": 5_000,
            "frame_rows": 50,
            "workers": 2,
            "floor": rates(4_000),
            "frames": rates(2_000),
            "items": rates(700),
            "efficiency": {"frames": some, "items": some},
        },
        "growth": {
            "by_events": [
                {"events": events, "execution_ms": some, "steps_per_s": some}
                for events in (400, 1_000_000)
            ],
            "by_items": {
                items: {
                    "per_s": 5_000,
                    "each": EACH,
                    "memory_mib": {"planner": 100, "worker": 80},
                    "pages_ms": {"status": {"first": 4.0, "p50": 2.5}},
                }
                for items in ("10000", "1000000")
            },
            "by_workers": {
                "8": {"loop": rates(4_000), "steps": rates(200), "memory_mib": {"worker": 500}}
            },
        },
        "unaided": {
            name: {
                "per_s": dict.fromkeys(("floor", "unaided", "lane", "lanes"), some),
                "of_floor": dict.fromkeys(("unaided", "lane", "lanes"), some),
                "cpu_us": dict.fromkeys(("lane", "lanes"), some),
            }
            for name in ("frames", "pft")
        },
        "w5": {
            "items": 1_000,
            "undisturbed_s": 1.5,
            "killed_after_s": 0.7,
            "seconds": 31.0,
            "rows": 1_003,
            "lost": 0,
            "run_again": 3,
            "results_lost": 0,
            "results_doubled": 0,
        },
        "small": rates(100),
        "ledger": {
            "append": {
                "events": 10_000,
                "batch_events": 500,
                "raw_per_s": some,
                "ledger_per_s": some,
                "raw_postgres_cpu_us": 18.0,
                "ledger_postgres_cpu_us": 20.0,
                "ratio": {"median": 0.71, "least": 0.6, "most": 0.8},
            },
            "outbox": {"messages": 5_000, "bytes": 400, "per_s": some},
        },
        "floors": {"append_1": some, "http_32": some},
        "waves": {
            "frames": 64,
            "rows": 1_000,
            "body": "Python, a sum",
            "io": {"cpu_ms": 2.0, "wall_ms": 3.0},
            "spark": {"cpu_ms": 4.0, "wall_ms": 5.0},
        },
    }


def peers() -> dict[str, Any]:
    half = {"median": 4.0, "least": 4.0, "most": 4.0}
    return {
        "quick": {
            "version": "1.2",
            "about": "as it comes",
            "w1": {"p50_ms": half, "p95_ms": half},
            "w2": {"reason": "no chains"},
            "w3": {"per_s": {"median": 450.0, "least": 400.0, "most": 500.0}},
            "w5": {"seconds": 15.5, "lost": 0, "run_again": 9},
        },
        "absent": {"reason": "no matching distribution"},
    }


def test_a_page_of_one_series_shows_that_series_alone() -> None:
    shown = page({"machine": MACHINE, "w2": rates(200)})
    assert "## W2" in shown
    assert shown.count("\n## ") == 1


def test_figures_are_told_with_how_far_the_rounds_lay_apart() -> None:
    shown = page(report())
    assert "200 (100 to 400) steps/s" in shown
    assert "| 500 | 1,200 | 90 | 0 | 0 | 7 | 1.25 | 2,048 |" in shown
    assert "fsync on, synchronous_commit on" in shown
    assert "Before w2 a loop of 400,000 additions took 8.5 to 8.5 ms of CPU on one" in shown


@pytest.mark.parametrize("name", sorted(set(SECTIONS) & set(report())))
def test_every_section_can_stand_alone(name: str) -> None:
    whole = report()
    assert page({"machine": MACHINE, name: whole[name]}).count("\n## ") == 1


def test_every_series_has_a_section() -> None:
    assert set(SECTIONS) == set(SERIES)


def test_peers_are_told_with_ours_over_theirs_of_the_same_run() -> None:
    shown = page({**report(), "peers": peers()})
    # Less is better for W1 and W5, more for W3.
    assert "| W1 p50, ms | 8 (7 to 9.5) | 4 (4 to 4); **0.50** | - |" in shown
    assert "| 450 (400 to 500); **2.00** |" in shown
    assert (
        "| W5, s | 31.0, 0 lost, 3 run again | 15.5, 0 lost, 9 run again; **0.50** | - |" in shown
    )


def test_a_peer_that_failed_has_its_reason_on_the_page() -> None:
    shown = page({**report(), "peers": peers()})
    assert "| no chains |" in shown
    assert "* absent: no matching distribution" in shown


def test_peers_are_held_against_ours_of_their_run_whatever_was_measured_since() -> None:
    of_their_run = page({**report(), "peers": peers()})
    since = {"median": 0.001, "least": 0.001, "most": 0.001}
    later = {**report(), "w1": {**report()["w1"], "p50_ms": since}}
    shown = page({**later, "peers": peers(), "beside_peers": {"w1": report()["w1"]}})
    (row,) = [line for line in of_their_run.splitlines() if line.startswith("| W1 p50, ms")]
    assert row in shown


def test_peers_are_not_held_against_ours_of_another_run() -> None:
    shown = page({**report(), "peers": peers(), "beside_peers": {"w1": report()["w1"]}})
    told = shown[shown.index("## Other engines") :]
    assert "| W2, steps/s | - |" in told


def test_peers_without_our_figures_are_told_without_ratios() -> None:
    shown = page({"machine": MACHINE, "peers": peers()})
    assert "**" not in shown.partition("## Other engines")[2]


def test_what_was_measured_is_drawn_and_the_page_shows_it() -> None:
    drawn = draw(report())
    assert set(drawn) == set(FILES)
    assert all(drawing.startswith(b"<?xml") for drawing in drawn.values())
    assert not any(b"src=" in drawing for drawing in drawn.values()), "nothing is loaded"
    shown = page(report())
    assert all(f"({name})" in shown for name in FILES)


def test_what_was_not_measured_is_not_drawn() -> None:
    assert draw({"machine": MACHINE, "w2": rates(1)}) == {}
    assert "svg" not in page({"machine": MACHINE, "w2": rates(1)})
