"""Fields of loops, cursors and failure policies: checks of combinations, bounds of numbers."""

from typing import Any, get_args

import msgspec

from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import CursorOptions, Failure, Loop, LoopMode
from noetl_playbook.source.document_reader import DocumentReader, describe_value
from noetl_playbook.source.problems import Level, Path, Severity

_SHARE_MAX = 100


def read_failure_policy(reading: DocumentReader, value: Any, path: Path) -> Failure | None:
    """Read a failure policy."""
    failure: Failure | None = reading.read_struct(Failure, value, path)
    if failure is None:
        return None
    for name in ("max_failed", "min_success"):
        bound = getattr(failure, name)
        if bound != _clamp_bound(bound):
            is_share = isinstance(bound, str)
            bounds_text = f"between 0% and {_SHARE_MAX}%" if is_share else "at least 0"
            reading.report_problem("E502", (*path, name), f"{name} is {bounds_text}")
    return _clamp_failure(failure)


def _clamp_failure(failure: Failure) -> Failure:
    return msgspec.structs.replace(
        failure,
        max_failed=_clamp_bound(failure.max_failed),
        min_success=_clamp_bound(failure.min_success),
    )


def _clamp_bound(bound: int | str | None) -> int | str | None:
    if isinstance(bound, str):
        share = coercion.coerce_number(bound[:-1]) or 0
        within = min(max(share, 0), _SHARE_MAX)
        return bound if within == share else f"{within}%"
    return bound if bound is None else max(bound, 0)


def read_cursor_options(reading: DocumentReader, value: Any, path: Path) -> CursorOptions | None:
    """Read how often a cursor asks, and how long it waits for an answer."""
    options: CursorOptions | None = reading.read_struct(CursorOptions, value, path)
    if options is None:
        return None
    interval, timeout = options.poll_interval_ms, options.statement_timeout_s
    if not isinstance(interval, str) and interval < 0:
        reading.report_problem(
            "E502", (*path, "poll_interval_ms"), "poll_interval_ms is at least 0"
        )
        options = msgspec.structs.replace(options, poll_interval_ms=0)
    if not isinstance(timeout, str) and timeout <= 0:
        reading.report_problem(
            "E502", (*path, "statement_timeout_s"), "statement_timeout_s is greater than 0"
        )
        options = msgspec.structs.replace(options, statement_timeout_s=1)
    return options


def clamp_loop(reading: DocumentReader, loop: Loop, path: Path) -> Loop:
    """Clamp what a loop says of attempts, and the failure policy that it took from its step."""
    spec = loop.spec
    if spec.max_attempts < 1:
        reading.report_problem(
            "E502", (*path, "spec", "max_attempts"), "max_attempts is at least 1"
        )
        spec = msgspec.structs.replace(spec, max_attempts=1)
    if spec.policy.failure is not None:
        policy = msgspec.structs.replace(spec.policy, failure=_clamp_failure(spec.policy.failure))
        spec = msgspec.structs.replace(spec, policy=policy)
    return msgspec.structs.replace(loop, spec=spec)


FANOUT = "fanout"
ENGINES = ("auto", "io", "spark")

_MODES: tuple[str, ...] = get_args(LoopMode)
_USED = {
    "chunked": frozenset({"frame", "chunk_size"}),
    "cursor": frozenset({"frame"}),
    FANOUT: frozenset({"frame", "fanout"}),
}
# Which mode cuts a collection as a block says.
_MODE_FOR = {"frame": "chunked", "chunk_size": "chunked", "fanout": FANOUT}
_INSTEAD = {
    ("cursor", "chunk_size"): "write frame: {max_rows: …}",
    ("cursor", "fanout"): "write frame: {max_rows: …}",
    (FANOUT, "chunk_size"): "write fanout: {shard_size: …}",
}


def check_default_mode(reading: DocumentReader, value: Any, path: Path) -> None:
    """Report a `loop_mode` that sets no mode: of a step, or of all steps."""
    if value in (None, FANOUT):
        return
    if value in _MODES:
        reading.report_problem(
            "E103",
            path,
            f"loop_mode: {value} has no effect, only {FANOUT} has",
            hint=f"write mode: {value} in the spec of the loop",
            severity=Severity.ERROR if reading.level is Level.STRICT else Severity.WARNING,
        )
        return
    hint = reading.suggest_word(value, _MODES) if isinstance(value, str) else None
    reading.report_problem(
        "E104", path, f"expected {FANOUT}, found {describe_value(value)}", hint=hint
    )


def check_frame_engine(reading: DocumentReader, value: Any, path: Path) -> None:
    """Report an engine of frames that is none."""
    if value is None or value in ENGINES or coercion.is_template(value):
        return
    hint = reading.suggest_word(value, ENGINES) if isinstance(value, str) else None
    reading.report_problem(
        "E104",
        path,
        f"expected one of {', '.join(ENGINES)}, found {describe_value(value)}",
        hint=hint,
    )


def check_mode_blocks(reading: DocumentReader, loop: Loop, path: Path) -> None:
    """Report what is written for another mode than the loop's."""
    mode = loop.spec.mode
    for name, suited_mode in _MODE_FOR.items():
        inner_path = (*path, "spec", name)
        written_block = reading.find_written(inner_path)
        if written_block is None or name in _USED.get(mode, ()):
            continue
        reading.report_problem(
            "E502",
            inner_path,
            f"'{name}' has no effect in mode {mode}",
            hint=_INSTEAD.get((mode, name), f"write mode: {suited_mode}"),
            of_key=True,
            severity=Severity.WARNING,
        )
