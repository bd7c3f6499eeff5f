"""The schema of subscriptions lets right documents pass and is never stricter than the reader."""

import pytest
from jsonschema import Draft202012Validator

from noetl_playbook.parse import mixed_text
from noetl_playbook.parse.subscriptions import build_subscription_schema
from noetl_playbook.source.yaml_document import read_document

VALIDATOR = Draft202012Validator(build_subscription_schema())
HEAD = "apiVersion: noetl.io/v2\nkind: Subscription\nmetadata: {name: orders, labels: {a: b}}\n"
RIGHT = [
    "{source: {subject: a}, dispatch: {playbook: p}}",
    "{source: {type: nats, subject: 'a.*'}, dispatch: {playbook: p, version: 2}}",
    "{source: nats, subject: a, dispatch: {playbook: p}}",
    "{source: {subject: a}, filter: body.n > 1, dispatch: {playbook: p, input: {n: 1}}}",
    "{source: {subject: a}, body_bytes_max: '1000', enabled: 'no', dispatch: {playbook: p}}",
    "{source: {subject: a}, max_in_flight: 3, dispatch: {playbook: p}}",
    "{source: {subject: a}, max_in_flight: '3', dispatch: {playbook: p}}",
]
WRONG = [
    "{dispatch: {playbook: p}}",
    "{source: {subject: a}}",
    "{source: {subject: a}, dispatch: {}}",
    "{source: kafka, dispatch: {playbook: p}}",
    "{source: {type: kafka, subject: a}, dispatch: {playbook: p}}",
    "{source: nats, dispatch: {playbook: p}}",
    "{source: {subject: a}, subject: a, dispatch: {playbook: p}}",
    "{source: {subject: a, stream: S}, dispatch: {playbook: p}}",
    "{source: {subject: a}, fliter: x, dispatch: {playbook: p}}",
    "{source: {subject: a}, body_bytes_max: 0, dispatch: {playbook: p}}",
    "{source: {subject: a}, max_in_flight: 0, dispatch: {playbook: p}}",
    "{source: {subject: a}, max_in_flight: 10001, dispatch: {playbook: p}}",
    "{source: {subject: a}, dispatch: {playbook: p, pool: g}}",
]


def is_read(text: str) -> bool:
    (found,) = mixed_text.read_mixed_text(text).subscriptions
    return found.subscription is not None


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(build_subscription_schema())


@pytest.mark.parametrize("spec", RIGHT)
def test_what_the_reader_takes_validates(spec: str) -> None:
    text = f"{HEAD}spec: {spec}\n"
    assert is_read(text)
    assert list(VALIDATOR.iter_errors(read_document(text).value)) == []


@pytest.mark.parametrize("spec", WRONG)
def test_what_the_schema_refuses_the_reader_refuses_too(spec: str) -> None:
    text = f"{HEAD}spec: {spec}\n"
    assert not VALIDATOR.is_valid(read_document(text).value)
    assert not is_read(text)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("v2", "v9"),
        HEAD.replace("orders", "or ders"),
        HEAD.replace("name", "nme"),
        f"{HEAD}workflow: []\n",
    ],
)
def test_a_wrong_head_does_not_validate(head: str) -> None:
    text = f"{head}spec: {RIGHT[0]}\n"
    assert not VALIDATOR.is_valid(read_document(text).value)
    assert not is_read(text)
