"""Checks the numbers of a rate limit."""

RATE_MAX = 100_000.0
PER_S_MAX = 86_400.0
BURST_MAX = 100_000
# How long an unused allowance takes to fill: what shares the value forgets older ones.
FILL_S_MAX = 86_400.0
KEY_CHARACTERS_MAX = 200


def find_rate_fault(*, key: str, rate: float, per_s: float, burst: int) -> str | None:
    """Say what is wrong with the numbers of a limit, or None."""
    if not 0 < len(key) <= KEY_CHARACTERS_MAX:
        return f"'key' has 1 to {KEY_CHARACTERS_MAX} characters"
    if not 0 < rate <= RATE_MAX:
        return f"'rate' is above 0 and at most {RATE_MAX:g}"
    if not 0 < per_s <= PER_S_MAX:
        return f"'per' is above 0 and at most {PER_S_MAX:g} s"
    if not 1 <= burst <= BURST_MAX:
        return f"'burst' is 1 to {BURST_MAX}"
    if burst * per_s / rate > FILL_S_MAX:
        return f"a full burst takes {burst * per_s / rate:g} s to come back, at most {FILL_S_MAX:g}"
    return None
