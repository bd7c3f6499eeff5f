"""Objects of a playbook's domain, said by steps that ended well."""

import pytest
from tests.support.planning import PlannerHarness, done

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {no: 7}\n"


def of(objects: str, more: str = "") -> PlannerHarness:
    spec = f"spec: {{policy: {{emit: {{objects: {objects}}}}}}}"
    return PlannerHarness(f"{HEAD}workflow:\n  - {{step: a, {spec}, tool: {{kind: noop}}{more}}}\n")


def ended(objects: str, more: str = "") -> PlannerHarness:
    harness = of(objects, more)
    harness.start()
    harness.tell(done(harness.sent()[0]))
    return harness


def test_a_step_that_ends_well_says_what_became_of_its_objects() -> None:
    order = "{type: order, id: '{{ workload.no }}', status: paid, attributes: {sum: '{{ 2 * 3 }}'}}"
    gone = "{type: cart, id: c-1, deleted: true}"
    harness = ended(f"[{order}, {gone}]")
    first, second = harness.events("business_object.changed")
    assert (first.object_type, first.object_id) == ("order", "order/7")
    assert (first.status, first.attributes, first.is_deleted) == ("paid", {"sum": 6}, False)
    assert (second.object_id, second.is_deleted) == ("cart/c-1", True)
    types = [item.schema_name.removeprefix("noetl.") for item in harness.history]
    assert types[-3:] == ["business_object.changed", "step.exit", "playbook.completed"]
    (envelope, _) = [item for item in harness.history if item.aggregate_type == "business_object"]
    assert envelope.aggregate_id == "business_object/order/7"


def test_what_the_step_has_set_is_seen() -> None:
    harness = ended("[{type: o, id: '{{ ctx.name }}'}]", ", set: {ctx.name: x}")
    assert harness.events("business_object.changed")[0].object_id == "o/x"


@pytest.mark.parametrize(("when", "count"), [("'{{ true }}'", 1), ("'{{ false }}'", 0)])
def test_an_object_may_depend_on_a_condition(when: str, count: int) -> None:
    harness = ended(f"[{{type: o, id: 1, when: {when}}}]")
    assert len(harness.events("business_object.changed")) == count


def test_the_same_object_is_said_once_a_step() -> None:
    harness = ended("[{type: o, id: 1, status: a}, {type: o, id: 1, status: b}]")
    assert [item.status for item in harness.events("business_object.changed")] == ["b"]


def test_a_step_that_fails_says_nothing_of_objects() -> None:
    admit = "admit: {on_deny: fail, rules: [{when: false, then: {allow: true}}]}"
    emit = f"spec: {{policy: {{emit: {{objects: [{{type: o, id: 1}}]}}, {admit}}}}}"
    harness = PlannerHarness(f"{HEAD}workflow:\n  - {{step: a, {emit}, tool: {{kind: noop}}}}\n")
    harness.start()
    assert harness.events("business_object.changed") == []
    assert harness.events("playbook.failed")


@pytest.mark.parametrize(
    ("objects", "kind", "words"),
    [
        ("[{type: o, id: '{{ ctx.nothing }}'}]", "template", "nothing"),
        ("[{type: o, id: ['x']}]", "validation", "neither a text nor a number"),
        ("[{type: o, id: ''}]", "validation", "neither a text nor a number"),
        ("[{type: o, id: '{{ \"x\" * 300 }}'}]", "validation", "more than 200 characters"),
        ("[{type: o, id: 1, attributes: '{{ 3 }}'}]", "validation", "is not a mapping"),
        ("[{type: o, id: 1, attributes: {t: '{{ \"x\" * 3000 }}'}}]", "limit", "2048 are allowed"),
    ],
)
def test_what_no_event_may_hold_fails_the_step(objects: str, kind: str, words: str) -> None:
    error = ended(objects).events("playbook.failed")[0].error
    assert words in error.message
    assert error.kind == kind
