"""Unknown keys are refused; the older dialect keeps those that no slip of the pen explains."""

import pytest

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level

HEAD = "apiVersion: noetl.io/{}\nkind: Playbook\nmetadata: {{name: keys}}\n"
NOOP = "tool: {kind: noop, result: {a: 1}}"


def problems(workflow: str, *, version: str = "v2", root: str = "") -> list[tuple[str, bool, str]]:
    text = HEAD.format(version) + root + "workflow:\n" + workflow
    return [
        (problem.path, problem.is_error, problem.hint or "")
        for problem in parse_playbook(text).problems
        if problem.code == "E103"
    ]


def test_a_mistyped_next_is_refused_with_the_key_that_was_meant() -> None:
    workflow = f"  - {{step: a, {NOOP}, nxt: {{arcs: [{{step: b}}]}}}}\n  - {{step: b, {NOOP}}}\n"
    assert problems(workflow) == [("workflow[0].nxt", True, "did you mean 'next'?")]


@pytest.mark.parametrize(
    ("root", "step", "path"),
    [
        ("workflw: []\n", f"{{step: a, {NOOP}}}", "workflw"),
        ("executor: {speck: {}}\n", f"{{step: a, {NOOP}}}", "executor.speck"),
        ("executor: {spec: {undefinedd: lenient}}\n", f"{{step: a, {NOOP}}}",
         "executor.spec.undefinedd"),
        ("executor: {spec: {policy: {limits: {max_stps: 3}}}}\n", f"{{step: a, {NOOP}}}",
         "executor.spec.policy.limits.max_stps"),
        ("keychain: [{name: k, kind: static, map: {a: b}, mapp: {}}]\n", f"{{step: a, {NOOP}}}",
         "keychain[0].mapp"),
        ("workbook: [{name: w, tool: {kind: noop}, toool: {}}]\n", f"{{step: a, {NOOP}}}",
         "workbook[0].toool"),
        ("", f"{{step: a, {NOOP}, loop: {{in: [1], iterator: i, itrator: j}}}}",
         "workflow[0].loop.itrator"),
        ("", f"{{step: a, {NOOP}, loop: {{in: [1], iterator: i, spec: {{max_inflight: 3}}}}}}",
         "workflow[0].loop.spec.max_inflight"),
        ("", "{step: a, tool: {kind: http, url: u, heders: {}}}", "workflow[0].tool.heders"),
        ("", "{step: a, tool: {kind: noop, spec: {policy: {rulez: []}}}}",
         "workflow[0].tool.spec.policy.rulez"),
        ("", f"{{step: a, {NOOP}, next: {{arcs: [{{step: a, wen: true}}]}}}}",
         "workflow[0].next.arcs[0].wen"),
        ("", f"{{step: a, {NOOP}, output: {{formatt: json}}}}", "workflow[0].output.formatt"),
    ],
)  # fmt: skip
def test_every_mapping_of_the_language_refuses_an_unknown_key(
    root: str, step: str, path: str
) -> None:
    found = problems(f"  - {step}\n", root=root)
    assert [(place, is_error) for place, is_error, _ in found] == [(path, True)]
    assert found[0][2]


@pytest.mark.parametrize("key", ["workload", "metadata"])
def test_maps_of_the_authors_own_take_any_key(key: str) -> None:
    own = {"workload": "workload: {anything: 1}\n", "metadata": ""}[key]
    text = (HEAD.format("v2") + own).replace(
        "{name: keys}", "{name: keys, owner: me, labels: {x: 1}}"
    )
    text += f"workflow:\n  - {{step: a, {NOOP}, input: {{any: 1}}}}\n"
    assert parse_playbook(text, level=Level.STRICT).problems == ()


def test_the_older_dialect_keeps_extra_keys_with_a_warning() -> None:
    step = f"  - {{step: a, {NOOP}, remarks: kept}}\n"
    assert problems(step, version="v1", root="owners: [me]\n") == [
        ("owners", False, ""),
        ("workflow[0].remarks", False, ""),
    ]
    assert problems(step) == [("workflow[0].remarks", True, "")]


def test_a_slip_is_refused_in_the_older_dialect_too() -> None:
    step = f"  - {{step: a, {NOOP}, nxt: {{arcs: []}}}}\n"
    assert problems(step, version="v1") == [("workflow[0].nxt", True, "did you mean 'next'?")]


@pytest.mark.parametrize(
    ("step", "mode"),
    [
        (f"{{step: a, {NOOP}, next: a}}", "strict"),
        (f"{{step: a, {NOOP}, next: [a]}}", "strict"),
        (f"{{step: a, {NOOP}, retry: {{max_attempts: 3}}}}", "strict"),
        ("{step: a, tool: noop}", "lenient"),
        ("{step: a, tool: {kind: noop, args: {a: 1}}}", "lenient"),
        (f"{{step: a, {NOOP}, case: [{{when: '{{{{ true }}}}', then: {{set: {{a: 1}}}}}}]}}",
         "lenient"),
    ],
)  # fmt: skip
def test_short_forms_are_of_today_and_older_forms_are_not(step: str, mode: str) -> None:
    playbook = parse_playbook(HEAD.format("v2") + f"workflow:\n  - {step}\n").playbook
    assert playbook is not None
    assert playbook.executor.spec.undefined == mode


def test_labels_take_any_scalar_as_it_is_written() -> None:
    labels = "{nightly: true, priority: 7, since: 2026-01-01, version: 1.10, big: 0x1F, on: 'yes'}"
    text = HEAD.format("v2").replace("{name: keys}", f"{{name: keys, labels: {labels}}}")
    parsed = parse_playbook(text + f"workflow:\n  - {{step: a, {NOOP}}}\n", level=Level.STRICT)
    assert parsed.problems == ()
    assert parsed.playbook is not None
    assert parsed.playbook.metadata.labels == {
        "nightly": "true",
        "priority": "7",
        "since": "2026-01-01",
        "version": "1.10",
        "big": "0x1F",
        "on": "yes",
    }
