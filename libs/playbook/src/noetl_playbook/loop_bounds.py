"""The numbers of loops, cursors and failure policies: told where out of range, and clamped."""

from typing import Any

import msgspec

from noetl_playbook import coercion
from noetl_playbook.model import CursorOptions, Failure, Loop
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

_SHARE_MAX = 100


def read_failure(reading: Reading, value: Any, path: Path) -> Failure | None:
    """Read a failure policy."""
    failure: Failure | None = reading.struct(Failure, value, path)
    if failure is None:
        return None
    for name in ("max_failed", "min_success"):
        bound = getattr(failure, name)
        if bound != _clamped(bound):
            is_share = isinstance(bound, str)
            said = f"between 0% and {_SHARE_MAX}%" if is_share else "at least 0"
            reading.report("E502", (*path, name), f"{name} is {said}")
    return _within(failure)


def _within(failure: Failure) -> Failure:
    return msgspec.structs.replace(
        failure,
        max_failed=_clamped(failure.max_failed),
        min_success=_clamped(failure.min_success),
    )


def _clamped(bound: int | str | None) -> int | str | None:
    if isinstance(bound, str):
        share = coercion.number(bound[:-1]) or 0
        within = min(max(share, 0), _SHARE_MAX)
        return bound if within == share else f"{within}%"
    return bound if bound is None else max(bound, 0)


def read_cursor_options(reading: Reading, value: Any, path: Path) -> CursorOptions | None:
    """Read how often a cursor asks, and how long it waits for an answer."""
    options: CursorOptions | None = reading.struct(CursorOptions, value, path)
    if options is None:
        return None
    interval, timeout = options.poll_interval_ms, options.statement_timeout_s
    if not isinstance(interval, str) and interval < 0:
        reading.report("E502", (*path, "poll_interval_ms"), "poll_interval_ms is at least 0")
        options = msgspec.structs.replace(options, poll_interval_ms=0)
    if not isinstance(timeout, str) and timeout <= 0:
        reading.report(
            "E502", (*path, "statement_timeout_s"), "statement_timeout_s is greater than 0"
        )
        options = msgspec.structs.replace(options, statement_timeout_s=1)
    return options


def bounded(reading: Reading, loop: Loop, path: Path) -> Loop:
    """Clamp what a loop says of attempts, and the failure policy that it took from its step."""
    spec = loop.spec
    if spec.max_attempts < 1:
        reading.report("E502", (*path, "spec", "max_attempts"), "max_attempts is at least 1")
        spec = msgspec.structs.replace(spec, max_attempts=1)
    if spec.policy.failure is not None:
        policy = msgspec.structs.replace(spec.policy, failure=_within(spec.policy.failure))
        spec = msgspec.structs.replace(spec, policy=policy)
    return msgspec.structs.replace(loop, spec=spec)
