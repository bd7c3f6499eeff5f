"""The ends of a transfer: what a source and a target of each type say."""

from collections.abc import Mapping
from typing import Any

from noetl_playbook.model import datasets, tools
from noetl_playbook.model.coercion import is_template
from noetl_playbook.sections.auth_fields import check_auth
from noetl_playbook.sections.datasets import check_described_dataset
from noetl_playbook.sections.field_types import (
    ANYTHING,
    FIELD_TYPES,
    MAPPING,
    NAMED_OR_LISTED,
    TEXT,
    TEXT_OR_LISTED,
    FieldType,
    build_choice_type,
    build_whole_number_type,
    build_word_type,
    check_field_value,
    check_mapping_keys,
)
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, Severity

Fields = Mapping[str, FieldType]

# The type of an end that says where a dataset is, which needs no word for it.
_DATASET = "dataset"

_TYPE_KEYS = ("type", "tool")
_SHARED = {**dict.fromkeys(_TYPE_KEYS, TEXT), **dict.fromkeys(("auth", "credential"), ANYTHING)}
_HTTP = {
    **dict.fromkeys(tools.HTTP.known_fields, ANYTHING),
    **FIELD_TYPES["http"],
    "endpoint": TEXT,
    "data_path": TEXT,
}
_QUERY = {"query": TEXT, "params": NAMED_OR_LISTED}
_FILE = {"uri": TEXT, "path": TEXT, "format": TEXT}
_PARTED = {
    "table": TEXT_OR_LISTED,
    "partition_column": TEXT,
    "partitions": build_whole_number_type(1, 10_000),
    "partition": build_choice_type("auto"),
}
_SOURCES: dict[str, Fields] = {
    "http": _HTTP,
    "postgres": {**_QUERY, **_PARTED},
    "duckdb": {**_QUERY, "database": TEXT},
    "file": _FILE,
    "data": {"data": ANYTHING},
    _DATASET: dict.fromkeys(datasets.SOURCE_KEYS, ANYTHING),
}
_ARRIVAL = {
    "mode": FIELD_TYPES["transfer"]["mode"],
    "key": TEXT_OR_LISTED,
    "mapping": MAPPING,
    "set": MAPPING,
}
_TABLE = {"table": TEXT_OR_LISTED, "query": TEXT, **_ARRIVAL}
_TARGETS: dict[str, Fields] = {
    "postgres": _TABLE,
    "duckdb": {**_TABLE, "database": TEXT},
    "file": {**_FILE, **_ARRIVAL},
    _DATASET: {**dict.fromkeys(datasets.SINK_KEYS, ANYTHING), "mapping": MAPPING},
}
# One of them says where the rows are.
_PLACES = {
    "http": ("url", "endpoint"),
    "postgres": ("query",),
    "duckdb": ("query",),
    "file": ("uri", "path"),
    "data": ("data",),
    _DATASET: datasets.PLACES,
}


def check_transfer_source(reading: DocumentReader, value: Any, path: Path) -> None:
    """Report what a source cannot say."""
    _check_end(reading, value, path, which="source", by_type=_SOURCES)


def check_transfer_target(reading: DocumentReader, value: Any, path: Path) -> None:
    """Report what a target cannot say."""
    _check_end(reading, value, path, which="target", by_type=_TARGETS)


def can_be_spark(engine: Any) -> bool:
    """Tell whether executors may move the rows, who read tables too."""
    return engine == "spark" or is_template(engine)


def check_end_location(
    reading: DocumentReader,
    which: str,
    end: Any,
    path: Path,
    *,
    by_spark: bool,
    severity: Severity | None,
) -> None:
    """Report an end that does not say where the rows are, or where they go."""
    kind = _find_end_type(end)
    has_place = which == "source" or kind in ("file", _DATASET)
    places = _PLACES.get(kind, ()) if has_place else ("table", "query")
    if kind not in (_SOURCES if which == "source" else _TARGETS):
        return
    if which == "source" and kind == "postgres" and by_spark:
        places = (*places, "table")
    location_keys = [name for name in places if end.get(name) is not None]
    choices = " or ".join(f"'{name}'" for name in places)
    about = f"a {which} of type {kind}"
    if not location_keys:
        reading.report_problem("E403", path, f"{about} needs {choices}", severity=severity)
    elif len(location_keys) > 1 and "table" in location_keys:
        message = f"{about} takes one of {choices}"
        reading.report_problem("E403", (*path, location_keys[1]), message, of_key=True)


def _check_end(
    reading: DocumentReader, value: Any, path: Path, *, which: str, by_type: dict[str, Fields]
) -> None:
    if not isinstance(value, dict):
        return
    key = next((key for key in _TYPE_KEYS if value.get(key) is not None), None)
    kind = _find_end_type(value)
    if kind == _DATASET:
        _check_dataset(reading, value, path, which=which)
    elif key is None:
        reading.report_problem(
            "E104",
            path,
            f"a {which} needs 'type'",
            hint=f"type: {', '.join(by_type)}",
        )
    else:
        check_field_value(reading, key, build_word_type(*by_type), value[key], (*path, key))
    is_known = kind in by_type
    end_fields = (
        by_type[kind] if is_known else {k: ANYTHING for item in by_type.values() for k in item}
    )
    about = f"a {which} of type {kind}" if is_known else f"a {which}"
    check_mapping_keys(reading, {**_SHARED, **end_fields}, value, path, about=about)
    for name in ("auth", "credential"):
        check_auth(reading, value.get(name), (*path, name))


def _check_dataset(
    reading: DocumentReader, value: dict[str, Any], path: Path, *, which: str
) -> None:
    """Report what an end says wrongly of its dataset; unknown keys are reported as those of all."""
    is_sink = which == "target"
    dataset_keys = datasets.SINK_KEYS if is_sink else datasets.SOURCE_KEYS
    fields = {key: item for key, item in value.items() if key in dataset_keys}
    if datasets.describes_dataset(fields):
        check_described_dataset(reading, fields, path, is_sink=is_sink)


def _find_end_type(value: Any) -> str:
    """Tell the type of an end; empty where only the run will."""
    if not isinstance(value, dict):
        return ""
    kind = value.get("type") or value.get("tool")
    if kind is None and datasets.describes_dataset(value):
        return _DATASET
    return kind if isinstance(kind, str) else ""
