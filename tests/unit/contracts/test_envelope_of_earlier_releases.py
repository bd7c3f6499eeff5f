"""Events of earlier releases are shown with today's envelope, and stay as they were sealed."""

import pytest
from tests.replay import record

from noetl_contracts import codec, locators
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import envelope
from noetl_storage.ports import history_ports

TENANT, ORGANIZATION = TenantId("t 1"), OrganizationId("o/2")
REFERENCE = {"uri": "noetl://x", "sha256": "0" * 64, "media_type": "m", "payload_bytes": 3}


def test_a_bare_name_becomes_the_locator_of_a_planner() -> None:
    producer = envelope.upcast_producer("planner-host-17-ab", TENANT, ORGANIZATION)
    assert producer == "noetl://tenant/t%201/org/o%2F2/planner/planner-host-17-ab"
    assert envelope.upcast_producer(producer, TENANT, ORGANIZATION) == producer


@pytest.mark.parametrize("stored", ["planner/p-1", "node/n7/worker/w1", "worker/w1"])
def test_a_producer_without_its_owner_is_given_that_of_its_event(stored: str) -> None:
    producer = envelope.upcast_producer(stored, TENANT, ORGANIZATION)
    assert producer == f"noetl://tenant/t%201/org/o%2F2/{stored}"
    assert envelope.shorten_producer(producer, TENANT, ORGANIZATION) == stored
    elsewhere = envelope.shorten_producer(producer, TenantId("other"), ORGANIZATION)
    assert envelope.upcast_producer(elsewhere, TenantId("other"), ORGANIZATION) == producer


@pytest.mark.parametrize("name", ["", ".", "a\x00b", "\ud800", "x" * 5000])
def test_a_name_that_no_segment_spells_becomes_a_digest(name: str) -> None:
    producer = envelope.upcast_producer(name, TENANT, ORGANIZATION)
    kind, identity = locators.parse_locator(producer).get_kind_and_identity()
    assert (kind, identity[0], len(identity[1])) == ("planner", "sha256", 64)


def test_an_event_without_a_flow_is_of_the_flow_of_its_execution() -> None:
    assert envelope.upcast_correlation(None, ExecutionId("7")) == "7"
    assert envelope.upcast_correlation("order-7", ExecutionId("7")) == "order-7"


@pytest.mark.parametrize(
    ("context", "result", "expected"),
    [
        ({}, None, None),
        ({}, {"status": "ok"}, None),
        ({}, {"status": "ok", "reference": None}, None),
        ({}, {"status": "ok", "reference": REFERENCE}, REFERENCE),
        ({"rows_ref": REFERENCE}, None, REFERENCE),
        ({"workload_ref": None}, None, None),
        ({"chunk": {"index": 1, "ref": REFERENCE}}, None, REFERENCE),
    ],
)
def test_an_event_refers_to_the_stored_content_that_it_is_about(
    context: dict[str, object], result: object, expected: object
) -> None:
    assert envelope.find_payload_ref(context, result) == expected


@pytest.mark.parametrize("name", record.names())
def test_every_event_of_the_golden_histories_has_the_whole_envelope(name: str) -> None:
    for item in record.load(name):
        shown = history_ports.build_shown_event(item)
        assert locators.parse_locator(shown.producer).get_kind_and_identity()[0] == "planner"
        assert shown.correlation_id
        text = codec.encode_text(item.event)
        assert (shown.payload_ref is not None) == ('"sha256"' in text), text


def test_some_event_of_the_golden_histories_refers_to_stored_content() -> None:
    shown = [
        history_ports.build_shown_event(item)
        for name in record.names()
        for item in record.load(name)
    ]
    assert any(item.payload_ref is not None for item in shown)
