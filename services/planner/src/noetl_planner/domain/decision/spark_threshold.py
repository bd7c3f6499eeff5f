"""Decides when the rest of a loop would end sooner on Spark: from its pace and the cores.

The two figures were measured by `tests/bench/spark_lanes.py` and stand in docs/reference/spark.md.
"""

from msgspec import Struct

# CPU seconds that a wave adds to a frame, spread over Spark's cores; rounded up.
WAVE_FRAME_S = 0.005
# A cold session, and a job after it.
START_S = 10.0
# So many frames have to have ended before their pace says anything.
ENDED_MIN = 8


class LaneCores(Struct, frozen=True, kw_only=True):
    """How many frames that compute really run at once in each lane; 0: not known."""

    io: int = 0
    spark: int = 0


class LoopPace(Struct, frozen=True, kw_only=True):
    """How a loop goes: frames in all and ended, how many may be at work, since how long."""

    frames: int
    ended: int
    at_once: int
    elapsed_s: float


def is_spark_sooner(pace: LoopPace, cores: LaneCores) -> bool:
    """Tell whether the frames that are left would end sooner on Spark.

    A frame's CPU time is what the io lane's cores took for it; Spark takes that and what a wave
    adds, on its own cores. Neither lane uses more cores than the loop has frames at once.
    """
    io, spark = min(cores.io, pace.at_once), min(cores.spark, pace.at_once)
    if pace.ended < ENDED_MIN or not 0 < io < spark:
        return False
    frames_left = pace.frames - pace.ended
    frame_s = pace.elapsed_s / pace.ended
    on_io_s = frames_left * frame_s
    on_spark_s = START_S + frames_left * (frame_s * io + WAVE_FRAME_S) / spark
    return on_spark_s < on_io_s
