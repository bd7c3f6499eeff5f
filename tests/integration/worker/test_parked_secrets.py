# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Pipelines that wait with secrets in hand keep them sealed, also short ones."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.integration.worker.test_parked_pipelines import completed, parked, resumed
from tests.support.working import Bench, bench, command_of

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import ChildWait, MessageWait
from noetl_contracts.requests.facts import CommandFailed
from noetl_worker.domain.secret_mask import SEALED

# Too short to be masked inside data: only a seal keeps it.
SHORT = "zwerg-x9-q7"
LONG = "blaumeise-4711-geheim"
KEYCHAIN = [{"name": "env", "kind": "secret_manager", "fields": {"provider": "env", "map": {"short": "SHORT", "long": "LONG"}}}]  # fmt: skip
WAITING = """
  - step: s
    tool:
      - {name: hold, kind: noop, set: {v: "{{ keychain.env.%s }}", iter.w: "{{ keychain.env.%s }}"}}
      - {name: ask, kind: external, mode: approval, title: "May {{ v }}?", input: {s: "{{ v }}"}}
      - {name: use, kind: python, input: {v: "{{ v }}", w: "{{ iter.w }}"}, code: "result = [len(v), v == w, v[:3]]"}
"""


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(secret_env={"SHORT": SHORT, "LONG": LONG}) as found:
        yield found


def asking(step: str, **about: Any) -> Command:
    return command_of(step, keychain=KEYCHAIN, **about)


@pytest.mark.parametrize(("name", "secret"), [("short", SHORT), ("long", LONG)])
async def test_variables_and_inputs_wait_sealed_and_open_again(
    worker: Bench, name: str, secret: str
) -> None:
    command = asking(WAITING % (name, name))
    fact = await parked(worker, command)
    assert isinstance(fact.wait, MessageWait)
    assert fact.wait.title == "May ***?"
    payload = (await worker.payloads.read_payload(fact.resume_ref)).decode()
    assert secret not in payload
    assert len(SEALED.findall(payload)) == 3
    result, _ = await completed(worker, resumed(command, fact, {"decision": "approve"}))
    assert result == [len(secret), True, secret[:3]]


@pytest.mark.parametrize(("name", "secret"), [("short", SHORT), ("long", LONG)])
async def test_a_childs_inputs_travel_sealed_and_open_in_its_tasks(
    worker: Bench, name: str, secret: str
) -> None:
    step = f'- {{step: s, tool: {{kind: playbook, path: a/b, input: {{n: 1, s: "{{{{ keychain.env.{name} }}}}"}}}}}}'
    wait = (await parked(worker, asking(step))).wait
    assert isinstance(wait, ChildWait)
    assert wait.workload["n"] == 1
    assert SEALED.fullmatch(wait.workload["s"])
    inside = '- {step: s, tool: {kind: python, input: {s: "{{ workload.s }}"}, code: "result = [len(s), s[:3]]"}}'
    result, _ = await completed(worker, command_of(inside, workload=wait.workload))
    assert result == [len(secret), secret[:3]]


async def test_a_correlation_key_may_hold_no_secret(worker: Bench) -> None:
    step = '- {step: s, tool: {kind: external, mode: signal, correlation_key: "key-{{ keychain.env.short }}"}}'
    fact = (await worker.run(asking(step)))[-1]
    assert isinstance(fact, CommandFailed)
    assert fact.error.kind == "validation"
    assert "correlation_key" in fact.error.message
    assert SHORT not in fact.error.message
