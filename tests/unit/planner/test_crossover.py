"""Where the rest of a loop ends sooner: by its pace, and by the cores of both lanes."""

import pytest
from msgspec import structs

from noetl_planner.domain.decision.spark_threshold import (
    ENDED_MIN,
    START_S,
    WAVE_FRAME_S,
    LaneCores,
    LoopPace,
    is_spark_sooner,
)

pytestmark = pytest.mark.unit

# A tenth of a second a frame on two cores: another hundred seconds to go.
PACE = LoopPace(frames=1100, ended=100, at_once=64, elapsed_s=10.0)
CLUSTER = LaneCores(io=2, spark=16)


def test_more_cores_end_what_computes_for_long_sooner() -> None:
    assert is_spark_sooner(PACE, CLUSTER)


@pytest.mark.parametrize(
    "cores",
    [
        LaneCores(),
        LaneCores(io=2),
        LaneCores(spark=16),
        LaneCores(io=2, spark=2),
        LaneCores(io=16, spark=2),
    ],
)
def test_without_more_cores_nothing_is_won(cores: LaneCores) -> None:
    assert not is_spark_sooner(PACE, cores)


@pytest.mark.parametrize(
    "change",
    [
        {"ended": ENDED_MIN - 1},
        # What is left ends before a session starts.
        {"frames": 200},
        {"frames": 100},
        # A wave adds more than the frames take.
        {"frames": 100_000, "elapsed_s": 0.01},
        # The loop itself lets no more be at work than the workers have cores.
        {"at_once": 2},
    ],
)
def test_what_would_not_end_sooner_stays(change: dict[str, float]) -> None:
    assert not is_spark_sooner(structs.replace(PACE, **change), CLUSTER)


def test_the_crossover_is_where_both_take_as_long() -> None:
    frame_s = 0.1
    spark_s = (frame_s * CLUSTER.io + WAVE_FRAME_S) / CLUSTER.spark
    left = START_S / (frame_s - spark_s)
    for frames, expected in ((int(left), False), (int(left) + 2, True)):
        pace = structs.replace(PACE, frames=PACE.ended + frames)
        assert is_spark_sooner(pace, CLUSTER) is expected
