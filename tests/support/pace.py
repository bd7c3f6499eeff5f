"""How slow this machine is now, for the few bounds in seconds that tests hold the engine to."""

import time

ADDITIONS = 400_000
# What they take where the bounds were set.
USUAL_S = 0.025
LOOPS = 5


def measure_slowness() -> float:
    """Return how much longer than usual plain computing takes by the clock; 1 at the least."""
    times = []
    for _ in range(LOOPS):
        began, total = time.perf_counter(), 0
        for number in range(ADDITIONS):
            total += number
        times.append(time.perf_counter() - began)
    return max(1.0, sorted(times)[LOOPS // 2] / USUAL_S)
