"""The pace under virtual time: in no window of any length go more calls than it allows."""

from hypothesis import given, settings
from hypothesis import strategies as st

from noetl_worker.domain.admission import CallRate, grant_calls

EPSILON_S = 1e-6


@settings(max_examples=200)
@given(
    rate=st.floats(0.1, 500),
    burst=st.integers(1, 20),
    asks=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30)), min_size=1, max_size=40),
    horizon_s=st.floats(0, 2),
    wiped_at=st.none() | st.integers(0, 39),
)
def test_no_window_holds_more_than_its_share_and_the_burst(
    rate: float,
    burst: int,
    asks: list[tuple[float, int]],
    horizon_s: float,
    wiped_at: int | None,
) -> None:
    pace = CallRate(interval_s=1 / rate, burst=burst)
    now, tat = 1_000_000.0, 0.0
    lives: list[list[float]] = [[]]
    for turn, (pause_s, wanted) in enumerate(asks):
        now += pause_s
        if turn == wiped_at:
            tat = 0.0
            lives.append([])
        granted = grant_calls(pace, tat=tat, now=now, calls=wanted, horizon_s=horizon_s)
        assert len(granted.times) <= wanted
        assert all(now <= time <= now + horizon_s for time in granted.times)
        if granted.times:
            assert granted.tat > tat
            tat = granted.tat
        else:
            assert granted.rest_s > 0
        lives[-1] += granted.times
    for times in lives:
        assert times == sorted(times)
        for first in range(len(times)):
            for last in range(first, len(times)):
                window_s = times[last] - times[first] + EPSILON_S
                assert last - first + 1 <= window_s * rate + burst


@given(rate=st.floats(0.1, 100), burst=st.integers(1, 5), wanted=st.integers(1, 50))
def test_who_asks_again_after_the_rest_that_it_was_told_gets_its_time(
    rate: float, burst: int, wanted: int
) -> None:
    pace = CallRate(interval_s=1 / rate, burst=burst)
    now, tat, got = 5_000.0, 0.0, 0
    for _ in range(3 * wanted + 3):
        granted = grant_calls(pace, tat=tat, now=now, calls=wanted - got, horizon_s=0.0)
        got += len(granted.times)
        tat = granted.tat
        now += granted.rest_s + EPSILON_S
        if got == wanted:
            break
    assert got == wanted
