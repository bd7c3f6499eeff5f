"""The JSON Schema of the short forms: `next` as a name or a list, `retry` and `pagination`."""

from typing import Any

Schema = dict[str, Any]

_ANYTHING: Schema = {}
_CONDITION: Schema = {"type": ["string", "boolean"]}
_COUNT: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_DURATION: Schema = {"anyOf": [{"type": "number"}, {"type": "string"}]}
_KINDS: Schema = {
    "anyOf": [{"type": "array", "items": {"type": ["string", "integer"]}}, {"type": "string"}]
}
_STATUSES: Schema = {
    "anyOf": [
        {"type": "array", "items": {"type": ["integer", "string"]}},
        {"type": ["integer", "string"]},
    ]
}
_CHANGES: Schema = {"type": "object"}
_ON_BOUND: Schema = {"enum": ["fail", "stop"]}
_OLDER: Schema = {"deprecated": True, "description": "Another spelling."}
_BACKOFFS = ("none", "fixed", "linear", "exponential")

_RETRY: dict[str, Schema] = {
    "max_attempts": _COUNT,
    "when": _CONDITION,
    "retry_on": _KINDS,
    "retry_on_status": _STATUSES,
    "delay": _DURATION,
    "backoff": {"anyOf": [{"enum": [*_BACKOFFS]}, {"type": ["number", "string"]}]},
    "max_delay": _DURATION,
    "jitter": {"enum": ["full", "none"]},
    "next_call": _CHANGES,
    "collect": _ANYTHING,
    "max_pages": _COUNT,
    "on_bound": _ON_BOUND,
    **dict.fromkeys(
        ("then", "backoff_seconds", "backoff_multiplier", "initial_delay", "delay_seconds"), _OLDER
    ),
    **dict.fromkeys(("sink", "save", "expr", "cond", "condition"), _OLDER),
}
_PAGINATION: dict[str, Schema] = {
    "continue_while": _CONDITION,
    "next_page": _CHANGES,
    "merge_path": {"type": "string"},
    "merge_strategy": {"type": "string"},
    "into": {"type": "string"},
    "max_pages": _COUNT,
    "max_bytes": _COUNT,
    "delay": _DURATION,
    "on_bound": _ON_BOUND,
    "max_iterations": _OLDER,
}
DEFINITIONS: dict[str, Schema] = {
    "Retry": {
        "title": "Retry",
        "description": "When a task is tried again, or called again for more.",
        "type": "object",
        "properties": _RETRY,
        "additionalProperties": False,
    },
    "Pagination": {
        "title": "Pagination",
        "description": "How the pages of an API are fetched and collected.",
        "type": "object",
        "properties": _PAGINATION,
        "additionalProperties": False,
    },
}
_ONE = {"$ref": "#/$defs/Retry"}
RETRY: Schema = {
    "anyOf": [
        {"type": ["boolean", "integer", "null"]},
        _ONE,
        {"type": "array", "items": _ONE},
    ]
}
PAGINATION: Schema = {"$ref": "#/$defs/Pagination"}


def allow_step_names(following: Schema) -> Schema:
    """Let `next` be a step's name, or a list of names and arcs, beside its long form."""
    name: Schema = {"type": ["string", "number", "boolean"]}
    arcs: Schema = {"type": "array", "items": {"anyOf": [name, {"$ref": "#/$defs/Arc"}]}}
    return {**following, "anyOf": [*following["anyOf"], name, arcs]}
