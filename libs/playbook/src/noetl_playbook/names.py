"""Which names the language allows, and which it keeps for itself."""

import re

STEP_NAME_CHARACTERS_MAX = 200

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TASK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_EVENT_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_TARGET = re.compile(r"(?:(ctx|iter|step)\.)?([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)\Z")

FIXED_NAMES = frozenset(
    {
        *("workload", "ctx", "steps", "iter", "loop_index", "loop", "frame", "fanin", "chunk"),
        *("output", "_prev", "_task", "_attempt", "results", "event", "execution_id"),
        *("catalog_id", "job", "keychain", "env"),
        *("__frame_max_rows", "__frame_policy", "__worker_slot_id", "__frame_id"),
        "__frame_index",
    }
)
LAST_NAMES = frozenset(
    {
        *("parent_execution_id", "input", "result", "response", "error", "outcome", "payload"),
        *("args", "vars"),
    }
)
GLOBAL_NAMES = frozenset(
    {"now", "today", "uuid4", "range", "dict", "timedelta", "namespace", "token"}
)
# What a scope holds the function behind `encrypt_secret` under; no source can spell it.
SEAL = "\x00seal"


def is_identifier(text: str) -> bool:
    """Tell whether text may name a variable or an iterator."""
    return _IDENTIFIER.match(text) is not None


def is_task_name(text: str) -> bool:
    """Tell whether text may name a task."""
    return _TASK_NAME.match(text) is not None


def is_step_name(text: str) -> bool:
    """Tell whether text may name a step."""
    return 0 < len(text) <= STEP_NAME_CHARACTERS_MAX and text.isprintable()


def is_event_name(text: str) -> bool:
    """Tell whether text may follow `custom.` in the type of an event."""
    return _EVENT_NAME.fullmatch(text) is not None


def split_target(key: str) -> tuple[str | None, str] | None:
    """Split a `set` key into its scope and its dotted name; `None` when it is neither."""
    match = _TARGET.match(key)
    if match is None or (match[1] is None and match[2] in ("ctx", "iter", "step")):
        return None
    return match[1], match[2]
