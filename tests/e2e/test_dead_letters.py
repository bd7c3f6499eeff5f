"""A message that cannot be handled is seen, sent again, handled or returned, and dropped."""

import asyncio
from typing import Any

import msgspec
import nats
import pytest
from tests.e2e.command_line import CommandLine
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 120.0
POISON = b'{"poison": 1}'
FACTS = "noetl.ingest.0.default.default"
ORDERS = "noetl.triggers.default.default.orders.late"
HELLO = "workflow:\n  - step: start\n    tool: {kind: noop}\n"


def publish(stack: Stack, subject: str, data: bytes, *, name: str) -> None:
    async def send() -> None:
        client = await nats.connect(stack.url("nats"))
        try:
            await client.jetstream().publish(subject, data, headers={"Nats-Msg-Id": name})
        finally:
            await client.close()

    asyncio.run(send())


def letters(command_line: CommandLine, subject: str) -> list[dict[str, Any]]:
    listed = command_line.type("dlq", "ls", "--json", "--limit", "200")
    assert listed.code == 0, listed
    return [item for item in msgspec.json.decode(listed.out) if item["subject"] == subject]


def wait_for_letter(command_line: CommandLine, subject: str, *, requeued: int) -> dict[str, Any]:
    def is_there() -> bool:
        return [item["requeued"] for item in letters(command_line, subject)] == [requeued]

    wait_until(is_there, timeout_s=PATIENCE_S, what=f"a letter after {requeued} returns")
    (dead_letter,) = letters(command_line, subject)
    return dead_letter


def test_a_poisoned_message_returns_with_its_count_until_it_is_dropped(
    command_line: CommandLine, stack: Stack
) -> None:
    publish(stack, FACTS, POISON, name="poison")
    first = wait_for_letter(command_line, FACTS, requeued=0)
    shown = command_line.type("dlq", "show", str(first["sequence"]))
    assert '"poison": 1' in shown.out
    assert first["consumer"] == "planner-0"
    sent = command_line.type("dlq", "requeue", str(first["sequence"]), "--who", "ann")
    assert "1 sent again." in sent.out
    second = wait_for_letter(command_line, FACTS, requeued=1)
    refused = command_line.type("dlq", "drop", str(second["sequence"]))
    assert refused.code != 0
    assert "--reason" in refused.err
    dropped = command_line.type(
        "dlq", "drop", str(second["sequence"]), "--reason", "nobody wrote it", "--who", "bob"
    )
    assert "1 dropped." in dropped.out
    assert letters(command_line, FACTS) == []
    acts = msgspec.json.decode(command_line.type("dlq", "log", "--json").out)
    facts = [(one["who"], one["action"], one["why"]) for one in acts if one["subject"] == FACTS]
    # The API names who signed in, whoever they say that they are.
    owner = msgspec.json.decode(command_line.type("whoami", "--json").out)["name"]
    assert facts == [(owner, "drop", "nobody wrote it"), (owner, "requeue", None)]


def test_a_message_is_handled_once_what_it_needs_is_there(
    command_line: CommandLine, stack: Stack
) -> None:
    publish(stack, ORDERS, b'{"id": 1}', name="order-1")
    dead_letter = wait_for_letter(command_line, ORDERS, requeued=0)
    assert "trigger" in dead_letter["reason"]
    registered = command_line.type("register", command_line.write("late-orders", HELLO))
    assert registered.code == 0, registered
    kept = command_line.type(
        "trigger", "put", "late", "e2e/late-orders", "--subject", "orders.late"
    )
    assert kept.code == 0, kept
    sent = command_line.type(
        "dlq", "requeue", str(dead_letter["sequence"]), "--server", stack.url("api")
    )
    assert "1 sent again." in sent.out, sent
    again = command_line.type("dlq", "requeue", str(dead_letter["sequence"]))
    assert again.code == 0, again

    def has_run() -> bool:
        lines = command_line.type("ls", "--path", "e2e/late-orders", "--json").out.splitlines()
        return [msgspec.json.decode(line)["status"] for line in lines] == ["COMPLETED"]

    wait_until(has_run, timeout_s=PATIENCE_S, what="the message has started one run")
    assert letters(command_line, ORDERS) == []
