"""Which columns of its inputs a query needs: Spark asks sources in Python for all of them."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

# The option of a data source that tells which input it reads.
INPUT_OPTION = "input"
_RELATION, _SCAN = "DataSourceV2Relation", "DataSourceV2ScanRelation"


def list_read_inputs(frame: DataFrame) -> list[str]:
    """Name the input of each read in a query, subqueries included."""
    return [name for name, _ in _iterate_reads(_get_plan(frame), None)]


def find_needed_columns(frame: DataFrame) -> dict[str, frozenset[str]]:
    """Return the columns that a query needs, of the inputs of which it does not need all."""
    columns_by_input: dict[str, frozenset[str] | None] = {}
    for name, columns in _iterate_reads(_get_plan(frame), None):
        before = columns_by_input.get(name, frozenset())
        columns_by_input[name] = None if columns is None or before is None else before | columns
    return {name: columns for name, columns in columns_by_input.items() if columns is not None}


def _get_plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - Spark has no other way to show a plan


def _iterate_reads(
    plan: Any, needed_columns: frozenset[str] | None
) -> Iterator[tuple[str, frozenset[str] | None]]:
    """Yield the input of each read, and the columns that the nodes above it need; None for all.

    The optimizer leaves a projection above each read that has columns to spare.
    """
    kind = plan.getClass().getSimpleName()
    if kind == _SCAN:
        plan, kind = plan.relation(), _RELATION
    if kind == _RELATION:
        name = plan.options().get(INPUT_OPTION)
        if name is not None:
            yield name, needed_columns
    columns_below = None
    if kind == "Project":
        columns_below = frozenset(_list_references(plan))
    elif kind == "Filter" and needed_columns is not None:
        columns_below = needed_columns | frozenset(_list_references(plan))
    for children, columns in ((plan.children(), columns_below), (plan.subqueries(), None)):
        for place in range(children.size()):
            yield from _iterate_reads(children.apply(place), columns)


def _list_references(plan: Any) -> Iterator[str]:
    references = plan.references().toSeq()
    for place in range(references.size()):
        yield references.apply(place).name()
