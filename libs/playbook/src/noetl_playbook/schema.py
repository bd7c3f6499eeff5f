"""The JSON Schema of the document, for editors: the canonical spellings and the tolerated ones.

It is never stricter than the strict level of the loader, which alone knows templates and names.
"""

from typing import Any

import msgspec

from noetl_playbook import schema_short_forms
from noetl_playbook.model import datasets, tools
from noetl_playbook.model.language_names import BOUNDARY_EVENTS
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.sections.field_types import FIELD_TYPES
from noetl_playbook.sections.limits import LIMITS_MAX
from noetl_playbook.sections.loop_bounds import ENGINES, FANOUT
from noetl_playbook.sections.loops import FANOUT_ALIASES, FRAME_ALIASES

SCHEMA_ID = "https://noetl.io/schemas/playbook-v2.json"

Schema = dict[str, Any]

_TASK = {"$ref": "#/$defs/Task"}
_ANYTHING: Schema = {}
_TEMPLATE = r"\{\{|\{%"
# A number as text: with a unit, a percent sign, or made by a template.
_NUMBER_TEXT: Schema = {"type": "string", "pattern": rf"^\s*[-+.]?\d|{_TEMPLATE}"}
_ANY_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_FLAG_TEXT: Schema = {
    "enum": [
        spelled
        for word in ("true", "false", "yes", "no", "on", "off", "1", "0")
        for spelled in dict.fromkeys((word, word.capitalize(), word.upper()))
    ]
}
# Sections that hold more keys than their own.
_OPEN = frozenset({"Metadata", "KeychainEntry"})
# Keys that the reader takes beside those of the model, by definition.
_BESIDE: dict[str, dict[str, Schema]] = {
    "Step": {
        "retry": schema_short_forms.RETRY,
        "pagination": schema_short_forms.PAGINATION,
        "output_select": _ANYTHING,
        "description": {"type": "string"},
    },
    "StepSpec": {"fanout": {"$ref": "#/$defs/FanoutOpts"}, "loop_mode": {"enum": [FANOUT]}},
    "NextSpec": {"policy": {"type": "object"}},
    "Output": {
        "output_select": _ANYTHING,
        "path": {"type": "string", "description": "A folder or bucket that the rows go to."},
        "delta": {"type": "string", "description": "A Delta table that the rows go to."},
        "iceberg": {
            "type": "object",
            "description": "An Iceberg table that the rows go to.",
            "properties": {name: {"type": "string"} for name in ("table", "catalog", "warehouse")},
            "required": ["table", "catalog", "warehouse"],
            "additionalProperties": False,
        },
        "table": {
            "type": "string",
            "description": "A table of PostgreSQL that the batches of a stream go to.",
        },
        "auth": _ANYTHING,
        "mode": {"anyOf": [{"enum": [*datasets.MODES]}, {"type": "string", "pattern": _TEMPLATE}]},
        "key": {"type": ["string", "array"]},
        "file_size": _NUMBER_TEXT,
        "compression": {"enum": [*datasets.COMPRESSIONS]},
        "expect": {"type": "object"},
        "header": {"type": ["boolean", "string"]},
        "delimiter": {"type": "string"},
        "quote": {"type": "string"},
    },
    "Task": {
        "retry": schema_short_forms.RETRY,
        "pagination": schema_short_forms.PAGINATION,
        "output_select": _ANYTHING,
        "desc": {"type": "string"},
        "description": {"type": "string"},
    },
}
# Older keys that are read as the canonical ones.
_OLDER: dict[str, tuple[str, ...]] = {
    "Playbook": ("vars", "spec"),
    "Step": ("args", "with", "vars", "when", "timeout", "set_ctx", "set_iter", "set_vars"),
    "Task": ("args", "with", "credential", "timeout_seconds", "eval", "set_ctx", "set_iter"),
    "Loop": ("collection", "element", "item", "as"),
    "LoopSpec": ("concurrency", "max_concurrency", "parallelism", "batch_size"),
    "Arc": ("condition", "args"),
}
_REQUIRED: dict[str, list[str]] = {
    "Playbook": ["apiVersion", "kind", "metadata", "workflow"],
    "Metadata": ["name"],
    "Step": ["step", "tool"],
    "Loop": ["iterator"],
    "LoopSpec": [],
    "Selection": ["path"],
}


def build_document_schema() -> Schema:
    """Describe the document."""
    _, components = msgspec.json.schema_components((Playbook,), ref_template="#/$defs/{name}")
    definitions = {
        name: describe_section(name, component) for name, component in components.items()
    }
    definitions["Rule"] = _describe_rule(definitions["Rule"], "#/$defs/Action")
    definitions["AdmitRule"] = _describe_rule(definitions["AdmitRule"], "#/$defs/Allow")
    definitions |= schema_short_forms.DEFINITIONS
    task = definitions["Task"]
    definitions["Task"] = _spell_task(task)
    # What a workbook entry leaves open its callers fill in.
    definitions["WorkbookTask"] = _spell_task(task, is_whole=False)
    definitions["WorkbookEntry"]["properties"]["tool"] = {"$ref": "#/$defs/WorkbookTask"}
    _spell_sections(definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "NoETL playbook",
        "$ref": "#/$defs/Playbook",
        "$defs": definitions,
    }


def describe_section(name: str, schema: Schema) -> Schema:
    """Spell one section as documents write it."""
    hidden = ("fields", "extra") if name in _OPEN else ()
    properties = {
        key: _loosen_type(item) for key, item in schema["properties"].items() if key not in hidden
    }
    properties |= _BESIDE.get(name, {})
    for key in _OLDER.get(name, ()):
        property_schema = properties.get(key, {})
        properties[key] = {**property_schema, "deprecated": True, "description": "An older form."}
    return {
        **schema,
        "description": " ".join(schema.get("description", "").split()),
        "properties": properties,
        "required": _REQUIRED.get(name, schema.get("required", [])),
        "additionalProperties": name in _OPEN,
    }


def _loosen_type(item: Schema) -> Schema:
    """Accept what the reader coerces: numbers and flags as text, one text as a list."""
    if "anyOf" in item:
        numbers = any(entry.get("type") in ("integer", "number") for entry in item["anyOf"])
        kinds = [_NUMBER_TEXT if numbers and entry == {"type": "string"} else _loosen_type(entry)
                 for entry in item["anyOf"]]  # fmt: skip
        return {**item, "anyOf": kinds}
    fields = {key: value for key, value in item.items() if key == "default"}
    match item:
        case {"type": "integer" | "number" as kind}:
            return {"anyOf": [{"type": kind}, _NUMBER_TEXT], **fields}
        case {"type": "boolean"}:
            return {"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, _FLAG_TEXT], **fields}
        case {"type": "string"}:
            return {**_ANY_SCALAR, **fields}
        case {"type": "array", "items": {"type": "string"}}:
            return {"anyOf": [{"type": "array", "items": _ANY_SCALAR}, _ANY_SCALAR], **fields}
        case {"type": "array"}:
            return {**item, "type": ["array", "null"]}
        case {"type": "object", "additionalProperties": dict() as below}:
            return {**item, "type": ["object", "null"], "additionalProperties": _loosen_type(below)}
        case {"type": "object"}:
            return {**item, "type": ["object", "null"]}
        case _:
            return item


def _spell_sections(definitions: dict[str, Schema]) -> None:
    """Add what only single sections know."""
    properties = {name: definition["properties"] for name, definition in definitions.items()}
    playbook, step = properties["Playbook"], properties["Step"]
    # Parsing works the other out.
    playbook["inputs"] = playbook.pop("declared_inputs")
    playbook["apiVersion"] = {"enum": ["noetl.io/v2", "noetl.io/v10", "noetl.io/v1"]}
    playbook["workflow"] = {**playbook["workflow"], "type": "array", "minItems": 1}
    step["tool"] = {
        "description": "One task, or a pipeline of tasks in order.",
        "anyOf": [_TASK, {"type": "array", "items": _TASK, "minItems": 1}],
    }
    limits = properties["ExecPolicy"]["limits"]
    limits["properties"] = {
        name: {"anyOf": [{"type": "integer", "minimum": 1, "maximum": maximum}, _NUMBER_TEXT]}
        for name, maximum in LIMITS_MAX.items()
    }
    limits["additionalProperties"] = False
    properties["Output"]["accumulate"]["anyOf"].append({"const": True})
    formats = properties["Output"]["format"]
    properties["Output"]["format"] = {
        "enum": sorted({*formats["enum"], *datasets.SINK_FORMATS}),
        "default": formats["default"],
    }
    select = properties["Output"]["select"]
    select["items"] = {"anyOf": [select["items"], {"type": "string"}]}
    for name, aliases in (("Frame", FRAME_ALIASES), ("FanoutOpts", FANOUT_ALIASES)):
        properties[name] |= {alias: properties[name][key] for alias, key in aliases.items()}
    properties["Frame"]["duration_ms"] = properties["Frame"]["max_seconds"]
    template = {"type": "string", "pattern": _TEMPLATE}
    engine = properties["Frame"]["engine"]
    properties["Frame"]["engine"] = {
        "anyOf": [{"enum": [*ENGINES]}, template],
        "default": engine["default"],
    }
    labels = {"type": ["object", "null"], "additionalProperties": _ANY_SCALAR}
    properties["Metadata"]["labels"] = labels
    properties["ExecSpec"]["undefined"] = {
        "description": "What a test of a missing value does: it fails, or is false.",
        "enum": ["strict", "lenient", None],
        "default": "strict",
    }
    properties["ExecSpec"]["loop_mode"] = {"enum": [FANOUT, None]}
    step["next"] = schema_short_forms.allow_step_names(step["next"])
    properties["Arc"]["on"] = {"enum": [*sorted(BOUNDARY_EVENTS), None]}


def _spell_task(definition: Schema, *, is_whole: bool = True) -> Schema:
    """Spell a task as the document does: its kind's fields beside the shared ones."""
    apart = ("fields", "rules", "on_unmatched", "rate_limit")
    properties = {key: item for key, item in definition["properties"].items() if key not in apart}
    rules, on_unmatched, rate_limit = (definition["properties"][key] for key in apart[1:])
    # A stream of NATS is named.
    properties["stream"] = {"anyOf": [*properties["stream"]["anyOf"], {"type": "string"}]}
    properties["kind"] = {
        "enum": [*sorted(tools.KINDS), *sorted(tools.KIND_ALIASES)],
        "description": "What runs the task.",
    }
    properties["spec"] = {
        "type": ["object", "null"],
        "properties": {
            "timeout": properties["timeout"],
            "rate_limit": rate_limit,
            "network": FIELD_TYPES["python"]["network"].schema,
            "policy": {
                "type": ["object", "null"],
                "properties": {"rules": rules, "on_unmatched": on_unmatched},
                "additionalProperties": False,
            },
        },
    }
    fields = {key: item for key, item in definition.items() if key != "additionalProperties"}
    return {
        **fields,
        "properties": properties,
        "required": ["kind"],
        "allOf": [_describe_kind(kind, is_whole=is_whole) for kind in tools.KINDS.values()],
        "unevaluatedProperties": False,
    }


def _describe_kind(kind: tools.ToolKind, *, is_whole: bool) -> Schema:
    """Describe the fields of one kind, in every spelling."""
    names = [kind.name, *(alias for alias, name in tools.KIND_ALIASES.items() if name == kind.name)]
    types = FIELD_TYPES.get(kind.name, {})
    properties: dict[str, Any] = {}
    for field in sorted(kind.known_fields):
        field_type = types.get(kind.aliases.get(field, field))
        if field_type is None:
            properties[field] = True
            continue
        field_schema = {**field_type.schema, "description": f"Takes {field_type.expected}."}
        if isinstance(field_schema.get("type"), list):
            field_schema["type"] = [*field_schema["type"], "null"]
        properties[field] = field_schema
    then: Schema = {"properties": properties}
    # The input of a task, or of its step, fills what is required of these.
    required = () if kind.name in tools.FILLED_BY_INPUT else kind.required
    spelled = [
        {"anyOf": [{"required": [item]} for item in (name, *_list_aliases(kind, name))]}
        for name in required
    ]
    if kind.source:
        choices = [item for name in kind.source for item in (name, *_list_aliases(kind, name))]
        spelled.append({"anyOf": [{"required": [choice]} for choice in choices]})
    if spelled and is_whole:
        then["allOf"] = spelled
    return {"if": {"properties": {"kind": {"enum": names}}, "required": ["kind"]}, "then": then}


def _list_aliases(kind: tools.ToolKind, name: str) -> list[str]:
    return sorted(alias for alias, canonical in kind.aliases.items() if canonical == name)


def _describe_rule(definition: Schema, consequence: str) -> Schema:
    """Describe a rule with its three spellings of else."""
    then = {"$ref": consequence}
    nested = {"type": "object", "properties": {"then": then}, "required": ["then"]}
    return {
        "title": definition["title"],
        "description": definition["description"],
        "type": "object",
        "properties": {
            "when": {"type": ["string", "boolean"]},
            "then": then,
            "else": {"anyOf": [{"type": "null"}, nested, then]},
        },
        "oneOf": [{"required": ["when", "then"]}, {"required": ["else"]}],
        "additionalProperties": False,
    }
