"""Datasets in a document: inputs and outputs of tasks, checked as far as they are written out."""

from collections.abc import Mapping
from typing import Any

from noetl_playbook.model import datasets, expectations
from noetl_playbook.model.coercion import is_template
from noetl_playbook.model.datasets import DatasetInvalid
from noetl_playbook.model.expectations import ExpectationInvalid
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path

# Kinds whose tasks write datasets as their output.
SINK_KINDS = ("spark", "duckdb", "postgres")
# The kind whose streams write into tables of PostgreSQL.
_STREAMING = "spark"
# Stands for what only the run will tell.
_ANY_PLACE = "unknown"
_ANY_TABLE = {
    "table": f"{_ANY_PLACE}.{_ANY_PLACE}",
    "catalog": _ANY_PLACE,
    "warehouse": f"s3://{_ANY_PLACE}/",
}


def gather_sink(
    reading: DocumentReader, block: dict[str, Any], path: Path, *, kind: str | None
) -> dict[str, Any]:
    """Gather what an `output` block says of a dataset under its key `sink`."""
    if datasets.describes_dataset(block) or (kind == _STREAMING and datasets.TABLE in block):
        sink_keys = (*datasets.SINK_KEYS, datasets.TABLE)
        sink = {key: block.pop(key) for key in sink_keys if key in block}
        for key in sink:
            reading.record_move((*path, "sink", key), (*path, key))
        block = {**block, "sink": sink}
    sink_block = block.get("sink")
    if not isinstance(sink_block, dict):
        return block
    if kind == "transfer":
        text = "a transfer writes into its 'target': describe the dataset there"
        reading.report_problem("E104", (*path, "sink"), text)
    elif kind not in SINK_KINDS:
        subject = "a step" if kind is None else f"a task of kind {kind}"
        text = (
            f"{subject} writes no dataset: tasks of kind {', '.join(SINK_KINDS)} do, and the "
            "target of a transfer"
        )
        reading.report_problem("E104", (*path, "sink"), text)
    else:
        check_described_dataset(reading, sink_block, (*path, "sink"), is_sink=True)
    return block


def check_dataset_inputs(reading: DocumentReader, inputs: Any, path: Path) -> None:
    """Report the inputs of a task that are no datasets, of those that say that they are."""
    if not isinstance(inputs, dict):
        return
    for name, source in inputs.items():
        if not isinstance(source, dict):
            continue
        if datasets.describes_dataset(source) and "rows" not in source:
            check_described_dataset(reading, source, (*path, name), is_sink=False)
        elif "expect" in source:
            _check_expected(reading, source["expect"], (*path, name))


def _check_expected(reading: DocumentReader, value: Any, path: Path) -> None:
    """Report what cannot be expected of rows that are no dataset."""
    try:
        expectations.parse_expectations(expectations.keep_written_out(value))
    except ExpectationInvalid as problem:
        reading.report_problem("E104", path, str(problem))


def check_described_dataset(
    reading: DocumentReader, fields: Mapping[str, Any], path: Path, *, is_sink: bool
) -> None:
    """Report what a description says wrongly, as far as it is written out."""
    plain_fields = {key: value for key, value in fields.items() if not is_template(value)}
    for key in datasets.SINK_PLACES:
        if key in fields and key not in plain_fields:
            plain_fields[key] = _ANY_PLACE if key != "iceberg" else _ANY_TABLE
    table = plain_fields.get("iceberg")
    if isinstance(table, Mapping):
        plain_fields["iceberg"] = {
            key: _ANY_TABLE.get(key, _ANY_PLACE) if is_template(value) else value
            for key, value in table.items()
        }
    if "auth" in fields:
        plain_fields.setdefault("auth", _ANY_PLACE)
    if "expect" in plain_fields:
        plain_fields["expect"] = expectations.keep_written_out(plain_fields["expect"])
    # What depends on a value that is not known is checked by the run.
    if fields.keys() - plain_fields.keys() & {"mode", "format", "key", "partition_by"}:
        plain_fields = _keep_place(plain_fields, is_sink=is_sink)
    try:
        if is_sink:
            datasets.parse_sink(plain_fields)
        else:
            datasets.parse_source(
                {key: plain_fields[key] for key in plain_fields if key != "types"}
            )
    except DatasetInvalid as problem:
        reading.report_problem("E104", path, str(problem))


def _keep_place(fields: Mapping[str, Any], *, is_sink: bool) -> dict[str, Any]:
    """Keep where a dataset is, as much as it takes to be one."""
    if not is_sink or datasets.TABLE not in fields:
        return {key: fields[key] for key in fields if key in datasets.PLACES}
    return {datasets.TABLE: fields[datasets.TABLE], "auth": _ANY_PLACE, "mode": "append"}
