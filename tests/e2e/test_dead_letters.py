"""A message that cannot be handled is seen, sent again, handled or returned, and dropped."""

import asyncio
from typing import Any

import msgspec
import nats
import pytest
from tests.e2e.desk import Desk
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


def letters(desk: Desk, subject: str) -> list[dict[str, Any]]:
    listed = desk.type("dlq", "ls", "--json", "--limit", "200")
    assert listed.code == 0, listed
    return [one for one in msgspec.json.decode(listed.out) if one["subject"] == subject]


def wait_for_letter(desk: Desk, subject: str, *, requeued: int) -> dict[str, Any]:
    def is_there() -> bool:
        return [one["requeued"] for one in letters(desk, subject)] == [requeued]

    wait_until(is_there, timeout_s=PATIENCE_S, what=f"a letter after {requeued} returns")
    (letter,) = letters(desk, subject)
    return letter


def test_a_poisoned_message_returns_with_its_count_until_it_is_dropped(
    desk: Desk, stack: Stack
) -> None:
    publish(stack, FACTS, POISON, name="poison")
    first = wait_for_letter(desk, FACTS, requeued=0)
    shown = desk.type("dlq", "show", str(first["sequence"]))
    assert '"poison": 1' in shown.out
    assert first["consumer"] == "planner-0"
    sent = desk.type("dlq", "requeue", str(first["sequence"]), "--who", "ann")
    assert "1 sent again." in sent.out
    second = wait_for_letter(desk, FACTS, requeued=1)
    refused = desk.type("dlq", "drop", str(second["sequence"]))
    assert refused.code != 0
    assert "--reason" in refused.err
    dropped = desk.type(
        "dlq", "drop", str(second["sequence"]), "--reason", "nobody wrote it", "--who", "bob"
    )
    assert "1 dropped." in dropped.out
    assert letters(desk, FACTS) == []
    acts = msgspec.json.decode(desk.type("dlq", "log", "--json").out)
    told = [(one["who"], one["action"], one["why"]) for one in acts if one["subject"] == FACTS]
    # The API names who signed in, whoever they say that they are.
    owner = msgspec.json.decode(desk.type("whoami", "--json").out)["name"]
    assert told == [(owner, "drop", "nobody wrote it"), (owner, "requeue", None)]


def test_a_message_is_handled_once_what_it_needs_is_there(desk: Desk, stack: Stack) -> None:
    publish(stack, ORDERS, b'{"id": 1}', name="order-1")
    letter = wait_for_letter(desk, ORDERS, requeued=0)
    assert "trigger" in letter["reason"]
    registered = desk.type("register", desk.write("late-orders", HELLO))
    assert registered.code == 0, registered
    kept = desk.type("trigger", "put", "late", "e2e/late-orders", "--subject", "orders.late")
    assert kept.code == 0, kept
    sent = desk.type("dlq", "requeue", str(letter["sequence"]), "--server", stack.url("api"))
    assert "1 sent again." in sent.out, sent
    again = desk.type("dlq", "requeue", str(letter["sequence"]))
    assert again.code == 0, again

    def has_run() -> bool:
        lines = desk.type("ls", "--path", "e2e/late-orders", "--json").out.splitlines()
        return [msgspec.json.decode(line)["status"] for line in lines] == ["COMPLETED"]

    wait_until(has_run, timeout_s=PATIENCE_S, what="the message has started one run")
    assert letters(desk, ORDERS) == []
