"""The section `inputs`: what a playbook requires, and what is said when a start lacks it."""

import pytest
from jsonschema import Draft202012Validator
from tests.support.canonical_document import build_document

from noetl_playbook.model.playbook import InputDeclaration
from noetl_playbook.parse import declared_inputs
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbook
from noetl_playbook.schema import build_document_schema
from noetl_playbook.source import yaml_document

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
FLOW = "workflow:\n  - {step: a, tool: {kind: noop, result: 'RESULT'}}\n"
REGION = "inputs: {region: {required: true, description: where the shop is}}\n"


def read(section: str, result: str = "{{ workload.region }}") -> ParsedPlaybook:
    return parse_playbook(HEAD + section + FLOW.replace("RESULT", result))


@pytest.mark.parametrize("result", ["{{ workload.region }}", "{{ region }}"])
def test_a_required_input_is_a_known_name(result: str) -> None:
    parsed = read(REGION, result)
    assert parsed.problems == ()
    assert parsed.playbook is not None
    assert parsed.playbook.declared_inputs == {
        "region": InputDeclaration(required=True, description="where the shop is")
    }
    assert build_document(parsed.playbook)["inputs"] == {
        "region": {"required": True, "description": "where the shop is"}
    }


def test_a_name_like_a_required_one_is_mistyped() -> None:
    (problem,) = read(REGION, "{{ workload.regoin }}").problems
    assert "region" in (problem.hint or "")


@pytest.mark.parametrize(
    ("section", "says", "hint"),
    [
        ("inputs: {a: {required: true}}\nworkload: {a: 1}\n", "has a default for it", "remove"),
        ("inputs: {a: {description: b}}\n", "'a' has no default", "a: null"),
        ("inputs: {a: required}\n", "expected a mapping", "required: true"),
        ("inputs: {a: {requierd: true}}\n", "unknown key 'requierd'", "required"),
        ("inputs: [a]\n", "expected a mapping", ""),
        ("inputs: {a: {required: maybe}}\n", "expected", ""),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_line(
    section: str, says: str, hint: str
) -> None:
    parsed = read(section, "1")
    problem = next(item for item in parsed.problems if item.is_error)
    assert says in problem.message
    assert hint in (problem.hint or "")
    assert problem.line == 4
    assert parsed.playbook is None


def test_null_is_a_value_and_all_that_is_missing_is_named() -> None:
    declared = {
        "a": InputDeclaration(required=True, description="which day"),
        "b": InputDeclaration(required=True),
        "c": InputDeclaration(),
    }
    assert declared_inputs.find_missing_inputs(declared, {"a": None, "b": None}) is None
    fault = declared_inputs.find_missing_inputs(declared, {"b": 1})
    assert fault is not None
    assert fault.full_text == (
        "the playbook requires the input 'a' (which day), which is not given "
        "(give a value, null too: --set a=VALUE, or a key of `workload`)"
    )
    both = declared_inputs.find_missing_inputs(declared, {})
    assert both is not None
    assert both.message.endswith("the inputs 'a' (which day), 'b', which are not given")


@pytest.mark.parametrize(
    ("section", "faults"),
    [
        (REGION, 0),
        ("inputs: {a: {description: b}}\nworkload: {a: 1}\n", 0),
        ("inputs: {a: {required: 'yes'}}\n", 0),
        ("inputs: {a: required}\n", 1),
        ("inputs: {a: {requierd: true}}\n", 1),
        ("inputs: [a]\n", 1),
    ],
)
def test_the_schema_knows_the_section(section: str, faults: int) -> None:
    text = HEAD + section + FLOW.replace("RESULT", "1")
    document = yaml_document.get_only_document(yaml_document.read_documents(text)).value
    errors = list(Draft202012Validator(build_document_schema()).iter_errors(document))
    assert len(errors) == faults
