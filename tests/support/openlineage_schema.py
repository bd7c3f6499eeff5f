"""The JSON Schema of the run events that we send, as OpenLineage's own classes have it.

Its client's classes are generated from the published files of the standard. What the generator
keeps in code and not in types is added here: which fields of bases are required, and formats.
"""

from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from jsonschema import Draft202012Validator, FormatChecker
from openlineage.client.generated import base

_REF = "#/$defs/{name}"
_FORMATS = {
    "eventTime": "date-time",
    "runId": "uuid",
    "producer": "uri",
    "schemaURL": "uri",
    "_producer": "uri",
    "_schemaURL": "uri",
}
_REQUIRED = {"producer", "schemaURL", "_producer", "_schemaURL"}
_HOLDERS = {
    "run": ("Run", "facets"),
    "job": ("Job", "facets"),
    "dataset": ("OutputDataset", "facets"),
    "input": ("InputDataset", "inputFacets"),
    "output": ("OutputDataset", "outputFacets"),
}

FORMATS_CHECKED = FormatChecker(formats=())


@FORMATS_CHECKED.checks("date-time", raises=ValueError)
def _is_instant(value: object) -> bool:
    return datetime.fromisoformat(str(value)).tzinfo is not None


@FORMATS_CHECKED.checks("uuid", raises=ValueError)
def _is_uuid(value: object) -> bool:
    return str(UUID(str(value))) == value


@FORMATS_CHECKED.checks("uri", raises=ValueError)
def _is_uri(value: object) -> bool:
    parts = urlsplit(str(value))
    return bool(parts.scheme and (parts.netloc or parts.path))


def validator(facets: dict[str, dict[str, Any]]) -> Draft202012Validator:
    """Build the schema of run events that have these facets and no others, by holder and name."""
    classes = [item for named in facets.values() for item in named.values()]
    # Each facet by itself: classes of the same name are different things in different facets.
    (event,), parts = msgspec.json.schema_components([base.RunEvent], ref_template=_REF)
    for item in classes:
        name = item.__name__
        template = f"#/$defs/{name}.{{name}}"
        (_,), own = msgspec.json.schema_components([item], ref_template=template)
        parts |= {f"{name}.{of}": part for of, part in own.items()}
    for part in parts.values():
        _complete(part)
    for holder, named in facets.items():
        kind, field = _HOLDERS[holder]
        for owner in (kind, "InputDataset") if holder == "dataset" else (kind,):
            parts[owner]["properties"][field] = {
                "type": "object",
                "properties": {
                    name: {"$ref": f"#/$defs/{item.__name__}.{item.__name__}"}
                    for name, item in named.items()
                },
                "additionalProperties": False,
            }
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **event, "$defs": parts}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FORMATS_CHECKED)


def _complete(part: dict[str, Any]) -> None:
    """Require what every event and facet must have, and say which formats its texts have."""
    properties = part.get("properties", {})
    part["required"] = sorted({*part.get("required", ()), *(_REQUIRED & properties.keys())})
    for name, of in _FORMATS.items():
        if name in properties:
            properties[name] = {"type": "string", "format": of}
