"""What the fields of each tool kind hold: checked where the value is written, not a template."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from noetl_playbook.model import coercion, streams
from noetl_playbook.source.declared_scalars import DURATION_EXPECTED, is_infinite
from noetl_playbook.source.document_reader import DocumentReader, describe_value
from noetl_playbook.source.problems import Path


class FieldType(msgspec.Struct, frozen=True, kw_only=True):
    """What a field accepts; `choices` are compared without regard to case."""

    expected: str
    accepts: Callable[[Any], bool]
    choices: tuple[str, ...] = ()
    schema: dict[str, Any]


def build_choice_type(*choices: str) -> FieldType:
    """Accept one of some words in any case."""
    lowered = frozenset(choice.lower() for choice in choices)
    spellings = sorted({*choices, *lowered})
    return FieldType(
        expected=f"one of {', '.join(choices)}",
        accepts=lambda value: isinstance(value, str) and value.lower() in lowered,
        choices=choices,
        schema={"anyOf": [{"enum": spellings}, {"type": "string", "pattern": r"\{\{|\{%"}]},
    )


def build_word_type(*choices: str) -> FieldType:
    """Accept one of some words as they are spelled."""
    return FieldType(
        expected=f"one of {', '.join(choices)}",
        accepts=lambda value: isinstance(value, str) and value in choices,
        choices=choices,
        schema={"anyOf": [{"enum": [*choices]}, {"type": "string", "pattern": r"\{\{|\{%"}]},
    )


def build_whole_number_type(minimum: int, maximum: int | None = None) -> FieldType:
    """Accept a whole number within bounds."""

    def accepts_number(value: Any) -> bool:
        number = coercion.coerce_integer(value)
        return number is not None and number >= minimum and (maximum is None or number <= maximum)

    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return FieldType(
        expected=f"a whole number {bounds}",
        accepts=accepts_number,
        schema={"type": ["integer", "string"]},
    )


def _is_duration(value: Any) -> bool:
    duration_s = coercion.coerce_duration_s(value)
    return duration_s is not None and duration_s >= 0 and not is_infinite(duration_s)


def _is_text(value: Any) -> bool:
    return isinstance(value, str | int | float)


TEXT = FieldType(
    expected="text", accepts=_is_text, schema={"type": ["string", "number", "boolean"]}
)
FLAG = FieldType(
    expected="true or false",
    accepts=lambda value: coercion.coerce_boolean(value) is not None,
    schema={"type": ["boolean", "string", "integer"]},
)
DURATION = FieldType(
    expected=DURATION_EXPECTED, accepts=_is_duration, schema={"type": ["number", "string"]}
)
DURATION_ABOVE_0 = FieldType(
    expected="a duration above 0",
    accepts=lambda value: _is_duration(value) and coercion.coerce_duration_s(value) != 0,
    schema={"type": ["number", "string"]},
)
ANYTHING = FieldType(expected="any value", accepts=lambda _: True, schema={})
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
        _is_text(value) or (isinstance(value, list) and all(_is_text(item) for item in value))
    ),
    schema={"type": ["string", "number", "boolean", "array"]},
)

_SCRIPT = {"script": MAPPING}
_SQL = {
    "query": TEXT_OR_LISTED,
    "query_b64": TEXT_OR_LISTED,
    "params": NAMED_OR_LISTED,
}
FIELD_TYPES: dict[str, dict[str, FieldType]] = {
    "http": {
        "method": build_choice_type("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"),
        "url": TEXT,
        "params": MAPPING,
        "headers": MAPPING,
        "form": MAPPING,
        "files": MAPPING,
        "response_type": build_choice_type("auto", "json", "text", "bytes", "ndjson"),
        "verify_ssl": FLAG,
        "follow_redirects": FLAG,
    },
    "postgres": {
        **_SQL,
        "autocommit": FLAG,
        "pool": MAPPING,
        "statement_timeout": DURATION_ABOVE_0,
        **_SCRIPT,
    },
    "duckdb": {**_SQL, "database": TEXT, "inputs": MAPPING, **_SCRIPT},
    "python": {
        "code": TEXT,
        "code_b64": TEXT,
        "libs": NAMED_OR_LISTED,
        "deps": MAPPING,
        "requirements": TEXT_OR_LISTED,
        "network": FLAG,
        **_SCRIPT,
    },
    "shell": {"cmds": TEXT_OR_LISTED, "env": MAPPING, "cwd": TEXT, "shell": TEXT, **_SCRIPT},
    "spark": {
        "sql": TEXT_OR_LISTED,
        "code": TEXT,
        "inputs": MAPPING,
        "params": MAPPING,
        "session": MAPPING,
        "explain": FLAG,
        "event_log": FLAG,
        "mode": build_word_type(*streams.MODES),
        "follow": MAPPING,
        **_SCRIPT,
    },
    "playbook": {"path": TEXT, "version": TEXT, "return_step": TEXT, "wait": FLAG},
    "workbook": {"task": TEXT},
    "artifact": {"action": build_choice_type("get", "put", "delete"), "uri": TEXT},
    "transfer": {
        "source": MAPPING,
        "target": MAPPING,
        "mapping": MAPPING,
        "mode": build_choice_type("append", "insert", "replace", "upsert", "merge"),
        "chunk_size": build_whole_number_type(1, 100_000),
        "engine": build_choice_type("auto", "io", "spark"),
    },
    "nats": {
        "operation": build_choice_type(
            *("kv_get", "kv_put", "kv_delete", "kv_keys", "kv_purge"),
            *("js_publish", "js_get_msg", "js_stream_info"),
            *("object_put", "object_get", "object_delete", "object_list"),
        ),
        "bucket": TEXT,
        "key": TEXT,
        "subject": TEXT,
        "stream": TEXT,
        "name": TEXT,
        "headers": MAPPING,
        "ttl": DURATION,
        "seq": build_whole_number_type(1),
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
        "backoff_limit": build_whole_number_type(0),
        "restart_policy": build_choice_type("Never", "OnFailure"),
        "ttl_seconds_after_finished": DURATION,
        "runtime": MAPPING,
        "job": MAPPING,
        "network": FLAG,
        **_SCRIPT,
    },
    "external": {
        "mode": build_choice_type("callback", "signal", "approval"),
        "submit": MAPPING,
        "cancel": MAPPING,
        "correlation_key": TEXT,
        "on_timeout": build_choice_type("fail", "continue"),
        "schema": NAMED_OR_LISTED,
        "title": TEXT,
        "description": TEXT,
        "assignees": LISTED,
        "options": LISTED,
        "four_eyes": FLAG,
    },
}


def check_field(reading: DocumentReader, kind: str, name: str, value: Any, path: Path) -> None:
    """Report a field of a kind whose value is neither a template nor of the field's type."""
    field_type = FIELD_TYPES.get(kind, {}).get(name)
    if field_type is not None:
        check_field_value(reading, name, field_type, value, path)


def spell_field(reading: DocumentReader, kind: str, name: str, value: Any, path: Path) -> Any:
    """Give a field's value, its scalars as written where the field takes text."""
    return spell_value(reading, FIELD_TYPES.get(kind, {}).get(name), value, path)


def spell_values(
    reading: DocumentReader, fields: Mapping[str, FieldType], value: dict[str, Any], path: Path
) -> dict[str, Any]:
    """Give a mapping, its scalars as written where its fields take text."""
    return {
        key: spell_value(reading, fields.get(key), item, (*path, key))
        for key, item in value.items()
    }


def spell_value(
    reading: DocumentReader, field_type: FieldType | None, value: Any, path: Path
) -> Any:
    """Give a value, its scalars as written if its type is text."""
    if field_type is TEXT_OR_LISTED and isinstance(value, list):
        items = [(item, (*path, index)) for index, item in enumerate(value)]
        return [spell_value(reading, TEXT, item, inner_path) for item, inner_path in items]
    if field_type not in (TEXT, TEXT_OR_LISTED) or not _is_text(value):
        return value
    return reading.read_text(value, path)


def check_field_value(
    reading: DocumentReader, name: str, field_type: FieldType, value: Any, path: Path
) -> None:
    """Report a value that is neither a template nor of a type."""
    if value is None or coercion.is_template(value) or field_type.accepts(value):
        return
    is_word = field_type.choices and isinstance(value, str)
    reading.report_problem(
        "E104",
        path,
        f"'{name}' takes {field_type.expected}, found {describe_value(value)}",
        hint=reading.suggest_word(value, field_type.choices) if is_word else None,
    )


def check_mapping_keys(
    reading: DocumentReader,
    fields: Mapping[str, FieldType],
    value: dict[str, Any],
    path: Path,
    *,
    about: str,
    spellings: Mapping[str, str] | None = None,
) -> None:
    """Report keys of a mapping that are not known, and values of the wrong type."""
    known_keys = {*fields, *(spellings or {})}
    for key, item in value.items():
        inner_path = (*path, key)
        field_type = fields.get((spellings or {}).get(key, key))
        if field_type is None:
            reading.report_unknown(inner_path, known_keys, noun=f"field of {about}")
        else:
            check_field_value(reading, key, field_type, item, inner_path)
