"""A message in the event stream that this release cannot read becomes a dead letter."""

import asyncio

import msgspec
import nats
import pytest
from tests.e2e.command_line import CommandLine
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(120)

HELLO = "workflow:\n  - step: start\n    tool: {kind: noop}\n"
PATIENCE_S = 120.0


async def publish_doctored(url: str) -> str:
    """Publish the last batch again with an event type of a later release."""
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        info = await stream.stream_info("NOETL_EVENTS")
        last = await stream.get_msg("NOETL_EVENTS", seq=info.state.last_seq)
        assert last.data is not None
        assert last.subject is not None
        data = last.data.replace(b'"playbook.completed"', b'"playbook.applauded"')
        assert data != last.data
        await stream.publish(last.subject, data, headers={"Nats-Msg-Id": "doctored"})
    finally:
        await client.close()
    return str(last.subject)


def test_an_unknown_event_type_is_put_aside_and_the_projector_goes_on(
    command_line: CommandLine, stack: Stack
) -> None:
    file = command_line.write("hello", HELLO)
    before = command_line.type("run", file)
    assert before.code == 0, before
    command_line.wait_for(before.err.split()[1], "COMPLETED")
    subject = asyncio.run(publish_doctored(stack.url("nats")))
    wait_until(
        lambda: "playbook.applauded" in command_line.type("dlq", "ls").out.replace("\n", ""),
        timeout_s=PATIENCE_S,
        what="the message is a dead letter",
    )
    (dead_letter,) = msgspec.json.decode(command_line.type("dlq", "ls", "--json").out)
    assert (dead_letter["stream"], dead_letter["subject"]) == ("NOETL_EVENTS", subject)
    assert dead_letter["consumer"].startswith("projector-0")
    shown = command_line.type("dlq", "show", str(dead_letter["sequence"]))
    assert before.err.split()[1] in shown.out
    after = command_line.type("run", file)
    assert after.code == 0, after
    command_line.wait_for(after.err.split()[1], "COMPLETED")
    assert command_line.status(before.err.split()[1])["status"] == "COMPLETED"
