"""A table whose rows are stored as several payloads: its manifest in a result."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec, locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.payloads import PayloadRef

# The payload is the JSON of a result in which a `SpreadTable` stands for its rows.
SPREAD_MEDIA_TYPE = "application/vnd.noetl.spread+json"
KEY = "__noetl_spread__"
ROWS = "rows"
PARTS_MAX = 10_000


class SpreadTable(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows in objects of one schema, in order: part after part is the table.

    `schema` is the Arrow schema as an IPC message in base64, so that nobody opens a part to learn
    it. `partitions` gives, for a table that was cut by columns, each part's values of them;
    `head` is the first few rows as JSON values, to show the table without reading it.
    """

    row_count: int
    payload_bytes: int
    schema: str
    columns: list[str]
    parts: list[PayloadRef]
    partition_by: list[str] = msgspec.field(default_factory=list)
    partitions: list[list[Any]] = msgspec.field(default_factory=list)
    head: list[dict[str, Any]] = msgspec.field(default_factory=list)


def build_marker(spread: SpreadTable) -> dict[str, Any]:
    """Write what stands for the rows."""
    return {KEY: msgspec.to_builtins(spread)}


def is_spread_marker(value: Any) -> bool:
    """Tell whether a value stands for rows that are elsewhere."""
    return type(value) is dict and len(value) == 1 and KEY in value


def read_marker(value: dict[str, Any], *, owner: PayloadRef) -> SpreadTable:
    """Read a marker inside a payload; raises `LocatorError`, or `msgspec.ValidationError`.

    Parts of another organization than the payload's own are refused.
    """
    spread_table = codec.convert_value(value[KEY], SpreadTable)
    home = _get_owner(owner)
    for part in spread_table.parts:
        if _get_owner(part) != home:
            raise LocatorError(f"{part.uri!r:.200} belongs to another organization")
    return spread_table


def read_parts(marker: dict[str, Any]) -> list[PayloadRef]:
    """List the parts of a marker that this process has just made."""
    return codec.convert_value(marker[KEY], SpreadTable).parts


def find_spread_table(result: Any, *, owner: PayloadRef) -> SpreadTable | None:
    """Return the rows of a kept result's last task, None when they are in the result itself.

    Raises as `read_marker`.
    """
    path = find_spread_task(result)
    if path is None:
        return None
    return read_marker(result["tasks"][path]["raw"][ROWS], owner=owner)


def find_spread_task(result: Any) -> str | None:
    """Name the task of a kept result whose rows are elsewhere; there is at most one."""
    tasks = result.get("tasks") if isinstance(result, dict) else None
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        raw = task.get("raw") if isinstance(task, dict) else None
        if isinstance(raw, dict) and is_spread_marker(raw.get(ROWS)):
            return str(name)
    return None


def replace_marker(result: Any, task: str, rows: list[Any]) -> Any:
    """Return a kept result with the rows themselves in place of their marker."""
    tasks = result["tasks"]
    raw = {**tasks[task]["raw"], ROWS: rows}
    return {**result, "tasks": {**tasks, task: {**tasks[task], "raw": raw}}}


def _get_owner(ref: PayloadRef) -> tuple[str | None, str | None]:
    located = locators.parse_locator(ref.uri)
    return located.find_segment("tenant"), located.find_segment("org")
