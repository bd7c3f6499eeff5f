"""A whole stack, attacked with the credentials of one of its workers."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command_line import CommandLine
from tests.support import informers
from tests.support.stack import Stack, running_stack

from noetl_contracts import codec, ids, subjects
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId, WorkerId
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import Fact, FactBatch
from noetl_contracts.subjects import Reporter
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Message

OWNER = TenantId("default"), OrganizationId("default")
PLAYBOOK = """\
workflow:
  - step: start
    tool:
      kind: python
      code: |
        import time
        def main():
            time.sleep(8)
            return {"is": "true"}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("attacked") / "stack"
    environ = {"NOETL_AUTH": "off-on-loopback"}
    options = ("--workers", "2", "--pool", "gpu=1", "--no-s3")
    with running_stack(folder, *options, environ=environ) as running:
        yield running


def address(stack: Stack, user: str) -> str:
    """The broker's address for a user of the stack, with the password that its owner has."""
    password = json.loads((stack.folder / "secrets.json").read_text())["nats_by_user"][user]
    return f"nats://{user}:{password}@{stack.url('nats').rpartition('@')[2]}"


def forged(execution_id: str, name: str, facts: list[Fact]) -> bytes:
    return codec.encode_json(
        FactBatch(
            key=f"forged-{name}",
            execution_id=ExecutionId(execution_id),
            tenant_id=OWNER[0],
            organization_id=OWNER[1],
            producer=name,
            facts=facts,
        )
    )


async def publish(stack: Stack, user: str, subject: str, data: bytes) -> None:
    waits = ConnectionTimeouts(request_s=3.0)
    async with open_connection(address(stack, user), name=user, waits=waits) as connection:
        name = codec.digest_hex(f"{user} {subject}".encode() + data)
        message = Message(subject=subject, message_id=name, data=data)
        await JetStreamPublisher(connection).publish_message(message)


def test_forged_reports_change_nothing(stack: Stack, tmp_path: Path) -> None:
    command_line = CommandLine(stack, tmp_path)
    execution_id = command_line.begin(command_line.write("honest", PLAYBOOK))
    command_line.wait_for_event(execution_id, "command.started")
    (started,) = [
        item
        for item in command_line.events(execution_id)
        if item["event_type"] == "command.started"
    ]
    context: dict[str, Any] = started["context"]
    holder = context["worker_id"]
    thief = next(name for name in ("worker-1", "worker-2") if name != holder)
    shard = ids.find_shard(ExecutionId(execution_id), ids.SHARD_COUNT_DEFAULT)
    about = {"command_id": context["command_id"], "attempt": context["attempt"]}
    for user, reporter in ((thief, Reporter("default", thief)), ("worker-gpu-1", None)):
        for name in (holder, user):
            mine = {**about, "worker_id": WorkerId(name)}
            told: list[Fact] = [
                facts.CommandCompleted(**mine, result=informers.RESULT, patch={"k": "forged"}),
                facts.CommandFailed(**mine, error=informers.ERROR),
                facts.CommandStopped(**mine),
                facts.CommandLost(**about, reason="forged"),
                facts.CtxWriteRequested(request_id="forged", patch={"k": "forged"}),
                facts.CancelRequested(reason="forged"),
            ]
            own = reporter or Reporter("gpu", user)
            subject = subjects.build_report_subject(shard, *OWNER, own)
            asyncio.run(publish(stack, user, subject, forged(execution_id, name, told)))
    plain = subjects.build_ingest_subject(shard, *OWNER)
    as_holder = subjects.build_report_subject(shard, *OWNER, Reporter("default", holder))
    for subject in (plain, as_holder):
        with pytest.raises(MessagingUnavailable):
            asyncio.run(publish(stack, thief, subject, forged(execution_id, thief, told)))
    shown = command_line.wait_for(execution_id, "COMPLETED")
    assert "forged" not in json.dumps(shown)
    history = command_line.events(execution_id)
    assert [item["event_type"] for item in history if "cancel" in item["event_type"]] == []
    (done,) = [item for item in history if item["event_type"] == "command.completed"]
    assert done["context"]["worker_id"] == holder
    assert "forged" not in json.dumps(history)

    dead_letters = json.loads(command_line.type("dlq", "ls", "--json").out)
    assert [dead_letter["reason"].partition(":")[0] for dead_letter in dead_letters] == [
        "ReportRefused"
    ] * 4
