"""Old shapes advance step by step, or are refused."""

import msgspec
import pytest
from tests.support.builders import History, a_batch, a_cursor_loop

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.events.frame_events import FrameAbandoned, FrameCommitRejected
from noetl_contracts.ledger import stored_event, upcasters
from noetl_contracts.ledger.upcasters import BadUpcasterRegistry, Body, Registry

# As releases before the second version of each wrote them.
ABANDONED = {
    "event_type": "frame.abandoned",
    "frame_id": "1",
    "stage_id": "2",
    "step": "drain",
    "attempt": 1,
    "reason": "lost",
    "previous_owner": "worker-1",
}
REJECTED = {
    "event_type": "frame.commit_rejected",
    "frame_id": "1",
    "stage_id": "2",
    "step": "drain",
    "attempt": 1,
    "current_fence": 2,
    "reason": "stale",
}


def renamed(body: Body) -> Body:
    return {"name": body["title"]}


def older(event: dict[str, object], **changes: object) -> stored_event.StoredEvent:
    """An event of the ledger in its first version."""
    like = stored_event.to_stored_event(a_cursor_loop().envelopes[0])
    name = f"noetl.{event['event_type']}"
    return msgspec.structs.replace(like, event=event, schema_name=name, schema_version=1, **changes)


def test_the_current_shape_is_left_alone() -> None:
    body = {"step": "fetch"}
    assert upcasters.upcast_body("noetl.step.enter", upcasters.FIRST_VERSION, body) is body


def test_an_old_shape_is_advanced() -> None:
    registry = {("noetl.thing", 0): (1, renamed)}
    assert upcasters.upcast_body("noetl.thing", 0, {"title": "x"}, registry) == {"name": "x"}


def test_shapes_advance_one_after_the_other() -> None:
    registry: Registry = {
        ("noetl.thing", 1): (2, lambda body: {"b": body["a"]}),
        ("noetl.thing", 2): (5, lambda body: {"c": body["b"]}),
    }
    upcasters.check_registry(registry)
    assert upcasters.get_current_version("noetl.thing", registry) == 5
    assert upcasters.upcast_body("noetl.thing", 1, {"a": 1}, registry) == {"c": 1}


def test_a_newer_shape_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnknownEventType, match="upgrade before reading"):
        upcasters.upcast_body("noetl.step.enter", upcasters.FIRST_VERSION + 1, {})
    with pytest.raises(UnknownEventType, match=r"frame.abandoned version 3 .*current: 2"):
        upcasters.upcast_body("noetl.frame.abandoned", 3, {})


def test_an_upcaster_that_does_not_advance_is_refused() -> None:
    registry = {("noetl.thing", 0): (0, renamed)}
    with pytest.raises(UnknownEventType, match="does not advance"):
        upcasters.upcast_body("noetl.thing", 0, {"title": "x"}, registry)
    with pytest.raises(BadUpcasterRegistry, match="does not advance"):
        upcasters.check_registry(registry)


def test_an_upcaster_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(BadUpcasterRegistry, match="nothing leads from there to 4"):
        upcasters.check_registry(
            {("noetl.thing", 1): (2, renamed), ("noetl.thing", 3): (4, renamed)}
        )


def test_the_digest_says_which_transitions_exist() -> None:
    assert upcasters.digest_registry() != upcasters.digest_registry(
        {("noetl.thing", 0): (1, renamed)}
    )


def test_upcasters_are_pure() -> None:
    for event in (ABANDONED, REJECTED):
        before = codec.encode_canonical(event)
        item, two = (
            upcasters.upcast_body(f"noetl.{event['event_type']}", 1, event) for _ in range(2)
        )
        assert item == two
        assert codec.encode_canonical(event) == before


def test_first_versions_are_read_as_the_second_ones() -> None:
    abandoned = stored_event.read_envelope(older(ABANDONED))
    assert isinstance(abandoned.event, FrameAbandoned)
    assert (abandoned.event.previous_worker, abandoned.schema_version) == ("worker-1", 2)
    rejected = stored_event.read_envelope(older(REJECTED)).event
    assert isinstance(rejected, FrameCommitRejected)
    assert rejected.current_attempt == 2


def test_a_message_of_an_older_planner_is_read() -> None:
    before, last = older(ABANDONED, stream_version=1), older(REJECTED, stream_version=2)
    batch = codec.to_builtins(a_batch(a_cursor_loop().envelopes[:2]))
    batch["events"] = [codec.to_builtins(item) for item in (before, last)]
    events = [
        event.event for event in stored_event.decode_event_batch(codec.encode_json(batch)).events
    ]
    assert isinstance(events[0], FrameAbandoned)
    assert events[0].previous_worker == "worker-1"
    assert isinstance(events[1], FrameCommitRejected)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("schema_version", 9, "version 9 is not known to this release"),
        ("event", {"event_type": "frame.vanished"}, "'frame.vanished' is not known"),
    ],
)
def test_a_message_of_a_newer_planner_is_refused_clearly(
    field: str, value: object, sentence: str
) -> None:
    history = History()
    history.start()
    batch = codec.to_builtins(a_batch(history.envelopes))
    batch["events"][0][field] = value
    with pytest.raises(UnknownEventType, match=sentence):
        stored_event.decode_event_batch(codec.encode_json(batch))


def test_a_message_that_is_none_is_malformed() -> None:
    for data in (b"{", b"{}", b'{"events": 3}'):
        with pytest.raises(MalformedMessage):
            stored_event.decode_event_batch(data)
