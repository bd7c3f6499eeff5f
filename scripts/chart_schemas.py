"""Write `values.schema.json` of each chart from its values and the settings of its service."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).parents[1]
HELM = ROOT / "deploy/helm"
SERVICES = ("planner", "worker", "projector", "outbox", "reaper")
CHARTS = (*SERVICES, "platform")
# The chart that holds all of them, each with its values under its name.
UMBRELLA = "noetl"
DRAFT = "http://json-schema.org/draft-07/schema#"
SCALAR = {"type": ["string", "number", "boolean", "null"]}
NAME = {"type": ["string", "null"]}
# What a release may spell as Kubernetes does.
OPEN = {
    "resources": "object",
    "nodeSelector": "object",
    "tolerations": "array",
    "extraEnvironment": "array",
    "imagePullSecrets": "array",
    "networkPolicy": "object",
}
# What Helm itself puts among the values of a chart.
OF_HELM = {
    "global": {"type": "object"},
    "noetl-library": {"type": "object"},
    "enabled": {"type": "boolean"},
}


def write_camel_case(name: str) -> str:
    """Spell a field of settings as values do."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


def describe_names(names: list[str], value: dict[str, Any]) -> dict[str, Any]:
    """Allow these names and no others."""
    properties = dict.fromkeys(sorted(names), value)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def describe_value(name: str, value: Any, settings: list[str]) -> dict[str, Any]:
    """Describe a value by what it is by default."""
    if name in OPEN:
        return {"type": OPEN[name]}
    if name in ("settings", "topology"):
        return describe_names(settings, SCALAR)
    if name in ("secrets", "optionalSecrets", "fields"):
        return describe_names([*settings, *(value or {})], NAME)
    if isinstance(value, dict):
        properties = {part: describe_value(part, inner, settings) for part, inner in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    if isinstance(value, list):
        return {"type": "array"}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 0}
    return NAME


def describe_values(chart: str) -> dict[str, Any]:
    """Describe each value of a chart."""
    values = yaml.safe_load((HELM / chart / "values.yaml").read_text())
    if chart == UMBRELLA:
        # Helm holds what is in them against the schemas of their charts.
        return {name: {"type": "object"} for name in values} | {"global": OF_HELM["global"]}
    package = f"noetl_{chart}" if chart in SERVICES else "noetl_messaging"
    kind = importlib.import_module(f"{package}.settings").Settings
    settings = [write_camel_case(field.name) for field in msgspec.structs.fields(kind)]
    properties = {name: describe_value(name, value, settings) for name, value in values.items()}
    if "lanes" in properties.get("scaling", {}).get("properties", {}):
        properties["scaling"]["properties"]["lanes"] = {"type": "object"}
    return properties | OF_HELM


def render_schema(chart: str) -> str:
    """Render the file of one chart."""
    schema = {
        "$schema": DRAFT,
        "title": f"Values of the chart {chart}",
        "type": "object",
        "additionalProperties": False,
        "properties": describe_values(chart),
    }
    return json.dumps(schema, indent=1) + "\n"


def main() -> int:
    """Write every schema."""
    for chart in (*CHARTS, UMBRELLA):
        (HELM / chart / "values.schema.json").write_text(render_schema(chart))
    return 0


if __name__ == "__main__":
    sys.exit(main())
