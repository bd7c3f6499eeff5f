"""Names of the language: which are allowed, which are reserved, and the older names of events."""

import re
from typing import Final

from noetl_contracts.written_names import find_name_problem

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
        *("args", "vars", "increment"),
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
    return len(text) <= STEP_NAME_CHARACTERS_MAX and find_name_problem(text) is None


def is_event_name(text: str) -> bool:
    """Tell whether text may follow `custom.` in the type of an event."""
    return _EVENT_NAME.fullmatch(text) is not None


def split_target(key: str) -> tuple[str | None, str] | None:
    """Split a `set` key into its scope and its dotted name; `None` when it is neither."""
    match = _TARGET.match(key)
    if match is None or (match[1] is None and match[2] in ("ctx", "iter", "step")):
        return None
    return match[1], match[2]


_STATUSES = {
    **dict.fromkeys(("ok", "success", "completed", "done"), "ok"),
    **dict.fromkeys(("error", "failed", "failure"), "error"),
}

DONE: Final = "call.done"
ERROR: Final = "call.error"
LOOP_DONE: Final = "loop.done"
LOOP_FAILED: Final = "loop.failed"
PARTIAL: Final = "call.partial"

ALSO_KNOWN_AS: dict[str, frozenset[str]] = {
    DONE: frozenset({"step.exit", "step.done", "call.success"}),
    ERROR: frozenset({"step.failed", "step.error"}),
    LOOP_DONE: frozenset({DONE, "step.exit", "step.done"}),
    LOOP_FAILED: frozenset({ERROR, "step.failed", "step.error"}),
    PARTIAL: frozenset(),
}
BOUNDARY_EVENTS = frozenset(ALSO_KNOWN_AS).union(*ALSO_KNOWN_AS.values())


class AliasedText(str):
    """Text that equals its aliases too; it leaves a template as itself."""

    __slots__ = ("_equals",)
    _equals: frozenset[str]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and (str.__eq__(self, other) or self._is_alias(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Set and mapping lookups go by the word itself.
    __hash__ = str.__hash__

    def _is_alias(self, other: str) -> bool:
        return other in self._equals


class StatusText(AliasedText):
    """`ok` or `error`; equal to every word for the same outcome, ignoring case."""

    __slots__ = ()

    def _is_alias(self, other: str) -> bool:
        return _STATUSES.get(other.lower()) == str.__str__(self)


OK: Final = StatusText("ok")
FAILED: Final = StatusText("error")


def alias_event_name(name: str) -> AliasedText:
    """Make the name of a boundary event, equal to its aliases."""
    text = AliasedText(name)
    text._equals = ALSO_KNOWN_AS.get(name, frozenset())  # noqa: SLF001 (own kind)
    return text
