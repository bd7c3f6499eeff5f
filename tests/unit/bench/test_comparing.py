"""Comparing two commits, on canned figures."""

import pytest
from tests.bench.comparing import COMPARABLE, compare, figures, ratios
from tests.bench.rows import judged
from tests.bench.series import SeriesChoice
from tests.bench.spread import share, spread


def test_medians_whole_times_and_costs_of_a_unit_are_compared() -> None:
    found = {
        "w2": {
            "units": 100,
            "per_s": {"median": 150.0, "least": 100.0, "most": 200.0},
            "each": {"cpu_us": {"planner": 3.0, "reaper": 1.0}, "wal_bytes": 10},
        },
        "w5": {"items": 1_000, "seconds": 30.5, "lost": 0},
    }
    assert figures(found) == {
        "w2.per_s": 150.0,
        "w2.each.cpu_us.planner": 3.0,
        "w2.each.wal_bytes": 10,
        "w5.seconds": 30.5,
    }


def test_a_ratio_is_of_the_medians_and_says_whether_the_rounds_lie_apart() -> None:
    ours = [{"a": 20.0, "b": 5.0}, {"a": 24.0, "b": 9.0}]
    theirs = [{"a": 10.0, "b": 6.0}, {"a": 12.0, "b": 7.0}]
    told = ratios(ours, theirs)
    assert (told["a"]["ratio"], told["a"]["is_apart"]) == (2.0, True)
    assert told["b"]["is_apart"] is False


def test_of_what_one_side_lacks_nothing_is_said() -> None:
    assert set(ratios([{"a": 1.0, "new": 1.0}], [{"a": 1.0, "old": 1.0}])) == {"a"}


def test_nothing_over_nothing_has_no_ratio() -> None:
    assert ratios([{"a": 0.0}], [{"a": 0.0}])["a"]["ratio"] is None


def test_series_that_need_this_process_are_refused_with_a_sentence() -> None:
    assert "past" not in COMPARABLE
    with pytest.raises(SystemExit, match="past: measured inside one process"):
        compare("HEAD", ["past"], choice=SeriesChoice(), workers=1)


def test_a_spread_is_the_middle_with_both_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "least": 1.0, "most": 3.0}


def test_a_share_never_lies_beyond_the_last() -> None:
    assert (share([1.0, 2.0, 3.0], 0.5), share([1.0], 1.0)) == (2.0, 1.0)


def test_rows_say_what_was_lost_and_what_was_run_again() -> None:
    assert judged([0, 0, 2, 2, 2], items=4) == {"rows": 5, "lost": 2, "run_again": 3}
