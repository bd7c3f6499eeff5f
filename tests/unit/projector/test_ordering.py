"""What is dropped, what is read from the ledger, and what is folded."""

from tests.support.builders import History, a_batch, a_cursor_loop

from noetl_contracts.ledger.envelope import EventBatch
from noetl_projector.domain.version_order import (
    EventRun,
    VersionGap,
    arrange_batches,
    find_disorder,
)


def versions(history: History, first: int, last: int) -> EventBatch:
    return a_batch(history.envelopes[first - 1 : last])


def shape(version: int, *batches: EventBatch) -> list[tuple[str, int, int]]:
    steps = []
    for step in arrange_batches(version, batches).steps:
        match step:
            case VersionGap():
                steps.append(("gap", step.after + 1, step.until))
            case EventRun():
                first, last = step.envelopes[0], step.envelopes[-1]
                steps.append(("run", first.stream_version, last.stream_version))
    return steps


def test_batches_are_folded_by_version_whatever_order_they_came_in() -> None:
    history = a_cursor_loop()
    late, early = versions(history, 4, 6), versions(history, 1, 3)
    assert shape(0, late, early) == [("run", 1, 3), ("run", 4, 6)]


def test_what_was_projected_is_dropped() -> None:
    history = a_cursor_loop()
    order = arrange_batches(5, [versions(history, 1, 3), versions(history, 4, 7)])
    assert order.duplicates == 5
    assert shape(5, versions(history, 4, 7)) == [("run", 6, 7)]


def test_a_batch_that_came_twice_is_folded_once() -> None:
    history = a_cursor_loop()
    batch = versions(history, 1, 3)
    assert shape(0, batch, batch) == [("run", 1, 3)]


def test_missing_versions_are_read_from_the_ledger() -> None:
    history = a_cursor_loop()
    found = shape(2, versions(history, 5, 6), versions(history, 9, 9))
    assert found == [("gap", 3, 4), ("run", 5, 6), ("gap", 7, 8), ("run", 9, 9)]


def test_a_batch_that_lies_about_its_range_is_refused() -> None:
    history = a_cursor_loop()
    good = versions(history, 2, 4)
    assert find_disorder(good) is None
    short = EventBatch(
        execution_id=good.execution_id,
        tenant_id=good.tenant_id,
        organization_id=good.organization_id,
        first_version=2,
        last_version=5,
        events=good.events,
    )
    assert "versions 2 to 5" in str(find_disorder(short))


def test_a_batch_with_events_of_another_execution_is_refused() -> None:
    history = a_cursor_loop()
    good = versions(history, 2, 4)
    mixed = EventBatch(
        execution_id=type(good.execution_id)("1"),
        tenant_id=good.tenant_id,
        organization_id=good.organization_id,
        first_version=2,
        last_version=4,
        events=good.events,
    )
    assert "holds events of" in str(find_disorder(mixed))
