"""Objects of a playbook's domain, said by steps that ended well."""

import pytest
from tests.support.planning import Desk, done

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {no: 7}\n"


def of(objects: str, more: str = "") -> Desk:
    spec = f"spec: {{policy: {{emit: {{objects: {objects}}}}}}}"
    return Desk(f"{HEAD}workflow:\n  - {{step: a, {spec}, tool: {{kind: noop}}{more}}}\n")


def ended(objects: str, more: str = "") -> Desk:
    desk = of(objects, more)
    desk.start()
    desk.tell(done(desk.sent()[0]))
    return desk


def test_a_step_that_ends_well_says_what_became_of_its_objects() -> None:
    order = "{type: order, id: '{{ workload.no }}', status: paid, attributes: {sum: '{{ 2 * 3 }}'}}"
    gone = "{type: cart, id: c-1, deleted: true}"
    desk = ended(f"[{order}, {gone}]")
    first, second = desk.events("business_object.changed")
    assert (first.object_type, first.object_id) == ("order", "order/7")
    assert (first.status, first.attributes, first.is_deleted) == ("paid", {"sum": 6}, False)
    assert (second.object_id, second.is_deleted) == ("cart/c-1", True)
    types = [one.schema_name.removeprefix("noetl.") for one in desk.history]
    assert types[-3:] == ["business_object.changed", "step.exit", "playbook.completed"]
    (envelope, _) = [one for one in desk.history if one.aggregate_type == "business_object"]
    assert envelope.aggregate_id == "business_object/order/7"


def test_what_the_step_has_set_is_seen() -> None:
    desk = ended("[{type: o, id: '{{ ctx.name }}'}]", ", set: {ctx.name: x}")
    assert desk.events("business_object.changed")[0].object_id == "o/x"


@pytest.mark.parametrize(("when", "count"), [("'{{ true }}'", 1), ("'{{ false }}'", 0)])
def test_an_object_may_depend_on_a_condition(when: str, count: int) -> None:
    desk = ended(f"[{{type: o, id: 1, when: {when}}}]")
    assert len(desk.events("business_object.changed")) == count


def test_the_same_object_is_said_once_a_step() -> None:
    desk = ended("[{type: o, id: 1, status: a}, {type: o, id: 1, status: b}]")
    assert [one.status for one in desk.events("business_object.changed")] == ["b"]


def test_a_step_that_fails_says_nothing_of_objects() -> None:
    admit = "admit: {on_deny: fail, rules: [{when: false, then: {allow: true}}]}"
    emit = f"spec: {{policy: {{emit: {{objects: [{{type: o, id: 1}}]}}, {admit}}}}}"
    desk = Desk(f"{HEAD}workflow:\n  - {{step: a, {emit}, tool: {{kind: noop}}}}\n")
    desk.start()
    assert desk.events("business_object.changed") == []
    assert desk.events("playbook.failed")


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
