"""The JSON Schema lets right documents pass, refuses wrong ones, and is never stricter."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.support.playbooks import document

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.schema import build_document_schema
from noetl_playbook.source.problems import Level
from noetl_playbook.source.yaml_document import UnreadableError, read_document

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent
VALIDATOR = Draft202012Validator(build_document_schema())
RIGHT = [
    *sorted((FOLDER / "right").glob("*.yaml")),
    *sorted((ROOT / "docs/examples").glob("*.yaml")),
    *(file for file in sorted((ROOT / "examples").glob("*.yaml")) if "older" not in file.stem),
    *sorted((ROOT / "workloads").glob("**/playbooks/*.yaml")),
]
WRONG = sorted((FOLDER / "wrong").glob("*.yaml"))
# What a schema can see: keys, types, enums, required fields.
SEEN = ("E102", "E103", "E104-m", "E105", "E106", "E401-h", "E401-p", "E402", "E403-no", "E607")


def value_of(file: Path) -> Any:
    try:
        return read_document(file.read_text("utf-8")).value
    except UnreadableError:
        return None


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(build_document_schema())


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_every_right_playbook_of_the_tree_validates(file: Path) -> None:
    assert list(VALIDATOR.iter_errors(value_of(file))) == []


def test_wrong_playbooks_that_a_schema_can_see_do_not_validate() -> None:
    refused = {file.stem for file in WRONG if not VALIDATOR.is_valid(value_of(file))}
    expected = {file.stem for file in WRONG if file.stem.startswith(SEEN)}
    # Inside a field a mapping is any mapping.
    blind = {
        *("E103-timeout-part", "E103-keys-of-an-end", "E103-keys-of-blocks"),
        *("E103-keys-of-the-keychain", "E103-field-of-an-inline-credential"),
    }
    assert len(expected) >= 20
    assert expected - blind <= refused, expected - blind - refused


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_the_schema_is_never_stricter_than_the_loader(file: Path) -> None:
    value = value_of(file)
    parsed = parse_playbook(file.read_text("utf-8"), level=Level.STRICT)
    if value is not None and not any(problem.is_error for problem in parsed.problems):
        assert list(VALIDATOR.iter_errors(value)) == []


@pytest.mark.parametrize(
    "step",
    [
        "{step: s, tool: {kind: http, endpoint: u, verify_ssl: 'no', timeout: 500ms}}",
        "{step: s, tool: {kind: postgres, auth: db, statement: SELECT 1, autocommit: on}}",
        "{step: s, tool: {kind: noop, spec: {policy: {rules: [{else: null, then: {do: break}}]}}}}",
        "{step: s, tool: {kind: noop, spec: {policy: {rules: [{else: {do: break}}]}}}}",
        """{step: s, tool: {kind: noop}, loop: {in: 5, iterator: i, spec: {mode: fanout,
          frame: {size: 3, memory_bytes: 64MiB, parallelism: '2', duration_ms: 500},
          fanout: {max_job_retries: 1}}}}""",
        """{step: s, spec: {timeout: '{{ workload.t }}'}, tool: {kind: noop,
          output: {accumulate: true, select: [a.b], output_select: [c]}}}""",
        "{step: 7, tool: {kind: noop}, next: null}",
    ],
)
def test_tolerated_spellings_validate(step: str) -> None:
    text = document(f"- {step}")
    assert not any(
        problem.is_error for problem in parse_playbook(text, level=Level.STRICT).problems
    )
    assert list(VALIDATOR.iter_errors(read_document(text).value)) == []
