"""A message in the event stream that this release cannot read becomes a dead letter."""

import asyncio

import msgspec
import nats
import pytest
from tests.e2e.desk import Desk
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
    desk: Desk, stack: Stack
) -> None:
    file = desk.write("hello", HELLO)
    before = desk.type("run", file)
    assert before.code == 0, before
    desk.wait_for(before.err.split()[1], "COMPLETED")
    subject = asyncio.run(publish_doctored(stack.url("nats")))
    wait_until(
        lambda: "playbook.applauded" in desk.type("dlq", "ls").out.replace("\n", ""),
        timeout_s=PATIENCE_S,
        what="the message is a dead letter",
    )
    (letter,) = msgspec.json.decode(desk.type("dlq", "ls", "--json").out)
    assert (letter["stream"], letter["subject"]) == ("NOETL_EVENTS", subject)
    assert letter["consumer"].startswith("projector-0")
    shown = desk.type("dlq", "show", str(letter["sequence"]))
    assert before.err.split()[1] in shown.out
    after = desk.type("run", file)
    assert after.code == 0, after
    desk.wait_for(after.err.split()[1], "COMPLETED")
    assert desk.status(before.err.split()[1])["status"] == "COMPLETED"
