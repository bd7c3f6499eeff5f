"""Canary secrets through the tools of one pipeline, in success and failure: afterwards nowhere.

A decoy, which nobody was told is a secret, takes the same ways: it is found in every place that is
searched, so each place can be found in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e import canaries
from tests.e2e.canaries import DECOY, DECOY_NAME, ENV, SECRETS
from tests.e2e.command_line import CommandLine
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with canaries.echoing() as (address, _):
        yield address


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("canary") / "stack"
    options = ("--workers", "1", "--no-s3", "--set", "WORKER_SECRET_ENV=CANARY_ENV")
    with running_stack(folder, *options, environ={"CANARY_ENV": ENV}) as running:
        yield running


def tasks(secret: str, echo: str) -> list[dict[str, Any]]:
    """Every tool with a secret, where it works, and where it fails quoting it."""
    use = "{{ " + secret + " }}"
    pg = {"kind": "postgres", "auth": "c_pg"}
    python = {"kind": "python", "input": {"s": use}}
    raising = "\n    raise ConnectionError({'why': s}) from problem"
    return [
        *(
            {"kind": "http", "method": "POST", "url": echo + path, "auth": auth, "json": {"s": use}}
            for path in ("/200", "/500", "/401/html")
            for auth in ("c_bearer", "c_basic", "c_key", "c_oauth", "shop")
        ),
        {"kind": "http", "url": echo, "auth": {"type": "bearer", "token": "{{ keychain.web.v }}"}},
        {"kind": "http", "url": echo + "/404?k=" + use, "headers": {"X-Own": use}},
        {"kind": "http", "url": "http://127.0.0.1:1/?k=" + use},
        {"kind": "http", "url": "ftp://" + use},
        {"kind": "http", "url": echo, "auth": use},
        {**pg, "query": "select 1 as one"},
        {**pg, "query": "select $1::text as s, 1 / 0", "params": [use]},
        {**pg, "query": f"select cast('{use}' as text) as s"},
        {**pg, "auth": "c_wrong", "query": "select 1"},
        {**python, "code": "print('printed', s)\nresult = {'s': s, 'more': [s]}"},
        {**python, "code": "import logging\nlogging.warning('logged %s', s)\nraise ValueError(s)"},
        {**python, "code": f"try:\n    raise KeyError(s)\nexcept KeyError as problem:{raising}"},
        {**python, "code": "result = base64.b64encode(b'user:' + s.encode()).decode()"},
        {**python, "code": "result = [json.dumps({'a': s}), s] * 2000"},
        {**python, "code": f"x = '{use}'\nraise RuntimeError(x * 3)"},
        {"kind": "python", "input": {"s": use}, "code": "import os\nos._exit(3)"},
        {"kind": "noop", "result": {"s": use, "t": "a " + use}},
        {"kind": "noop", "result": "{{ " + secret + " | int }}"},
        {"kind": "noop", "result": "{{ (" + secret + ").gone }}"},
        {"kind": "noop", "set": {"ctx.kept": use, "v": use, "ctx.again": ["x " + use]}},
        {**python, "input": {"s": "{{ ctx.kept }}"}, "code": "print(s)\nresult = len(s)"},
    ]  # fmt: skip


def secret_uses(secret: str) -> list[dict[str, Any]]:
    """Uses by which a worker learns that a value is a secret."""
    dsn = "postgres://a:{{ " + secret + " }}@127.0.0.1:1/x"
    sealed = "{{ " + secret + " | encrypt_secret }}"
    return [
        {"kind": "postgres", "auth": {"type": "postgres", "dsn": dsn}, "query": "select 1"},
        {"kind": "noop", "set": {"ctx.sealed": sealed}},
        {"kind": "noop", "result": sealed},
    ]


def playbook(secret: str, echo: str) -> str:
    used = tasks(secret, echo) + (secret_uses(secret) if secret != DECOY_NAME else [])
    found = [
        {"name": f"t{index}", **task, "spec": {"policy": {"on_unmatched": "continue"}}}
        for index, task in enumerate(used)
    ]
    last = "failed with {{ " + secret + " }}"
    rules = [{"else": {"then": {"do": "fail", "message": last}}}]
    each = {"in": [1, 2], "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 2}}
    echoed = {"kind": "http", "url": echo + "/500", "headers": {"X": "{{ " + secret + " }}"}}
    steps = [
        {"step": "start", "tool": found, "next": {"arcs": [{"step": "each"}]}},
        {"step": "each", "loop": each, "tool": echoed, "next": {"arcs": [
            {"step": "last", "when": "{{ event.name == 'call.error' }}"}]}},
        {"step": "last", "tool": {"kind": "noop", "spec": {"policy": {"rules": rules}}}},
    ]  # fmt: skip
    return yaml.safe_dump(
        {"keychain": canaries.keychain(echo), "workload": {"d": DECOY}, "workflow": steps}
    )


def run(command_line: CommandLine, secret: str, echo: str) -> tuple[str, str]:
    answer = command_line.type("run", command_line.write("canary", playbook(secret, echo)))
    assert answer.code == 1, answer
    execution_id = canaries.started(answer.err)
    command_line.wait_for(execution_id, "FAILED")
    return execution_id, answer.out + answer.err


def test_canaries_are_nowhere_and_a_decoy_is_everywhere(
    house: Stack, echo: str, tmp_path: Path
) -> None:
    command_line = CommandLine(house, tmp_path)
    canaries.put_credentials(command_line, house, echo)
    execution_id, outcome = run(command_line, "keychain.env.pw", echo)
    assert "failed with ***" in outcome
    for place, texts in canaries.places(command_line, house, [execution_id], outcome).items():
        assert canaries.leaks(texts, SECRETS) == [], place
    execution_id, outcome = run(command_line, DECOY_NAME, echo)
    searched = canaries.places(command_line, house, [execution_id], outcome)
    assert f"failed with {DECOY}" in outcome
    hidden = [where for where, texts in searched.items() if not canaries.holds_decoy(texts)]
    # None of our own statements is refused, and what tasks say is in logs of their own, which are
    # payloads: the logs of servers and services say nothing of either.
    assert hidden == ["ledger's log", "logs"]
