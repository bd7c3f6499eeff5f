"""Words of a loop that mean nothing, and blocks that its mode does not use."""

from typing import Any, get_args

from noetl_playbook import coercion
from noetl_playbook.model import Loop, LoopMode
from noetl_playbook.problems import Level, Path, Severity
from noetl_playbook.reading import Reading, shown

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


def check_default_mode(reading: Reading, value: Any, path: Path) -> None:
    """Report a `loop_mode` that sets no mode: of a step, or of all steps."""
    if value in (None, FANOUT):
        return
    if value in _MODES:
        reading.report(
            "E103",
            path,
            f"loop_mode: {value} has no effect, only {FANOUT} has",
            hint=f"write mode: {value} in the spec of the loop",
            severity=Severity.ERROR if reading.level is Level.STRICT else Severity.WARNING,
        )
        return
    hint = reading.hint(value, _MODES) if isinstance(value, str) else None
    reading.report("E104", path, f"expected {FANOUT}, found {shown(value)}", hint=hint)


def check_engine(reading: Reading, value: Any, path: Path) -> None:
    """Report an engine of frames that is none."""
    if value is None or value in ENGINES or coercion.is_template(value):
        return
    hint = reading.hint(value, ENGINES) if isinstance(value, str) else None
    reading.report(
        "E104", path, f"expected one of {', '.join(ENGINES)}, found {shown(value)}", hint=hint
    )


def check_blocks(reading: Reading, loop: Loop, path: Path) -> None:
    """Report what is written for another mode than the loop's."""
    mode = loop.spec.mode
    for name, suited in _MODE_FOR.items():
        here = (*path, "spec", name)
        written = reading.written(here)
        if written is None or name in _USED.get(mode, ()):
            continue
        reading.report(
            "E502",
            here,
            f"'{name}' has no effect in mode {mode}",
            hint=_INSTEAD.get((mode, name), f"write mode: {suited}"),
            of_key=True,
            severity=Severity.WARNING,
        )
