"""Objects of a playbook's domain, folded from what steps said of them."""

from typing import Any

from tests.support.builders import History, a_ref, a_shop

from noetl_replay import comparison, state


def objects(history: History) -> dict[str, dict[str, Any]]:
    first = history.envelopes[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    return comparison.replay_surfaces(begun, history.envelopes)[1]["business_object"]


def test_an_object_is_what_its_changes_made_of_it() -> None:
    history = a_shop()
    one = objects(history)["order/1"]
    assert (one["object_type"], one["status"], one["version"]) == ("order", "shipped", 3)
    assert one["attributes"] == {
        "total": 11,
        "lines": [{"sku": "a"}],
        "paid": True,
        "carrier": {"name": "x"},
    }
    assert (one["is_deleted"], one["created_at"] < one["updated_at"]) == (False, True)
    assert [ref["sha256"] for ref in one["payload_refs"]] == [a_ref(5, "orders-5").sha256]
    event_ids = [
        envelope.event_id
        for envelope in history.envelopes
        if envelope.aggregate_type == "business_object"
    ]
    assert (one["first_event_id"], one["last_event_id"]) == (event_ids[0], event_ids[4])


def test_a_removed_object_keeps_its_row_and_may_come_back() -> None:
    history = a_shop()
    cut = History()
    cut.add(*(item.event for item in history.envelopes[:6]))
    removed = objects(cut)["order/2"]
    assert (removed["is_deleted"], removed["status"]) == (True, "cancelled")
    assert removed["attributes"] == {"total": 7}
    back = objects(history)["order/2"]
    assert (back["is_deleted"], back["version"], back["attributes"]) == (False, 3, {"total": 8})
    assert len(back["payload_refs"]) == 1


def test_a_state_that_ended_holds_no_objects() -> None:
    history = a_shop()
    first = history.envelopes[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    ended, _ = comparison.replay_surfaces(begun, history.envelopes)
    assert ended.objects == {}
