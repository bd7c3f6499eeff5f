"""The JSON Schema of subscription documents, for editors; the reader alone knows templates."""

import msgspec

from noetl_contracts.triggers import BODY_BYTES_MAX, FILTER_CHARACTERS_MAX
from noetl_playbook.schema import Schema, describe_section
from noetl_playbook.subscriptions import KIND, NAME_PATTERN, SOURCE, VERSION, Subscription

SCHEMA_ID = "https://noetl.io/schemas/subscription-v2.json"


def subscription_schema() -> Schema:
    """Describe the document: the same keys and types as its reader, never stricter."""
    _, components = msgspec.json.schema_components((Subscription,), ref_template="#/$defs/{name}")
    definitions = {name: describe_section(name, found) for name, found in components.items()}
    definitions["Source"]["properties"] |= {
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


def _describe_spec(found: Schema) -> Schema:
    """Describe `spec`: the subject stands in the source, or beside one that is a name."""
    properties = {key: item for key, item in found["properties"].items() if key != "name"}
    source = properties["source"]
    subject = {"type": "string", "description": "Beside `source: nats`."}
    bytes_max = {"minimum": 1, "maximum": BODY_BYTES_MAX}
    properties |= {
        "source": {"anyOf": [source, {"const": SOURCE}]},
        "subject": subject,
        "filter": {"anyOf": [{"type": "string", "maxLength": FILTER_CHARACTERS_MAX},
                             {"type": "null"}]},
        "body_bytes_max": {**properties["body_bytes_max"], **bytes_max},
    }  # fmt: skip
    named = {"properties": {"source": {"const": SOURCE}}, "required": ["subject"]}
    return {
        "description": found["description"],
        "type": "object",
        "properties": properties,
        "required": ["source", "dispatch"],
        "additionalProperties": False,
        "oneOf": [named, {"properties": {"source": {"type": "object"}, "subject": False}}],
    }
