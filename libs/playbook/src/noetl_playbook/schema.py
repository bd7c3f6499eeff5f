"""The JSON Schema of the canonical document, for editors."""

from typing import Any

import msgspec

from noetl_playbook import tools
from noetl_playbook.model import Playbook

SCHEMA_ID = "https://noetl.io/schemas/playbook-v2.json"

_SPELLED_OTHERWISE = frozenset({"fields", "rules", "on_unmatched"})


def document_schema() -> dict[str, Any]:
    """Describe the canonical document; looser than the loader, never stricter."""
    _, components = msgspec.json.schema_components((Playbook,), ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = dict(components)
    definitions["Task"] = _task(definitions["Task"])
    definitions["Rule"] = _rule("#/$defs/Action")
    definitions["AdmitRule"] = _rule("#/$defs/Allow")
    for name in ("Metadata", "KeychainEntry"):
        definitions[name] = _open(definitions[name])
    step = definitions["Step"]["properties"]
    task = {"$ref": "#/$defs/Task"}
    step["tool"] = {"anyOf": [task, {"type": "array", "items": task, "minItems": 1}]}
    step["output_select"] = {}
    definitions["LoopSpec"]["required"] = []
    definitions["Metadata"]["required"] = ["name"]
    definitions["Playbook"]["required"] = ["apiVersion", "kind", "metadata", "workflow"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "NoETL playbook",
        "$ref": "#/$defs/Playbook",
        "$defs": definitions,
    }


def _open(definition: dict[str, Any]) -> dict[str, Any]:
    """Let a section hold more keys beside its own."""
    properties = {
        key: item
        for key, item in definition["properties"].items()
        if key not in ("fields", "extra")
    }
    return {**definition, "properties": properties, "additionalProperties": True}


def _task(definition: dict[str, Any]) -> dict[str, Any]:
    """Spell a task as the document does: its kind's fields beside the shared ones."""
    properties = {
        key: item for key, item in definition["properties"].items() if key not in _SPELLED_OTHERWISE
    }
    properties["kind"] = {"enum": sorted(tools.KINDS)}
    properties["spec"] = {
        "type": "object",
        "properties": {
            "timeout": properties["timeout"],
            "policy": {
                "type": "object",
                "properties": {
                    key: definition["properties"][key] for key in ("rules", "on_unmatched")
                },
            },
        },
    }
    kinds = [
        {
            "if": {"properties": {"kind": {"const": kind.name}}},
            "then": {"properties": dict.fromkeys(sorted(kind.known), True)},
        }
        for kind in tools.KINDS.values()
    ]
    return {**definition, "properties": properties, "required": ["kind"], "allOf": kinds}


def _rule(action: str) -> dict[str, Any]:
    then = {"$ref": action}
    return {
        "type": "object",
        "properties": {"when": {"type": ["string", "boolean"]}, "then": then, "else": {}},
    }
