"""Where text is expected a scalar is kept as it is written."""

import pytest
from tests.support.playbooks import document

from noetl_playbook.model.playbook import Playbook
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level

NOOP = "tool: {kind: noop}"


def read(steps: str, *, metadata: str = "{name: test}", root: str = "") -> Playbook:
    text = document(steps, root=root).replace("{name: test}", metadata)
    parsed = parse_playbook(text, level=Level.STRICT)
    assert parsed.playbook is not None, parsed.problems
    return parsed.playbook


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        *(("true", "true"), ("True", "True"), ("7", "7"), ("1.10", "1.10"), ("0x1F", "0x1F")),
        *(("2026-01-01", "2026-01-01"), ("-0", "-0"), ("1e3", "1e3"), ('"quoted"', "quoted")),
    ],
)
def test_a_label_a_tag_and_a_name_are_kept_as_written(written: str, kept: str) -> None:
    metadata = (
        f"{{name: {written}, version: {written}, labels: {{a: {written}}}, tags: [{written}]}}"
    )
    found = read(f"- {{step: s, {NOOP}}}", metadata=metadata).metadata
    assert (found.name, found.version, found.labels, found.tags) == (
        kept,
        kept,
        {"a": kept},
        (kept,),
    )


def test_one_scalar_is_a_list_of_one_text() -> None:
    metadata = read(f"- {{step: s, {NOOP}}}", metadata="{name: test, tags: 7}").metadata
    assert metadata.tags == ("7",)


def test_steps_may_be_numbered_and_gone_to_by_number() -> None:
    found = read(
        f"- {{step: 1, {NOOP}, next: 2}}\n- {{step: 2, {NOOP}, next: [3]}}\n- {{step: 3, {NOOP}}}"
    )
    assert [step.step for step in found.workflow] == ["1", "2", "3"]
    assert [arc.step for step in found.workflow[:2] for arc in step.next.arcs] == ["2", "3"]


def test_a_field_that_takes_text_keeps_it_as_written() -> None:
    tool = "{kind: nats, auth: bus, operation: kv_get, bucket: 7, key: 1.10}"
    found = read(f"- {{step: s, tool: {tool}}}").workflow[0].tool[0]
    assert (found.fields["bucket"], found.fields["key"]) == ("7", "1.10")
    shell = read("- {step: s, tool: {kind: shell, cmds: [true, echo 1]}}").workflow[0].tool[0]
    assert shell.fields["cmds"] == ["true", "echo 1"]


def test_a_keychain_entry_keeps_its_text_as_written() -> None:
    entry = "keychain: [{name: k, kind: credential, credential: 1.10}]\n"
    found = read(f"- {{step: s, {NOOP}}}", root=entry)
    assert found.keychain[0].fields == {"credential": "1.10"}


def test_what_is_no_scalar_is_no_text() -> None:
    text = document(f"- {{step: s, {NOOP}}}").replace("{name: test}", "{name: t, labels: {a: [1]}}")
    (problem,) = parse_playbook(text).problems
    assert (problem.code, problem.message) == ("E104", "expected text, found a list")
