"""A transfer as its task describes it: two ends, a mode, a mapping."""

from typing import Any

from msgspec import Struct

from noetl_playbook.model import coercion, datasets
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.calls.call import Call, FileName
from noetl_worker.tools.duckdb.duckdb_tool import parse_database_name
from noetl_worker.tools.tables.transfer_rows import KEYED_MODES, MODES, TransferAim
from noetl_worker.tools.transfer.dataset_target import DATASET
from noetl_worker.tools.transfer.spark_mover import TransferEnds

_SOURCES = ("http", "postgres", "duckdb", "file", "data", DATASET)
_TARGETS = ("postgres", "duckdb", "file", DATASET)
_CHUNK_ROWS = 1_000
_CHUNK_ROWS_MAX = 100_000


class TransferPlan(Struct, frozen=True, kw_only=True):
    """A transfer, read from the task's fields."""

    source: dict[str, Any]
    target: dict[str, Any]
    aim: TransferAim
    size: int


def list_file_names(plan: TransferPlan, call: Call) -> list[FileName | None]:
    """Name the files that nobody else may use while the rows are moved."""
    names = [
        parse_database_name(end.get("database"), call)
        for end in (plan.source, plan.target)
        if end["type"] == "duckdb"
    ]
    if plan.target["type"] == "file":
        names.append(parse_end_file(plan.target, "target", call))
    return names


def parse_end_file(end: dict[str, Any], field: str, call: Call) -> FileName:
    """Read the name of an end's file; raises `ToolFailure`."""
    return call.task_files.parse_name(get_text(end, "uri", field))


def parse_plan(call: Call) -> TransferPlan:
    """Read a transfer from its fields; raises `ToolFailure`."""
    source = _parse_end(call.fields.get("source"), "source", _SOURCES)
    target = _parse_end(call.fields.get("target"), "target", _TARGETS)
    if target["type"] == DATASET:
        return _parse_dataset_plan(source, target, call)
    mode = str(target.get("mode") or call.fields.get("mode") or "append").lower()
    mode = "append" if mode == "insert" else mode
    if mode not in MODES:
        raise build_refusal(f"mode {mode!r:.40} is not known: use {', '.join(MODES)}")
    if target["type"] != "file" and (target.get("table") is None) == (target.get("query") is None):
        raise build_refusal("the target needs 'table' or 'query', and not both")
    aim = TransferAim(
        mode=mode,
        keys=_parse_keys(target.get("key") or call.fields.get("key")),
        mapping=_parse_mapping(target.get("mapping") or call.fields.get("mapping")),
        expressions=_parse_expressions(target.get("set")),
    )
    _check_merge(aim, target)
    return TransferPlan(source=source, target=target, aim=aim, size=_parse_size(call))


def _parse_dataset_plan(source: dict[str, Any], target: dict[str, Any], call: Call) -> TransferPlan:
    """Read a transfer into a dataset, which has modes of its own; raises `ToolFailure`."""
    if call.increment is not None:
        raise build_refusal(
            "an increment is not moved into a dataset, which keeps no state with its rows: move it "
            "into a table of type postgres, or write it by a task of kind spark with mode upsert"
        )
    mode = target.get("mode") or call.fields.get("mode")
    key = target.get("key") or call.fields.get("key")
    shared = {"mode": "append" if mode == "insert" else mode, "key": key}
    fields = {name: value for name, value in shared.items() if value is not None}
    aim = TransferAim(mapping=_parse_mapping(target.get("mapping") or call.fields.get("mapping")))
    return TransferPlan(source=source, target={**target, **fields}, aim=aim, size=_parse_size(call))


def _parse_size(call: Call) -> int:
    chunk_size = call.fields.get("chunk_size")
    size = _CHUNK_ROWS if chunk_size is None else coercion.coerce_integer(chunk_size)
    if size is None or not 1 <= size <= _CHUNK_ROWS_MAX:
        raise build_refusal(f"chunk_size must be a whole number from 1 to {_CHUNK_ROWS_MAX}")
    return size


def build_ends(plan: TransferPlan, call: Call) -> TransferEnds:
    """Return both ends with their credentials."""
    return TransferEnds(
        source=plan.source,
        target=plan.target,
        source_auth=find_auth(plan.source, call),
        target_auth=find_auth(plan.target, call),
        aim=plan.aim,
    )


def _parse_end(value: Any, field: str, known_names: tuple[str, ...]) -> dict[str, Any]:
    kind = (value.get("type") or value.get("tool")) if isinstance(value, dict) else None
    if kind is None and datasets.describes_dataset(value):
        kind = DATASET
    if kind not in known_names:
        raise build_refusal(f"{field}.type is {kind!r:.40}: use {', '.join(known_names)}")
    if kind != DATASET and value.get("expect") is not None:
        raise build_refusal(
            f"{field}.expect holds rows of a dataset to it, and the {field} is of type {kind}: "
            "check the rows at the other end, where that is a dataset, or in a task of kind duckdb"
        )
    return {**value, "type": kind}


def _parse_keys(value: Any) -> tuple[str, ...]:
    keys = [value] if isinstance(value, str) else value or []
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise build_refusal("key must be a column's name, or a list of them")
    return tuple(keys)


def _parse_mapping(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value:
        raise build_refusal("mapping must map target columns to source fields")
    return {str(column): str(path) for column, path in value.items()}


def _parse_expressions(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise build_refusal(
            "set must map target columns to expressions, as in total: target.total + source.total"
        )
    return {str(column): text for column, text in value.items()}


def _check_merge(aim: TransferAim, target: dict[str, Any]) -> None:
    """Refuse what only a table of PostgreSQL can do; raises `ToolFailure`."""
    if aim.expressions and aim.mode not in KEYED_MODES:
        raise build_refusal(f"set needs mode {' or '.join(sorted(KEYED_MODES))}, and a key")
    if aim.is_merge and (target["type"] != "postgres" or target.get("table") is None):
        raise build_refusal("mode merge, and set, write into a 'table' of type postgres")


def find_auth(end: dict[str, Any], call: Call, *, own: bool = False) -> Any:
    """Return the credential of an end; databases share that of the task."""
    return end.get("auth") or end.get("credential") or (None if own else call.auth)


def get_text(end: dict[str, Any], name: str, field: str) -> str:
    """Read a text that an end must have; raises `ToolFailure`."""
    value = end.get(name) or (end.get("path") if name == "uri" else None)
    if not isinstance(value, str):
        raise build_refusal(f"{field} needs '{name}'")
    return value


def build_refusal(text: str) -> ToolFailure:
    """Say what is wrong with a transfer."""
    return ToolFailure(build_error("validation", text, source="transfer"))
