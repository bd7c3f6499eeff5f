"""How many rows a slot claims next, after seeing how large the last ones were."""

import pytest

from noetl_worker.domain.frames import FramePolicy, compute_rows_max


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(1_000, 50), (2_000, 25), (100_000, 1), (999, 50)],
)
def test_rows_above_the_bytes_of_a_frame_shrink_the_next_claim(
    size_bytes: int, expected: int
) -> None:
    policy = FramePolicy(max_rows=50, max_bytes=1_000)
    assert compute_rows_max(policy, rows=50, size_bytes=size_bytes) == expected
