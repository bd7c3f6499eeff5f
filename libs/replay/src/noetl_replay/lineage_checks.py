"""What the checks of a step have found in its datasets, as OpenLineage tells it."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, structs

from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.openlineage import (
    Assertion,
    AssertionsFacet,
    Dataset,
    InputDataset,
    InputFacets,
)

ASSERTIONS_MAX = 200


def read_assertions(raw: Mapping[str, Any]) -> dict[str, list[Assertion]]:
    """Read the reports of a task's result, by the name that each has of its dataset."""
    assertions: dict[str, list[Assertion]] = {}
    reports = raw.get("checks")
    for report in reports[:ASSERTIONS_MAX] if isinstance(reports, list) else ():
        if not isinstance(report, Mapping):
            continue
        dataset, check = report.get("dataset"), report.get("check")
        if isinstance(dataset, str) and isinstance(check, str):
            assertions.setdefault(dataset, []).append(_build_assertion(check, report))
    return assertions


def read_task_assertions(tasks: MetricsByTask) -> dict[str, list[Assertion]]:
    """Read what the tasks of an activation report, also of one that failed."""
    reports = [report for metrics in tasks.values() for report in metrics.checks]
    return read_assertions({"checks": [structs.asdict(report) for report in reports]})


def add_assertions(
    inputs: Iterable[InputDataset],
    assertions: Mapping[str, list[Assertion]],
    checked: Mapping[str, Dataset],
) -> list[InputDataset]:
    """Add to each dataset what was found in it.

    The standard knows assertions of datasets that a run reads. A checked output is read by its
    checks, and is among the inputs for that.
    """
    by_dataset: dict[tuple[str, str], list[Assertion]] = {}
    for label, place in checked.items():
        # Several inputs may be one dataset, and an output may be among them.
        if label in assertions:
            by_dataset.setdefault((place.namespace, place.name), []).extend(assertions[label])
    datasets = []
    for dataset in inputs:
        found = by_dataset.pop((dataset.namespace, dataset.name), [])
        datasets.append(_add_facet(dataset, found) if found else dataset)
    for (namespace, name), found in by_dataset.items():
        datasets.append(_add_facet(InputDataset(namespace=namespace, name=name), found))
    return datasets


def _add_facet(dataset: InputDataset, assertions: list[Assertion]) -> InputDataset:
    facet = AssertionsFacet(assertions=assertions)
    return structs.replace(dataset, input_facets=InputFacets(data_quality_assertions=facet))


def _build_assertion(check: str, report: Mapping[str, Any]) -> Assertion:
    kind, _, subject = check.partition(" ")
    failed_rows, measured = report.get("failed_rows"), report.get("measured")
    actual = f"{failed_rows} rows" if isinstance(failed_rows, int) else measured
    is_column = bool(subject) and kind != "predicate" and ", " not in subject
    return Assertion(
        assertion=kind,
        success=report.get("is_met") is True,
        name=check,
        column=subject if is_column else UNSET,
        # The result of a task of the user's own may have any value there.
        actual=str(actual) if isinstance(actual, str | int | float) else UNSET,
        content=subject if kind == "predicate" else UNSET,
        content_type="sql" if kind == "predicate" else UNSET,
    )
