"""What moves the checksum of a surface, and what must not."""

import copy
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import History, stories
from tests.support.surface_comparison import compare_surfaces

from noetl_contracts import codec
from noetl_projector.domain import read_models, version_order
from noetl_projector.domain.version_order import VersionGap
from noetl_replay import comparison, fold, rows
from noetl_replay.comparison import Surfaces
from noetl_replay.state import ExecutionState, build_empty_state

STORIES = dict(stories())


def begun(history: History) -> ExecutionState:
    first = history.envelopes[0]
    return build_empty_state(first.execution_id, first.tenant_id, first.organization_id)


def replayed(history: History, *, until: int | None = None) -> Surfaces:
    return comparison.replay_surfaces(begun(history), history.envelopes[:until])[1]


def moments() -> Iterator[tuple[str, int]]:
    """The end of every story, and the first place of each at which a command waits."""
    for name, history in STORIES.items():
        yield name, len(history.envelopes)
        for place in range(len(history.envelopes)):
            if any("wait" in row for row in replayed(history, until=place)["command"].values()):
                yield name, place
                break


def stored(surfaces: Surfaces) -> Surfaces:
    """The surfaces as a database gives them back: plain values, and times as times."""
    return copy.deepcopy(surfaces)


def others(value: Any) -> Iterator[Any]:
    """Values that a hand may put in place of one; nested ones are changed at every place."""
    match value:
        case dict():
            yield {**value, "put": "here by hand"}
            yield None
            for key, inner in value.items():
                yield {name: item for name, item in value.items() if name != key}
                yield from ({**value, key: other} for other in others(inner))
        case list() | tuple():
            yield [*value, "put here by hand"]
            for place, inner in enumerate(value):
                yield [*value[:place], *value[place + 1 :]]
                for other in others(inner):
                    yield [*value[:place], other, *value[place + 1 :]]
        case _:
            yield another(value)


def another(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case None:
            return "put here by hand"
        case bool():
            return not value
        case int() | float():
            return value + 1
        case datetime():
            return value + timedelta(microseconds=1)
        case str():
            return value + "x"
        case _:
            raise AssertionError(f"no other value for {type(value).__name__}")


def alterations(surface: str, row: rows.Row) -> Iterator[tuple[str, rows.Row]]:
    """Every row that differs in one summed column, and those that lack one."""
    for column, value in rows.select_checksum_columns(surface, row).items():
        for other in others(value):
            yield column, {**row, column: other}
        yield column, {name: item for name, item in row.items() if name != column}


MOMENTS = list(moments())


@pytest.mark.parametrize(("name", "until"), MOMENTS)
def test_a_change_of_any_field_of_any_row_moves_its_surface_and_no_other(
    name: str, until: int
) -> None:
    surfaces = stored(replayed(STORIES[name], until=until))
    before = comparison.compute_surface_checksums(surfaces)
    for surface, kept in surfaces.items():
        for key, row in kept.items():
            sound = codec.compute_checksum(row)
            for column, altered in alterations(surface, row):
                assert codec.compute_checksum(altered) != sound, (surface, key, column)
        # Of one row the whole way to the surfaces' checksums, and the difference that is named.
        for key, row in list(kept.items())[:1]:
            for column, altered in alterations(surface, row):
                kept[key] = altered
                after = comparison.compute_surface_checksums(surfaces)
                moved = {item for item in rows.SURFACES if after[item] != before[item]}
                assert moved == {surface}, (surface, key, column)
            found = compare_surfaces(surfaces, replayed(STORIES[name], until=until))
            assert [(item.surface, item.key) for item in found] == [(surface, key)]
            kept[key] = row
        for key in list(kept):
            fields = {other: row for other, row in kept.items() if other != key}
            assert codec.compute_checksum(fields) != before[surface], (surface, key)


def test_every_column_of_every_surface_is_covered_by_some_story() -> None:
    """Columns are the row's own: a row with a column more is another row."""
    seen: dict[str, set[str]] = {surface: set() for surface in rows.SURFACES}
    for name, until in MOMENTS:
        for surface, kept in replayed(STORIES[name], until=until).items():
            for row in kept.values():
                seen[surface] |= set(row)
    assert all(seen.values()), {surface for surface, columns in seen.items() if not columns}
    assert "wait" in seen["command"]


def projected(history: History, steps: list[VersionGap | version_order.EventRun]) -> Surfaces:
    """What a projector stores for messages as they came, with the ledger for what did not."""
    empty_rows = read_models.build_empty_rows()
    current = begun(history)
    for step in steps:
        is_gap = isinstance(step, VersionGap)
        fold.fold_history(
            current, history.envelopes[step.after : step.until] if is_gap else step.envelopes
        )
        read_models.add_changes(empty_rows, [], current)
    keys = rows.KEY_BY_SURFACE
    return {
        surface: {str(row[keys[surface]]): row for row in found}
        for surface, found in empty_rows.items()
    }


@settings(max_examples=80)
@given(st.sampled_from(sorted(STORIES)), st.integers(1, 9), st.data())
def test_no_redelivery_order_or_loss_of_messages_moves_a_checksum(
    name: str, size: int, data: st.DataObject
) -> None:
    history = STORIES[name]
    batches = history.batches(size=size)
    arrived = data.draw(st.lists(st.sampled_from(batches), max_size=3 * len(batches)))
    # The last one comes at some time, or nobody would know of the end.
    place = data.draw(st.integers(0, len(arrived)))
    arrived.insert(place, batches[-1])
    cut = data.draw(st.integers(0, len(arrived)))
    first = version_order.arrange_batches(0, arrived[:cut])
    reached = max((batch.last_version for batch in arrived[:cut]), default=0)
    second = version_order.arrange_batches(reached, arrived[cut:])
    live = projected(history, [*first.steps, *second.steps])
    assert comparison.compute_surface_checksums(live) == comparison.compute_surface_checksums(
        replayed(history)
    )


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_rebuild_moves_no_checksum(name: str) -> None:
    """From nothing, and over what stands there already."""
    history = STORIES[name]
    once = projected(history, [version_order.EventRun(envelopes=history.envelopes)])
    again = projected(
        history, [version_order.EventRun(envelopes=[envelope]) for envelope in history.envelopes]
    )
    assert comparison.compute_surface_checksums(once) == comparison.compute_surface_checksums(again)
    over = {surface: {**again[surface], **once[surface]} for surface in rows.SURFACES}
    assert comparison.compute_surface_checksums(over) == comparison.compute_surface_checksums(
        replayed(history)
    )
