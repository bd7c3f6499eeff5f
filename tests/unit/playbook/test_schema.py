"""The JSON Schema for editors follows the model and the table of kinds."""

from noetl_playbook.model import tools
from noetl_playbook.schema import build_document_schema


def test_the_schema_describes_tasks_as_documents_write_them() -> None:
    definitions = build_document_schema()["$defs"]
    task = definitions["Task"]
    assert "fields" not in task["properties"]
    every = {*tools.KINDS, *tools.KIND_ALIASES}
    assert set(task["properties"]["kind"]["enum"]) == every
    branches = [set(branch["if"]["properties"]["kind"]["enum"]) for branch in task["allOf"]]
    assert set().union(*branches) == every
    assert definitions["Playbook"]["required"] == ["apiVersion", "kind", "metadata", "workflow"]
    written = {
        key for key, item in definitions["Loop"]["properties"].items() if "deprecated" not in item
    }
    assert written == {"in", "cursor", "iterator", "spec"}


def test_every_reference_has_its_definition() -> None:
    schema = build_document_schema()

    def references(value: object) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if "$ref" in value else set()
            return own.union(*(references(item) for item in value.values()))
        if isinstance(value, list):
            return set().union(*(references(item) for item in value))
        return set()

    assert {ref.removeprefix("#/$defs/") for ref in references(schema)} <= schema["$defs"].keys()
