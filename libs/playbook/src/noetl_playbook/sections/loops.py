"""Reads loops, cursors, frames, fan-outs and reduces, and states their defaults."""

import re
from typing import Any

import msgspec

from noetl_playbook.model import coercion, language_names
from noetl_playbook.model.playbook import (
    Cursor,
    Failure,
    FanoutOpts,
    Frame,
    Loop,
    LoopPolicy,
    LoopSpec,
    Reduce,
    ReduceSpec,
)
from noetl_playbook.source.document_reader import DocumentReader, describe_value
from noetl_playbook.source.problems import Path, Severity

MAX_IN_FLIGHT_MAX = 10_000
CHUNK_ROWS_DEFAULT = 100
FRAME_ALIASES = {"size": "max_rows", "memory_bytes": "max_bytes", "parallelism": "row_concurrency"}
FANOUT_ALIASES = {"max_job_retries": "max_shard_retries"}

_MAX_IN_FLIGHT_DEFAULT = {"sequential": 1, "parallel": 10, "chunked": 1, "cursor": 1, "fanout": 64}
_FRAMED = ("chunked", "cursor", "fanout")
_RETURNS_ROWS = re.compile(r"\b(?:returning|select)\b", re.IGNORECASE)


def read_loop(
    reading: DocumentReader, value: Any, path: Path, *, step_spec: dict[str, Any], loop_mode: Any
) -> Loop | None:
    """Read a step's loop; the step may carry its fan-out options and mode."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "a loop", value)
        return None
    fields = reading.read_fields(Loop, value, path, other=("spec",))
    _check_loop_source(reading, value, path)
    spec = _read_loop_spec(
        reading,
        value,
        path,
        step_spec=step_spec,
        loop_mode=loop_mode,
        is_cursor=value.get("cursor") is not None,
    )
    iterator = fields.get("iterator")
    if iterator is None:
        reading.report_problem(
            "E501", path, "a loop needs 'iterator'", hint="name the current item"
        )
        return None
    if not language_names.is_identifier(iterator):
        reading.report_problem(
            "E201", (*path, "iterator"), f"{describe_value(iterator)} is not a variable name"
        )
    fields["spec"] = spec
    loop: Loop | None = reading.build_struct(Loop, fields, path)
    return loop


def is_default_in_flight(spec: LoopSpec) -> bool:
    """Tell whether nobody has to have written how many units of a loop run at once.

    The canonical form states defaults: a number that was written and equals one counts as it.
    """
    # A parallel loop with a frame is a chunked one.
    modes = ("chunked", "parallel") if spec.mode == "chunked" else (spec.mode,)
    return spec.max_in_flight in [_MAX_IN_FLIGHT_DEFAULT[mode] for mode in modes]


def _check_loop_source(reading: DocumentReader, raw: dict[str, Any], path: Path) -> None:
    has_cursor = raw.get("cursor") is not None
    if "in" in raw and has_cursor:
        reading.report_problem("E501", path, "a loop has either 'in' or 'cursor'")
    elif "in" not in raw and not has_cursor:
        reading.report_problem("E501", path, "a loop needs 'in' or 'cursor'")


def _read_loop_spec(
    reading: DocumentReader,
    raw: dict[str, Any],
    path: Path,
    *,
    step_spec: dict[str, Any],
    loop_mode: Any,
    is_cursor: bool,
) -> LoopSpec:
    spec_path = (*path, "spec")
    spec = dict(reading.read_mapping(raw.get("spec"), spec_path) or {})
    if "fanout" not in spec and step_spec.get("fanout") is not None:
        spec["fanout"] = step_spec["fanout"]
        reading.record_move((*path[:-1], "spec", "fanout"), (*spec_path, "fanout"))
    mode = _read_loop_mode(reading, spec, spec_path, loop_mode=loop_mode, is_cursor=is_cursor)
    fields = reading.read_fields(LoopSpec, spec, spec_path, other=("mode", "policy"))
    fields["mode"] = mode
    fields["policy"] = _read_loop_policy(
        reading, spec, spec_path, step_spec=step_spec, fanout=fields.get("fanout"), mode=mode
    )
    _default_numbers(reading, fields, spec_path, mode=mode)
    _default_frame(fields, spec, mode=mode)
    fields.setdefault("collect", "none" if mode == "cursor" else "all")
    return LoopSpec(**fields)


def _read_loop_mode(
    reading: DocumentReader, spec: dict[str, Any], path: Path, *, loop_mode: Any, is_cursor: bool
) -> str:
    value = spec.get("mode")
    if value is None and loop_mode == "fanout" and not is_cursor:
        return "fanout"
    if value == "async":
        reading.report_problem(
            "W902",
            (*path, "mode"),
            "'async' is an older name of 'parallel'",
            replacement="mode: parallel",
        )
        value = "parallel"
    default = "cursor" if is_cursor else "sequential"
    if value is None:
        mode = default
    else:
        spec_fields = reading.read_fields(LoopSpec, {"mode": value}, path)
        mode = spec_fields.get("mode", default)
    if (mode == "cursor") != is_cursor:
        path = (*path, "mode")
        message = (
            "'in' cannot be read in mode cursor"
            if mode == "cursor"
            else (f"a cursor cannot be read in mode {mode}")
        )
        reading.report_problem("E501", path, message)
        mode = default
    if mode == "parallel" and spec.get("frame") is not None:
        spec.setdefault("max_in_flight", _MAX_IN_FLIGHT_DEFAULT[mode])
        return "chunked"
    return mode


def _read_loop_policy(
    reading: DocumentReader,
    spec: dict[str, Any],
    path: Path,
    *,
    step_spec: dict[str, Any],
    fanout: FanoutOpts | None,
    mode: str,
) -> LoopPolicy:
    """Read the loop's policy and settle which failure policy governs it."""
    value = spec.get("policy")
    policy: LoopPolicy | None = (
        LoopPolicy() if value is None else reading.read_struct(LoopPolicy, value, (*path, "policy"))
    )
    policy = policy or LoopPolicy()
    if policy.failure is not None:
        return policy
    step_policy = step_spec.get("policy")
    of_step = step_policy.get("failure") if isinstance(step_policy, dict) else None
    if isinstance(of_step, dict):
        failure = reading.read_struct(Failure, of_step, (*path[:-2], "spec", "policy", "failure"))
    elif fanout is not None and fanout.fail_fast:
        failure = Failure(mode="fail_fast")
    elif mode == "cursor" or (fanout is not None and fanout.allow_partial):
        failure = Failure(mode="best_effort")
    else:
        failure = Failure(mode="drain")
    return msgspec.structs.replace(policy, failure=failure or Failure(mode="drain"))


def _default_numbers(
    reading: DocumentReader, fields: dict[str, Any], path: Path, *, mode: str
) -> None:
    in_flight = fields.get("max_in_flight")
    if in_flight is None:
        fields["max_in_flight"] = _MAX_IN_FLIGHT_DEFAULT[mode]
    elif isinstance(in_flight, int) and not 1 <= in_flight <= MAX_IN_FLIGHT_MAX:
        reading.report_problem(
            "E604", (*path, "max_in_flight"), f"max_in_flight is between 1 and {MAX_IN_FLIGHT_MAX}"
        )
    elif mode == "sequential" and in_flight != 1:
        reading.report_problem(
            "E502",
            (*path, "max_in_flight"),
            "max_in_flight has no effect in mode sequential",
            hint="use mode: parallel",
            severity=Severity.WARNING,
        )
        fields["max_in_flight"] = 1
    chunk = fields.get("chunk_size")
    if isinstance(chunk, int) and chunk < 1:
        reading.report_problem("E502", (*path, "chunk_size"), "chunk_size is at least 1")
        fields["chunk_size"] = 1


def _default_frame(fields: dict[str, Any], spec: dict[str, Any], *, mode: str) -> None:
    if mode not in _FRAMED:
        fields.pop("frame", None)
        return
    frame = fields.get("frame") or Frame()
    written_frame = spec.get("frame") if isinstance(spec.get("frame"), dict) else {}
    if (
        mode == "chunked"
        and "max_rows" not in (written_frame or {})
        and "size" not in (written_frame or {})
    ):
        frame = msgspec.structs.replace(
            frame, max_rows=fields.get("chunk_size") or CHUNK_ROWS_DEFAULT
        )
    fields["frame"] = frame
    if mode == "fanout":
        fields["fanout"] = fields.get("fanout") or FanoutOpts()


def read_frame(reading: DocumentReader, value: Any, path: Path) -> Frame | None:
    """Read a frame policy; numbers out of range are clamped."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "a frame policy", value)
        return None
    raw = _resolve_aliases(reading, value, path, FRAME_ALIASES)
    if "duration_ms" in raw:
        reading.record_move((*path, "duration_ms"), (*path, "max_seconds"))
        raw.setdefault("max_seconds", _read_milliseconds(raw.pop("duration_ms")))
    fields = reading.read_fields(Frame, raw, path)
    for name in (
        "max_rows",
        "max_seconds",
        "max_bytes",
        "lease_seconds",
        "heartbeat_seconds",
        "row_concurrency",
        "max_attempts",
    ):
        number = fields.get(name)
        if isinstance(number, int | float) and number <= 0:
            reading.report_problem("E502", (*path, name), f"{name} is greater than 0")
            fields[name] = 1
    frame = Frame(**fields)
    return _clamp_heartbeat(reading, frame, path, is_written="heartbeat_seconds" in fields)


def _read_milliseconds(value: Any) -> Any:
    """Write a number of milliseconds as a duration; what a template gives gets the unit as well."""
    if coercion.is_template(value):
        return f"{value.strip()}ms"
    number = coercion.coerce_number(value)
    return value if number is None else number / 1000


def _resolve_aliases(
    reading: DocumentReader, value: dict[str, Any], path: Path, aliases: dict[str, str]
) -> dict[str, Any]:
    """Spell aliases, which are not deprecated, as the field's name."""
    canonical_values: dict[str, Any] = {}
    for key, item in value.items():
        canonical = aliases.get(key, key)
        if canonical != key:
            reading.record_move((*path, key), (*path, canonical))
        if canonical in canonical_values:
            reading.report_problem(
                "E104", (*path, key), f"'{canonical}' is written twice", of_key=True
            )
        canonical_values[canonical] = item
    return canonical_values


def _clamp_heartbeat(
    reading: DocumentReader, frame: Frame, path: Path, *, is_written: bool
) -> Frame:
    lease, heartbeat = frame.lease_seconds, frame.heartbeat_seconds
    if isinstance(lease, str) or isinstance(heartbeat, str) or heartbeat <= lease / 2:
        return frame
    if is_written:
        reading.report_problem(
            "E502",
            (*path, "heartbeat_seconds"),
            f"a heartbeat of {heartbeat} s is too long for a lease of {lease} s",
            hint=f"at most {lease / 2:g}",
        )
    return msgspec.structs.replace(frame, heartbeat_seconds=lease / 3)


def read_fanout(reading: DocumentReader, value: Any, path: Path) -> FanoutOpts | None:
    """Read fan-out options."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "fan-out options", value)
        return None
    raw = _resolve_aliases(reading, value, path, FANOUT_ALIASES)
    fanout: FanoutOpts | None = reading.read_struct(FanoutOpts, raw, path)
    if fanout is None:
        return None
    for name, minimum in (("partitions", 1), ("shard_size", 1), ("max_shard_retries", 0)):
        value = getattr(fanout, name)
        if isinstance(value, int | float) and value < minimum:
            reading.report_problem("E502", (*path, name), f"{name} is at least {minimum}")
            fanout = msgspec.structs.replace(fanout, **{name: minimum})
    return fanout


def read_cursor(reading: DocumentReader, value: Any, path: Path) -> Cursor | None:
    """Read a cursor; its claim must return the claimed rows."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "a cursor", value)
        return None
    if value.get("claim") is None:
        reading.report_problem("E501", path, "a cursor needs 'claim'")
        return None
    cursor: Cursor | None = reading.read_struct(Cursor, value, path)
    # A claim that a template makes as a whole shows itself at run time.
    if (
        cursor is not None
        and _RETURNS_ROWS.search(cursor.claim) is None
        and _has_literal_text(cursor.claim)
    ):
        reading.report_problem(
            "E503", (*path, "claim"), "the claim returns no rows", hint="end it with RETURNING"
        )
    return cursor


def _has_literal_text(claim: str) -> bool:
    return not (claim.strip().startswith("{{") and claim.strip().endswith("}}"))


def read_reduce(reading: DocumentReader, value: Any, path: Path) -> Reduce | None:
    """Read a reduce stage."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "a reduce stage", value)
        return None
    reduce: Reduce | None = reading.read_struct(Reduce, value, path)
    if reduce is not None and not language_names.is_identifier(reduce.iterator):
        reading.report_problem(
            "E201", (*path, "iterator"), f"'{reduce.iterator}' is not a variable name"
        )
    if reduce is not None and reduce.spec.start == "eager" and reduce.spec.mode != "tree":
        reading.report_problem("E104", (*path, "spec", "start"), "eager needs mode tree")
        return msgspec.structs.replace(reduce, spec=ReduceSpec(frame=reduce.spec.frame))
    return reduce
