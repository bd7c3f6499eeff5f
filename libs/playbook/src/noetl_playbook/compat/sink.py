"""The older `sink` and `save`: a task that keeps what the main task gave."""

from typing import Any

from noetl_playbook.compat import template_renames
from noetl_playbook.compat.placed_tasks import PlacedTask, write_result_path
from noetl_playbook.compat.retry import RetryEntry
from noetl_playbook.model import tools
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path

KEYS = ("sink", "save")

_SQL = frozenset({"postgres", "duckdb", "spark", "sql"})
_STATEMENTS = ("statement", "command", "query", "commands", "sql")
_KIND_KEYS = ("tool", "storage", "kind", "type")
_OF_TASK = ("name", "retry", "timeout", "spec", "params", "set", "input", "args", "with")
_OF_TABLE = ("table", "mode", "key", "mapping")


def has_sink(entry: Any) -> bool:
    """Tell whether an entry of a `retry`, raw or read, holds a sink."""
    raw = entry.raw if isinstance(entry, RetryEntry) else entry
    if not isinstance(raw, dict):
        return False
    then = raw.get("then")
    return any(key in raw or (isinstance(then, dict) and key in then) for key in KEYS)


def name_sink(step: str) -> str:
    """Name the task of a step's sink."""
    return f"{step}_sink"


def build_sink_task(
    reading: DocumentReader,
    value: Any,
    path: Path,
    *,
    name: str,
    main: dict[str, Any],
    collected_path: str,
    names: dict[str, str],
) -> PlacedTask | None:
    """Write the task of a sink.

    `collected_path` is that of the value which an entry collects; `names` says how `response` and
    the like are written here.
    """
    raw = _flatten_sink(reading, value, path)
    if raw is None:
        return None
    raw = template_renames.rename_names_within(raw, names)
    kind = next((raw[key] for key in _KIND_KEYS if isinstance(raw.get(key), str)), None)
    data = raw.get("data")
    if data is None:
        data = "{{ " + write_result_path(main, collected_path) + " }}"
    if any(key in raw for key in _STATEMENTS):
        return _build_given_task(raw, path, name=name, kind=kind or "postgres")
    if kind is None or kind in _SQL or kind == "file" or "table" in raw or "file" in raw:
        return _build_transfer(reading, raw, path, name=name, kind=kind, data=data)
    inputs = raw.get("input")
    inputs = inputs if isinstance(inputs, dict) else {}
    raw = {**raw, "input": {"data": data, **inputs}}
    raw.pop("data", None)
    placed_task = _build_given_task(raw, path, name=name, kind=kind)
    placed_task.moves[("input", "data")] = (*path, "data")
    return placed_task


def _flatten_sink(reading: DocumentReader, value: Any, path: Path) -> dict[str, Any] | None:
    """Bring a sink's tool or storage, which may be a mapping, to one level."""
    if isinstance(value, str):
        return {"tool": value}
    raw = reading.read_mapping(value, path)
    if raw is None:
        return None
    sink = dict(raw)
    for key in ("tool", "storage"):
        inner = sink.get(key)
        if isinstance(inner, dict):
            del sink[key]
            for name, item in inner.items():
                sink.setdefault(name, item)
                reading.record_move((*path, key, name), (*path, name))
    auth = sink.get("auth")
    if isinstance(auth, dict) and isinstance(auth.get("credential"), str):
        sink["auth"] = auth["credential"]
        reading.record_move((*path, "auth", "credential"), (*path, "auth"))
    elif auth is None and "credential" in sink:
        sink["auth"] = sink.pop("credential")
        reading.record_move((*path, "credential"), (*path, "auth"))
    return sink


def _build_given_task(raw: dict[str, Any], path: Path, *, name: str, kind: str) -> PlacedTask:
    fields = {key: item for key, item in raw.items() if key not in _KIND_KEYS}
    kind_key = next((key for key in _KIND_KEYS if raw.get(key) == kind), None)
    moves: dict[Path, Path] = {} if kind_key is None else {("kind",): (*path, kind_key)}
    return PlacedTask(raw={"name": name, **fields, "kind": kind}, path=path, moves=moves)


def _build_transfer(
    reading: DocumentReader,
    raw: dict[str, Any],
    path: Path,
    *,
    name: str,
    kind: str | None,
    data: Any,
) -> PlacedTask:
    """Write a sink without a statement as a transfer of its data."""
    transfer: dict[str, Any] = {"name": name, "kind": "transfer"}
    target: dict[str, Any]
    moves: dict[Path, Path] = {("source", "data"): (*path, "data"), ("target",): path}
    if raw.get("file") is not None:
        target = {"type": "file", "uri": raw["file"]}
        moves["target", "uri"] = (*path, "file")
    else:
        canonical = tools.KIND_ALIASES.get(kind or "", kind or "postgres")
        target = {"type": canonical, "mode": "append"}
    for key, item in raw.items():
        if key in _KIND_KEYS or key in ("data", "file"):
            continue
        if key in _OF_TASK or key == "chunk_size":
            transfer[key] = item
        else:
            if key not in (*_OF_TABLE, "auth", "uri", "format"):
                transfer_keys = (*_OF_TABLE, "auth", "data", "file", "format", *_STATEMENTS, "tool")
                reading.report_unknown((*path, key), transfer_keys)
                continue
            target[key] = item
            moves["target", key] = (*path, key)
    order = ("type", "auth", "table", *_OF_TABLE, "uri", "format")
    transfer["source"] = {"type": "data", "data": data}
    transfer["target"] = {key: target[key] for key in dict.fromkeys(order) if key in target}
    return PlacedTask(raw=transfer, path=path, moves=moves)
