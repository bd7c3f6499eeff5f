"""What the fields of each tool kind hold: checked where the value is written, not a template."""

from collections.abc import Callable
from typing import Any

import msgspec

from noetl_playbook import coercion
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading, shown


class FieldType(msgspec.Struct, frozen=True, kw_only=True):
    """What a field accepts; `choices` are compared without regard to case."""

    expected: str
    accepts: Callable[[Any], bool]
    choices: tuple[str, ...] = ()
    schema: dict[str, Any]


def _one_of(*choices: str) -> FieldType:
    lowered = frozenset(choice.lower() for choice in choices)
    spellings = sorted({*choices, *lowered})
    return FieldType(
        expected=f"one of {', '.join(choices)}",
        accepts=lambda value: isinstance(value, str) and value.lower() in lowered,
        choices=choices,
        schema={"anyOf": [{"enum": spellings}, {"type": "string", "pattern": r"\{\{|\{%"}]},
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


TEXT = FieldType(expected="text", accepts=_is_text, schema={"type": ["string", "number"]})
FLAG = FieldType(
    expected="true or false",
    accepts=lambda value: coercion.boolean(value) is not None,
    schema={"type": ["boolean", "string", "integer"]},
)
WHOLE = FieldType(
    expected="a whole number",
    accepts=lambda value: coercion.integer(value) is not None,
    schema={"type": ["integer", "string"]},
)
DURATION = FieldType(
    expected="a duration (seconds, or 500ms, 30s, 5m, 2h, 1d)",
    accepts=lambda value: coercion.duration_s(value) is not None,
    schema={"type": ["number", "string"]},
)
MAPPING = FieldType(
    expected="a mapping",
    accepts=lambda value: isinstance(value, dict),
    schema={"type": ["object", "string"]},
)
LISTED = FieldType(
    expected="a list",
    accepts=lambda value: isinstance(value, list),
    schema={"type": ["array", "string"]},
)
NAMED_OR_LISTED = FieldType(
    expected="a list or a mapping",
    accepts=lambda value: isinstance(value, dict | list),
    schema={"type": ["array", "object", "string"]},
)
TEXT_OR_LISTED = FieldType(
    expected="text or a list of texts",
    accepts=lambda value: (
        _is_text(value) or (isinstance(value, list) and all(_is_text(each) for each in value))
    ),
    schema={"type": ["string", "array"]},
)

_SQL = {
    "query": TEXT_OR_LISTED,
    "query_b64": TEXT_OR_LISTED,
    "params": NAMED_OR_LISTED,
}
FIELD_TYPES: dict[str, dict[str, FieldType]] = {
    "http": {
        "method": _one_of("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"),
        "url": TEXT,
        "params": MAPPING,
        "headers": MAPPING,
        "form": MAPPING,
        "files": MAPPING,
        "response_type": _one_of("auto", "json", "text", "bytes", "ndjson"),
        "verify_ssl": FLAG,
        "follow_redirects": FLAG,
    },
    "postgres": {
        **_SQL,
        "autocommit": FLAG,
        "pool": MAPPING,
        "statement_timeout": DURATION,
    },
    "duckdb": {**_SQL, "database": TEXT, "inputs": MAPPING},
    "python": {"code": TEXT, "code_b64": TEXT, "libs": NAMED_OR_LISTED, "deps": MAPPING},
    "shell": {"cmds": TEXT_OR_LISTED, "env": MAPPING, "cwd": TEXT, "shell": TEXT},
    "spark": {
        "sql": TEXT_OR_LISTED,
        "code": TEXT,
        "inputs": MAPPING,
        "params": MAPPING,
        "session": MAPPING,
    },
    "playbook": {"path": TEXT, "version": TEXT, "return_step": TEXT, "wait": FLAG},
    "workbook": {"task": TEXT},
    "artifact": {"action": _one_of("get", "put", "delete"), "uri": TEXT},
    "transfer": {
        "source": MAPPING,
        "target": MAPPING,
        "mapping": MAPPING,
        "mode": _one_of("append", "insert", "replace", "upsert"),
        "chunk_size": WHOLE,
        "engine": _one_of("auto", "io", "spark"),
    },
    "nats": {
        "operation": _one_of(
            *("kv_get", "kv_put", "kv_delete", "kv_keys", "kv_purge"),
            *("js_publish", "js_get_msg", "js_stream_info"),
            *("object_put", "object_get", "object_delete", "object_list"),
        ),
        "bucket": TEXT,
        "key": TEXT,
        "subject": TEXT,
        "headers": MAPPING,
        "ttl": DURATION,
        "seq": WHOLE,
    },
    "container": {
        "image": TEXT,
        "command": TEXT_OR_LISTED,
        "args": TEXT_OR_LISTED,
        "env": NAMED_OR_LISTED,
        "files": LISTED,
        "namespace": TEXT,
        "service_account": TEXT,
        "resources": MAPPING,
        "backoff_limit": WHOLE,
        "restart_policy": _one_of("Never", "OnFailure"),
        "ttl_seconds_after_finished": DURATION,
    },
    "external": {
        "mode": _one_of("callback", "signal", "approval"),
        "submit": MAPPING,
        "cancel": MAPPING,
        "correlation_key": TEXT,
        "on_timeout": _one_of("fail", "continue"),
        "schema": NAMED_OR_LISTED,
        "title": TEXT,
        "description": TEXT,
        "assignees": LISTED,
        "options": LISTED,
    },
}


def check(reading: Reading, kind: str, name: str, value: Any, path: Path) -> None:
    """Report a field whose value is neither a template nor of the field's type."""
    declared = FIELD_TYPES.get(kind, {}).get(name)
    if declared is None or value is None or coercion.is_template(value) or declared.accepts(value):
        return
    is_word = declared.choices and isinstance(value, str)
    reading.report(
        "E104",
        path,
        f"'{name}' takes {declared.expected}, found {shown(value)}",
        hint=reading.hint(value, declared.choices) if is_word else None,
    )
