"""Which fields of a task go together: what its kind needs, and what excludes what."""

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl_playbook import transfer_ends
from noetl_playbook.blocks import CONTAINER_NESTED, CONTAINER_SPELLINGS
from noetl_playbook.coercion import is_template
from noetl_playbook.problems import Path, Severity
from noetl_playbook.reading import Reading
from noetl_playbook.tools import FILLED_BY_INPUT, Kind

# By the field that decides, what each of its values needs; of a group, one.
_DECIDING = {"nats": "operation", "artifact": "action"}
_KEYED = (("bucket",), ("key",))
_NAMED = (("bucket",), ("name",))
_NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "kv_get": _KEYED,
    "kv_put": (*_KEYED, ("value",)),
    "kv_delete": _KEYED,
    "kv_purge": _KEYED,
    "kv_keys": (("bucket",),),
    "js_publish": (("subject",), ("payload",)),
    "js_get_msg": (("stream",), ("seq", "subject")),
    "js_stream_info": (("stream",),),
    "object_put": (*_NAMED, ("data",)),
    "object_get": _NAMED,
    "object_delete": _NAMED,
    "object_list": (("bucket",),),
    "get": (("result_ref", "uri"),),
    "put": (("data",),),
    "delete": (("result_ref", "uri"),),
}
_NAME_HINT = "write it under input: beside kind it is the name of the task"


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a task at a path: those written on it, and those that its input fills."""

    path: Path
    own: Mapping[str, Any]
    given: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """Find a field; what stands on the task wins."""
        found = self.own.get(name)
        return self.given.get(name) if found is None else found

    def lacks(self, name: str) -> bool:
        """Tell whether a field is absent; null is content, and nothing else."""
        if name == "data":
            return name not in self.own and name not in self.given
        return self.get(name) is None

    def place(self, name: str) -> Path:
        """Tell where a field stands."""
        is_given = self.own.get(name) is None and name in self.given
        return (*self.path, "input", name) if is_given else (*self.path, name)


def filled(table: Kind, own: Mapping[str, Any], given: Any, path: Path) -> Filled:
    """Lay a task's fields over those that its input fills, where the kind's input does."""
    takes = table.name in FILLED_BY_INPUT and isinstance(given, dict)
    found = {key: item for key, item in given.items() if key in table.fields} if takes else {}
    return Filled(path=path, own=own, given=found)


def check_combination(
    reading: Reading, table: Kind, fields: Filled, *, written: dict[str, Path]
) -> None:
    """Report what a task lacks, and sources that exclude each other."""
    path = fields.path
    severity = Severity.WARNING if path[:1] == ("workbook",) else None
    for group in _groups(table, fields):
        if all(fields.lacks(name) for name in group):
            choices = " or ".join(f"'{name}'" for name in group)
            message = f"kind {table.name} needs {choices}{_for(table, fields)}"
            hint = _NAME_HINT if group == ("name",) else None
            reading.report("E403", path, message, severity=severity, hint=hint)
    sources = [name for name in written if name in table.source]
    choices = " or ".join(f"'{name}'" for name in table.source)
    if table.source and not sources:
        reading.report("E403", path, f"kind {table.name} needs {choices}", severity=severity)
    for name in sources[1:]:
        reading.report(
            "E403", written[name], f"kind {table.name} takes one of {choices}", of_key=True
        )
    if table.name == "transfer":
        by_spark = transfer_ends.may_be_spark(fields.get("engine"))
        for which in ("source", "target"):
            end, here = fields.get(which), fields.place(which)
            transfer_ends.check_place(
                reading, which, end, here, by_spark=by_spark, severity=severity
            )


def _groups(table: Kind, fields: Filled) -> list[tuple[str, ...]]:
    """List what is needed: of each group, one field."""
    found = [(name,) for name in table.required]
    if table.name == "container" and not _names_image(fields):
        found.append(("image",))
    decided = fields.get(_DECIDING.get(table.name, ""))
    return [*found, *(_NEEDED.get(decided, ()) if isinstance(decided, str) else ())]


def _for(table: Kind, fields: Filled) -> str:
    decided = fields.get(_DECIDING.get(table.name, ""))
    return "" if decided is None else f" for {decided}"


def _names_image(fields: Filled) -> bool:
    """Tell whether a container's nested settings name its image, or may when it runs."""
    nested = [fields.get(name) for name in CONTAINER_NESTED]
    return any(
        is_template(each)
        or (
            isinstance(each, dict)
            and any(CONTAINER_SPELLINGS.get(key, key) == "image" for key in each)
        )
        for each in nested
    )
