"""Which fields of a task go together: what its kind needs, and what excludes what."""

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl_playbook.model.coercion import is_template
from noetl_playbook.model.tools import FILLED_BY_INPUT, ToolKind
from noetl_playbook.sections import transfer_ends
from noetl_playbook.sections.blocks import CONTAINER_NESTED, CONTAINER_SPELLINGS
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, Severity

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


class FilledFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a task at a path: those written on it, and those that its input fills."""

    path: Path
    own: Mapping[str, Any]
    input_fields: Mapping[str, Any]

    def find_field(self, name: str) -> Any:
        """Find a field; what stands on the task wins."""
        field = self.own.get(name)
        return self.input_fields.get(name) if field is None else field

    def lacks_field(self, name: str) -> bool:
        """Tell whether a field is absent; null is content, and nothing else."""
        if name == "data":
            return name not in self.own and name not in self.input_fields
        return self.find_field(name) is None

    def build_field_path(self, name: str) -> Path:
        """Tell where a field stands."""
        is_given = self.own.get(name) is None and name in self.input_fields
        return (*self.path, "input", name) if is_given else (*self.path, name)


def fill_fields(
    table: ToolKind, task_fields: Mapping[str, Any], block: Any, path: Path
) -> FilledFields:
    """Lay a task's fields over those that its input fills, where the kind's input does."""
    takes = table.name in FILLED_BY_INPUT and isinstance(block, dict)
    fields = {key: item for key, item in block.items() if key in table.fields} if takes else {}
    return FilledFields(path=path, own=task_fields, input_fields=fields)


def check_field_combination(
    reading: DocumentReader, table: ToolKind, fields: FilledFields, *, written: dict[str, Path]
) -> None:
    """Report what a task lacks, and sources that exclude each other."""
    path = fields.path
    severity = Severity.WARNING if path[:1] == ("workbook",) else None
    for group in _list_required_groups(table, fields):
        if all(fields.lacks_field(name) for name in group):
            choices = " or ".join(f"'{name}'" for name in group)
            message = f"kind {table.name} needs {choices}{_describe_choice(table, fields)}"
            hint = _NAME_HINT if group == ("name",) else None
            reading.report_problem("E403", path, message, severity=severity, hint=hint)
    sources = [name for name in written if name in table.source]
    choices = " or ".join(f"'{name}'" for name in table.source)
    if table.source and not sources:
        reading.report_problem(
            "E403", path, f"kind {table.name} needs {choices}", severity=severity
        )
    for name in sources[1:]:
        reading.report_problem(
            "E403", written[name], f"kind {table.name} takes one of {choices}", of_key=True
        )
    if table.name == "transfer":
        by_spark = transfer_ends.can_be_spark(fields.find_field("engine"))
        for which in ("source", "target"):
            end, inner_path = fields.find_field(which), fields.build_field_path(which)
            transfer_ends.check_end_location(
                reading, which, end, inner_path, by_spark=by_spark, severity=severity
            )


def _list_required_groups(table: ToolKind, fields: FilledFields) -> list[tuple[str, ...]]:
    """List what is needed: of each group, one field."""
    required_groups = [(name,) for name in table.required]
    if table.name == "container" and not _has_image(fields):
        required_groups.append(("image",))
    decided = fields.find_field(_DECIDING.get(table.name, ""))
    return [*required_groups, *(_NEEDED.get(decided, ()) if isinstance(decided, str) else ())]


def _describe_choice(table: ToolKind, fields: FilledFields) -> str:
    decided = fields.find_field(_DECIDING.get(table.name, ""))
    return "" if decided is None else f" for {decided}"


def _has_image(fields: FilledFields) -> bool:
    """Tell whether a container's nested settings name its image, or may when it runs."""
    nested = [fields.find_field(name) for name in CONTAINER_NESTED]
    return any(
        is_template(item)
        or (
            isinstance(item, dict)
            and any(CONTAINER_SPELLINGS.get(key, key) == "image" for key in item)
        )
        for item in nested
    )
