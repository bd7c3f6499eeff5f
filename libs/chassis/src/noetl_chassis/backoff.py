"""How long to wait before the next attempt."""

FACTOR = 2.0
_EXPONENT_MAX = 32


def delay_s(attempt: int, *, base_s: float, max_s: float, noise: float) -> float:
    """Double from `base_s` up to `max_s`; `noise` from 0 up to 1 spreads over the upper half."""
    full = min(max_s, base_s * FACTOR ** min(max(attempt - 1, 0), _EXPONENT_MAX))
    return full * (0.5 + 0.5 * noise)
