"""Subscription documents: which messages start which playbook."""

import re
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.requests import triggers
from noetl_contracts.requests.triggers import (
    BODY_BYTES_DEFAULT,
    BODY_BYTES_MAX,
    FILTER_CHARACTERS_MAX,
    IN_FLIGHT_MAX,
)
from noetl_playbook.lint import template_checks
from noetl_playbook.model.coercion import is_template
from noetl_playbook.schema import Schema, describe_section
from noetl_playbook.source.document_reader import DocumentReader, describe_value, map_fields_by_key
from noetl_playbook.source.problems import Level, Path, Problem
from noetl_playbook.source.yaml_document import YamlDocument
from noetl_playbook.templates import syntax
from noetl_playbook.templates.sandbox import GLOBALS

KIND = "Subscription"
VERSION = "noetl.io/v2"
SOURCE = "nats"
SCHEMA_ID = "https://noetl.io/schemas/subscription-v2.json"
NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = re.compile(NAME_PATTERN)
_ROOT_KEYS = frozenset({"apiVersion", "kind", "metadata", "spec"})
_CANONICAL_SOURCE = "source: {type: nats, subject: orders.*}"
_OWN_STREAM = (
    "a subscription takes the messages of NoETL's own stream, noetl.triggers.<tenant>.<org>.…, "
    "through the one consumer that all planners share"
)
_MAP_IT = "leave it out, and map the other server's subjects there: docs/reference/triggers.md"
# What others have and we have not, or always do, with the way out.
_NOT_IN_SOURCE = {
    **dict.fromkeys(
        ("auth", "credential", "url", "user", "password", "token", "endpoint", "brokers"),
        (_OWN_STREAM, _MAP_IT),
    ),
    **dict.fromkeys(
        ("stream", "consumer", "durable", "subscription", "topic", "group"), (_OWN_STREAM, _MAP_IT)
    ),
    **dict.fromkeys(
        ("start", "start_position", "deliver_policy"),
        ("every message that waits in the stream is taken, the oldest first", "leave it out"),
    ),
}
_NOT_IN_SPEC = {
    **dict.fromkeys(
        ("ack", "ack_mode", "acknowledge"),
        ("a message is always acknowledged after its execution is durable", "leave it out"),
    ),
    **dict.fromkeys(
        ("dead_letter", "dlq", "on_error"),
        ("a message that can start nothing always becomes a dead letter", "noetl dlq ls"),
    ),
    **dict.fromkeys(
        ("dedupe", "deduplicate", "idempotency"),
        ("messages with one Nats-Msg-Id and subject always start one execution", "leave it out"),
    ),
    **dict.fromkeys(
        ("concurrency", "runtime", "max_concurrency"),
        ("how many executions run at once is max_in_flight", "write max_in_flight: 10"),
    ),
    "batch": ("each message starts one execution", "leave it out"),
    **dict.fromkeys(
        ("headers", "spool"), ("header directives and spools are not available", "leave it out")
    ),
}
_NOT_IN_DISPATCH = {
    "payload_from": (
        "what becomes the workload is written as templates",
        'write input: {order: "{{ body }}"}; without input the body is the workload',
    ),
    **dict.fromkeys(
        ("execution_pool", "pool"),
        ("the pool is the playbook's", "write executor: {spec: {pool: …}} in the playbook"),
    ),
}


class SubscriptionSource(Struct, frozen=True, kw_only=True):
    """Where messages come from: `subject` is what follows `noetl.triggers.<tenant>.<org>.`."""

    type: str = SOURCE
    subject: str


class SubscriptionDispatch(Struct, frozen=True, kw_only=True):
    """What a message starts; without `input` the message's body is the workload."""

    playbook: str
    version: int | None = None
    input: dict[str, Any] = {}


class Subscription(Struct, frozen=True, kw_only=True):
    """A subscription as it was read; messages for which `filter` is false start nothing.

    No more than `max_in_flight` of its executions run at once; other messages wait.
    """

    name: str
    source: SubscriptionSource
    dispatch: SubscriptionDispatch
    filter: str | None = None
    body_bytes_max: int = BODY_BYTES_DEFAULT
    enabled: bool = True
    max_in_flight: int | None = None


class _SubscriptionSpec(Struct, frozen=True, kw_only=True):
    """The keys of `spec` that are read one by one."""

    body_bytes_max: int = BODY_BYTES_DEFAULT
    enabled: bool = True
    max_in_flight: int | None = None


class ReadSubscription(Struct, frozen=True, kw_only=True):
    """The subscription, absent when a problem is an error, and every problem in order."""

    subscription: Subscription | None
    problems: tuple[Problem, ...]
    begins: int = 1


def is_subscription(document: YamlDocument) -> bool:
    """Tell whether a document says that it is one."""
    return isinstance(document.value, dict) and document.value.get("kind") == KIND


def read_subscription(document: YamlDocument, *, level: Level) -> ReadSubscription:
    """Read one document; it says all that is wrong in one pass."""
    reading = DocumentReader(document, level=level, readers={})
    for text_problem in document.text_problems:
        reading.report_problem(
            text_problem.code,
            text_problem.path,
            text_problem.message,
            hint=text_problem.hint,
            place=text_problem.place,
        )
    root = _read_root(reading, document.value)
    template_checks.check_templates(reading, None)
    _check_message_names(reading)
    in_order = sorted(reading.problems, key=lambda each: (each.line, each.column, each.code))
    problems = tuple(dict.fromkeys(in_order))
    if any(problem.is_error for problem in problems):
        root = None
    return ReadSubscription(subscription=root, problems=problems, begins=document.begins)


def _read_root(reading: DocumentReader, value: dict[str, Any]) -> Subscription | None:
    if value.get("apiVersion") != VERSION:
        reading.report_problem(
            "E102",
            ("apiVersion",),
            f"apiVersion is {describe_value(value.get('apiVersion'))}",
            hint=f"write apiVersion: {VERSION}",
        )
    for key in value:
        if key not in _ROOT_KEYS:
            reading.report_unknown((key,), _ROOT_KEYS)
    metadata, spec = value.get("metadata"), value.get("spec")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        reading.report_problem("E104", ("metadata",), "'metadata.name' is required here")
    elif not _NAME.fullmatch(name):
        reading.report_problem(
            "E104",
            ("metadata", "name"),
            f"{describe_value(name)} is no name of a subscription",
            hint="use letters, digits, '.', '_' and '-', at most 128, a letter or digit first",
        )
    if not isinstance(spec, dict):
        reading.report_problem(
            "E104", ("spec",), "'spec' is required here", hint=_CANONICAL_SOURCE, of_key=True
        )
        return None
    return _read_subscription_spec(reading, spec, ("spec",), name=str(name))


def _read_subscription_spec(
    reading: DocumentReader, spec: dict[str, Any], path: Path, *, name: str
) -> Subscription | None:
    spec_keys = {"source", "dispatch", "filter", *map_fields_by_key(_SubscriptionSpec)}
    # The subject may stand beside a source that is named by its type alone.
    is_short = isinstance(spec.get("source"), str)
    if is_short:
        spec_keys.add("subject")
    _check_keys(
        reading, spec, path, spec_keys, {**_NOT_IN_SPEC, **(_NOT_IN_SOURCE if is_short else {})}
    )
    source = _read_source(reading, spec, path)
    dispatch = _read_dispatch(reading, spec.get("dispatch"), (*path, "dispatch"))
    condition = _read_filter(reading, spec.get("filter"), (*path, "filter"))
    spec_fields = reading.read_fields(
        _SubscriptionSpec,
        {key: spec[key] for key in map_fields_by_key(_SubscriptionSpec) if key in spec},
        path,
    )
    for key, maximum in (("body_bytes_max", BODY_BYTES_MAX), ("max_in_flight", IN_FLIGHT_MAX)):
        value = spec_fields.get(key)
        if value is not None and not 1 <= value <= maximum:
            reading.report_problem(
                "E104", (*path, key), f"{key} is between 1 and {maximum}, not {value}"
            )
    if source is None or dispatch is None:
        return None
    return Subscription(
        name=name, source=source, dispatch=dispatch, filter=condition, **spec_fields
    )


def _read_source(
    reading: DocumentReader, spec: dict[str, Any], path: Path
) -> SubscriptionSource | None:
    value, inner_path = spec.get("source"), (*path, "source")
    if isinstance(value, str):
        kind, subject, place = value, spec.get("subject"), (*path, "subject")
    elif isinstance(value, dict):
        _check_keys(
            reading, value, inner_path, map_fields_by_key(SubscriptionSource), _NOT_IN_SOURCE
        )
        kind, subject, place = (
            value.get("type", SOURCE),
            value.get("subject"),
            (*inner_path, "subject"),
        )
    else:
        reading.report_problem(
            "E104", inner_path, "'source' is required here", hint=_CANONICAL_SOURCE
        )
        return None
    if kind != SOURCE:
        reading.report_problem(
            "E104",
            inner_path,
            f"source {describe_value(kind)} is not available: {SOURCE} alone is",
            hint=f"bring its messages to NATS, and write {_CANONICAL_SOURCE}",
        )
        return None
    if not isinstance(subject, str):
        reading.report_problem("E104", place, "'subject' is required here", hint=_CANONICAL_SOURCE)
        return None
    fault = triggers.find_subject_fault(subject)
    if fault is not None:
        reading.report_problem("E104", place, fault, hint=_CANONICAL_SOURCE)
    return SubscriptionSource(subject=subject)


def _read_dispatch(reading: DocumentReader, value: Any, path: Path) -> SubscriptionDispatch | None:
    if not isinstance(value, dict):
        reading.report_problem(
            "E104", path, "'dispatch' is required here", hint="dispatch: {playbook: …}"
        )
        return None
    _check_keys(reading, value, path, map_fields_by_key(SubscriptionDispatch), _NOT_IN_DISPATCH)
    values = {key: value[key] for key in value if key in map_fields_by_key(SubscriptionDispatch)}
    subscription_dispatch: SubscriptionDispatch | None = reading.read_struct(
        SubscriptionDispatch, values, path
    )
    if (
        subscription_dispatch is not None
        and subscription_dispatch.version is not None
        and subscription_dispatch.version < 1
    ):
        reading.report_problem("E104", (*path, "version"), "versions are 1 and above")
    return subscription_dispatch


def _read_filter(reading: DocumentReader, value: Any, path: Path) -> str | None:
    if value is None:
        return None
    condition = reading.read_condition(value, path)
    if isinstance(condition, bool):
        reading.report_wrong_type(path, "a condition over the message", value)
        return None
    if condition is not None and len(condition) > FILTER_CHARACTERS_MAX:
        reading.report_problem(
            "E104", path, f"a filter has at most {FILTER_CHARACTERS_MAX} characters"
        )
    return condition


def _check_keys(
    reading: DocumentReader,
    value: dict[str, Any],
    path: Path,
    known_names: Collection[str],
    reason_by_key: dict[str, tuple[str, str]],
) -> None:
    """Report keys that nothing reads; of those that others know, say why there are none."""
    for key in value:
        if key in known_names:
            continue
        if key in reason_by_key:
            reason, hint = reason_by_key[key]
            reading.report_problem(
                "E103", (*path, key), f"'{key}': {reason}", hint=hint, of_key=True
            )
        else:
            reading.report_unknown((*path, key), known_names)


def _check_message_names(reading: DocumentReader) -> None:
    """Report names that no message has."""
    for site in reading.sites:
        source = site.source if is_template(site.source) else "{{ " + site.source + " }}"
        try:
            names = syntax.list_names(syntax.parse_template(source))
        except syntax.SyntaxProblemError:
            # Reported with its place before.
            continue
        for name in sorted(names - triggers.MESSAGE_NAMES - GLOBALS.keys()):
            reading.report_problem(
                "E303",
                site.path,
                f"'{name}' is nothing of a message",
                hint=reading.suggest_word(name, triggers.MESSAGE_NAMES)
                or f"a message has {', '.join(sorted(triggers.MESSAGE_NAMES))}",
            )


def build_subscription_schema() -> Schema:
    """Describe the document as JSON Schema: the keys and types of its reader, never stricter."""
    _, components = msgspec.json.schema_components((Subscription,), ref_template="#/$defs/{name}")
    definitions = {name: describe_section(name, schema) for name, schema in components.items()}
    definitions["SubscriptionSource"]["properties"] |= {
        "type": {"const": SOURCE, "default": SOURCE},
        "subject": {"type": "string"},
    }
    definitions["Spec"] = _describe_spec(definitions.pop("Subscription"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "NoETL subscription",
        "type": "object",
        "properties": {
            "apiVersion": {"const": VERSION},
            "kind": {"const": KIND},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "pattern": f"^{NAME_PATTERN}$"}},
                "required": ["name"],
            },
            "spec": {"$ref": "#/$defs/Spec"},
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _describe_spec(schema: Schema) -> Schema:
    """Describe `spec`: the subject stands in the source, or beside one that is a name."""
    properties = {key: item for key, item in schema["properties"].items() if key != "name"}
    source = properties["source"]
    subject = {"type": "string", "description": "Beside `source: nats`."}
    bytes_max = {"minimum": 1, "maximum": BODY_BYTES_MAX}
    properties |= {
        "source": {"anyOf": [source, {"const": SOURCE}]},
        "subject": subject,
        "filter": {"anyOf": [{"type": "string", "maxLength": FILTER_CHARACTERS_MAX},
                             {"type": "null"}]},
        "body_bytes_max": {**properties["body_bytes_max"], **bytes_max},
        "max_in_flight": {**properties["max_in_flight"], "minimum": 1, "maximum": IN_FLIGHT_MAX},
    }  # fmt: skip
    named_source = {"properties": {"source": {"const": SOURCE}}, "required": ["subject"]}
    return {
        "description": schema["description"],
        "type": "object",
        "properties": properties,
        "required": ["source", "dispatch"],
        "additionalProperties": False,
        "oneOf": [named_source, {"properties": {"source": {"type": "object"}, "subject": False}}],
    }
