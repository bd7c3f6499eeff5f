"""A transfer as its task describes it: two ends, a mode, a mapping."""

from typing import Any

from msgspec import Struct

from noetl_playbook import coercion
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools.call import Call
from noetl_worker.tools.duckdb import database_name
from noetl_worker.tools.file_names import FileName
from noetl_worker.tools.transfer_rows import MODES, Aim
from noetl_worker.tools.transfer_spark import Ends

_SOURCES = ("http", "postgres", "duckdb", "file", "data")
_TARGETS = ("postgres", "duckdb", "file")
_CHUNK_ROWS = 1_000
_CHUNK_ROWS_MAX = 100_000


class TransferPlan(Struct, frozen=True, kw_only=True):
    """A transfer, read from the task's fields."""

    source: dict[str, Any]
    target: dict[str, Any]
    aim: Aim
    size: int


def list_file_names(plan: TransferPlan, call: Call) -> list[FileName | None]:
    """Name the files that nobody else may use while the rows are moved."""
    names = [
        database_name(end.get("database"), call)
        for end in (plan.source, plan.target)
        if end["type"] == "duckdb"
    ]
    if plan.target["type"] == "file":
        names.append(read_file_name(plan.target, "target", call))
    return names


def read_file_name(end: dict[str, Any], field: str, call: Call) -> FileName:
    """Read the name of an end's file; raises `ToolFailure`."""
    return call.files.parse_name(read_text(end, "uri", field))


def read_plan(call: Call) -> TransferPlan:
    """Read a transfer from its fields; raises `ToolFailure`."""
    source = _end(call.fields.get("source"), "source", _SOURCES)
    target = _end(call.fields.get("target"), "target", _TARGETS)
    mode = str(target.get("mode") or call.fields.get("mode") or "append").lower()
    mode = "append" if mode == "insert" else mode
    if mode not in MODES:
        raise refuse(f"mode {mode!r:.40} is not known: use {', '.join(MODES)}")
    if target["type"] != "file" and (target.get("table") is None) == (target.get("query") is None):
        raise refuse("the target needs 'table' or 'query', and not both")
    wanted = call.fields.get("chunk_size")
    size = _CHUNK_ROWS if wanted is None else coercion.integer(wanted)
    if size is None or not 1 <= size <= _CHUNK_ROWS_MAX:
        raise refuse(f"chunk_size must be a whole number from 1 to {_CHUNK_ROWS_MAX}")
    aim = Aim(
        mode=mode,
        keys=_keys(target.get("key") or call.fields.get("key")),
        mapping=_mapping(target.get("mapping") or call.fields.get("mapping")),
    )
    return TransferPlan(source=source, target=target, aim=aim, size=size)


def ends_of(plan: TransferPlan, call: Call) -> Ends:
    """Return both ends with their credentials."""
    return Ends(
        source=plan.source,
        target=plan.target,
        source_auth=auth_of(plan.source, call),
        target_auth=auth_of(plan.target, call),
        aim=plan.aim,
    )


def _end(value: Any, field: str, known: tuple[str, ...]) -> dict[str, Any]:
    kind = (value.get("type") or value.get("tool")) if isinstance(value, dict) else None
    if kind not in known:
        raise refuse(f"{field}.type is {kind!r:.40}: use {', '.join(known)}")
    return {**value, "type": kind}


def _keys(value: Any) -> tuple[str, ...]:
    keys = [value] if isinstance(value, str) else value or []
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise refuse("key must be a column's name, or a list of them")
    return tuple(keys)


def _mapping(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value:
        raise refuse("mapping must map target columns to source fields")
    return {str(column): str(path) for column, path in value.items()}


def auth_of(end: dict[str, Any], call: Call, *, own: bool = False) -> Any:
    """Return the credential of an end; databases share that of the task."""
    return end.get("auth") or end.get("credential") or (None if own else call.auth)


def read_text(end: dict[str, Any], name: str, field: str) -> str:
    """Read a text that an end must have; raises `ToolFailure`."""
    value = end.get(name) or (end.get("path") if name == "uri" else None)
    if not isinstance(value, str):
        raise refuse(f"{field} needs '{name}'")
    return value


def refuse(text: str) -> ToolFailure:
    """Say what is wrong with a transfer."""
    return ToolFailure(failure("validation", text, source="transfer"))
