import pytest

from noetl_playbook.model.playbook import Accumulate, Output, Selection
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_worker.domain.result import (
    ABSENT,
    CollectedValue,
    SelectionTooLarge,
    find_at_path,
    list_readable_fields,
    select_fields,
)


def test_paths_lead_through_mappings_and_lists() -> None:
    value = {"a": [{"b": 1}], "c.d": 2}
    assert find_at_path(value, "a[0].b") == 1
    assert find_at_path(value, "a[1].b") is ABSENT
    assert find_at_path(value, "") is value
    # A digit, and no number.
    assert find_at_path(value, "a.²") is ABSENT


def test_a_selection_looks_into_the_result_then_into_its_body() -> None:
    raw = {"status_code": 200, "body": {"id": 7}}
    wanted = (Selection(path="status_code", as_="code"), Selection(path="id", as_="id"))
    assert select_fields(raw, raw["body"], wanted) == {"code": 200, "id": 7}


def test_small_scalars_stay_readable_beside_a_reference() -> None:
    raw = {"count": 5, "name": "x" * 300, "rows": [1], "ok": True}
    pipeline_result = PipelineResult(
        tasks={"t": TaskResult(kind="python", raw=raw, names={"first": 1})}, last="t"
    )
    assert list_readable_fields(pipeline_result) == {"count": 5, "ok": True, "first": 1}


def test_a_selected_field_has_a_limit() -> None:
    pipeline_result = PipelineResult(
        tasks={"t": TaskResult(kind="python", names={"big": "x" * 9000})}
    )
    with pytest.raises(SelectionTooLarge, match="'big' has 9002 bytes"):
        list_readable_fields(pipeline_result)


@pytest.mark.parametrize(
    ("strategy", "values", "expected"),
    [
        ("append", [[1], 2, [3, 4]], [1, 2, 3, 4]),
        ("concat", ["a", "b"], "ab"),
        ("merge", [{"a": {"b": 1}}, {"a": {"c": 2}}], {"a": {"b": 1, "c": 2}}),
        ("replace", [1, 2], 2),
    ],
)
def test_accumulation_follows_its_strategy(
    strategy: str, values: list[object], expected: object
) -> None:
    collection = CollectedValue()
    output = Output(accumulate=Accumulate(strategy=strategy))  # type: ignore[arg-type]  # the table is typed by hand
    for value in values:
        collection.add_contribution(output, value)
    collection.add_contribution(output, ABSENT)
    assert collection.value == expected


def test_an_accumulation_keeps_the_first_items() -> None:
    collection = CollectedValue()
    for value in range(5):
        collection.add_contribution(Output(accumulate=Accumulate(max_items=2)), value)
    assert collection.value == [0, 1]
