"""The planner and secrets: it sends definitions on, and never has a value."""

from typing import Any

import pytest
from tests.support.planning import PlannerHarness, done

from noetl_planner.domain.decision.draft import Limits

FRONT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t}
workload: {auth: app}
keychain:
  - {name: app, kind: bearer, token: "{{ keychain.base.part }}"%s}
  - {name: base, kind: static, map: {part: x}}
workflow:
"""
ENTRY = "  - step: start\n    tool: {kind: noop}\n    next: {arcs: [{step: s}]}\n  - step: s\n"
NAMES = ["app", "base"]


LOOP = """\
    loop: {cursor: {kind: postgres, auth: app, claim: SELECT 1}, iterator: r}
    tool: {kind: noop}
"""


def names_sent(step: str, *, required: bool = False) -> list[list[str]]:
    """The names of the entries that each command carries, the entry step's first."""
    harness = PlannerHarness(FRONT % (", required: true" if required else "") + ENTRY + step)
    harness.start()
    found = [harness.sent()[0]]
    harness.tell(done(found[0]))
    found.append(harness.sent()[0])
    return [[entry["name"] for entry in command.keychain] for command in found]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("    tool: {kind: noop}\n", []),
        ('    tool: {kind: noop, result: "{{ workload.auth }}"}\n', []),
        ('    tool: {kind: noop, result: "{{ keychain.app.token }}"}\n', NAMES),
        ("    tool: {kind: noop, result: \"{{ token('app') }}\"}\n", NAMES),
        ("    tool: {kind: http, url: x, auth: app}\n", NAMES),
        ('    tool: {kind: http, url: x, auth: {credential: "{{ workload.auth }}"}}\n', NAMES),
        (
            ("    tool: {kind: transfer, source: {type: data, data: [], auth: app},"
            " target: {type: file, uri: u}}\n"),
            NAMES,
        ),
        (LOOP, NAMES),
    ],
)  # fmt: skip
def test_a_command_carries_the_keychain_when_its_step_may_use_it(
    step: str, expected: list[str]
) -> None:
    assert names_sent(step) == [[], expected]


def test_the_first_command_carries_what_is_required() -> None:
    assert names_sent("    tool: {kind: noop}\n", required=True) == [NAMES, []]


def test_definitions_travel_unrendered() -> None:
    harness = PlannerHarness(
        FRONT % "" + '  - {step: s, tool: {kind: noop, result: "{{ keychain.app.token }}"}}\n'
    )
    harness.start()
    (command,) = harness.sent()
    assert command.keychain[0] == {
        "name": "app",
        "kind": "bearer",
        "fields": {"token": "{{ keychain.base.part }}"},
    }


ADMIT = """\
    spec: {policy: {admit: {rules: [{when: "{{ keychain.app }}", then: {allow: true}}]}}}
"""
ARC = "    next: {arcs: [{step: s, %s}]}\n  - step: s\n    tool: {kind: noop}\n"


@pytest.mark.parametrize(
    "rest",
    [
        '    set: {ctx.k: "{{ keychain.app.token }}"}\n',
        '    set: {ctx.k: "{{ keychain }}"}\n',
        "    set: {ctx.k: \"{{ token('app') }}\"}\n",
        "    set: {ctx.k: \"{{ 'a' | encrypt_secret }}\"}\n",
        "    set: {ctx.k: \"{{ ['a'] | map('encrypt_secret') | list }}\"}\n",
        ARC % 'when: "{{ keychain.app.token == 1 }}"',
        ARC % 'when: "{{ keychain.app is defined }}"',
        ARC % 'when: "{{ keychain }}"',
        ARC % 'set: {ctx.k: "{{ keychain.app.token }}"}',
        ADMIT,
    ],
)
def test_a_secret_on_the_planner_is_a_template_error_that_shows_the_way(rest: str) -> None:
    harness = PlannerHarness(FRONT % "" + "  - step: start\n    tool: {kind: noop}\n" + rest)
    harness.start()
    for command in harness.sent():
        harness.tell(done(command))
    error: Any = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("template", "start")
    assert "workers alone" in error.message


def test_a_secret_in_a_workload_default_fails_the_start() -> None:
    text = FRONT % "" + "  - {step: start, tool: {kind: noop}}\n"
    harness = PlannerHarness(text.replace("auth: app}", 'auth: "{{ keychain.app.token }}"}'))
    harness.start()
    assert harness.events("playbook.failed")[0].error.step == "(workload)"


def test_env_is_what_the_deployment_shows() -> None:
    text = FRONT % "" + '  - {step: s, tool: {kind: noop}, set: {ctx.r: "{{ env.REGION }}"}}\n'
    harness = PlannerHarness(text, limits=Limits(template_env={"REGION": "eu"}))
    harness.start()
    harness.tell(done(harness.sent()[0]))
    assert harness.state.ctx == {"r": "eu"}
