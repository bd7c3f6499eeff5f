"""The reader of one document: its fields, steps and script files, and the problems in them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, cast

import msgspec
from msgspec import inspect

from noetl_contracts import spelling
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Action, Arc, Playbook, Step
from noetl_playbook.source import declared_scalars
from noetl_playbook.source.problems import (
    Level,
    Path,
    Problem,
    Severity,
    TextPosition,
    find_severity,
    format_path,
)
from noetl_playbook.source.source_map import SourceMap
from noetl_playbook.source.yaml_document import YamlDocument

ReadScript = Callable[[str], str]


class ScriptReader:
    """Reads scripts by their names; `read_script` raises `ScriptFault`."""

    def __init__(self, read_script: ReadScript) -> None:
        self.read_script = read_script
        self.script_by_name: dict[str, str] = {}


_OLDER_FORMS = frozenset({"W901", "W902", "W903", "W904"})
# Short forms that a document of today has too.
_SHORT_FORMS = frozenset({"next", "retry", "pagination"})
_RENDERED_FIELDS = frozenset(["claim", "message", "key", "bucket", "prefix", "credential"])
_PERCENT_FIELDS = frozenset({"max_failed", "min_success"})
_SHOWN_CHARACTERS_MAX = 60
# Errors and warnings are counted by themselves.
PROBLEMS_MAX = 1_000
# Looking for the nearest name is the dearest part of a report.
HINTS_MAX = 200


class TemplateSite(msgspec.Struct, frozen=True, kw_only=True):
    """A place that holds template text, to be checked once everything is known."""

    path: Path
    source: str
    is_condition: bool = False


class ReadTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was read, even one that is wrong: its place, name and kind."""

    path: Path
    name: str
    kind: str


def describe_value(value: Any) -> str:
    """Name a value in a message without printing much of it."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    if len(text) > _SHOWN_CHARACTERS_MAX:
        text = text[:_SHOWN_CHARACTERS_MAX] + "…"
    return repr(text) if isinstance(value, str) else text.lower()


@cache
def map_fields_by_key(kind: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    """List a Struct's fields by the key that the document uses."""
    info = cast("inspect.StructType", inspect.type_info(kind))
    return {field.encode_name: field for field in info.fields}


Reader = Callable[["DocumentReader", Any, Path], Any]


class DocumentReader:
    """One document being read: its problems so far and its templates."""

    # The files beside the document, where there are some.
    scripts: ScriptReader | None = None

    def __init__(
        self, document: YamlDocument, *, level: Level, readers: Mapping[type, Reader]
    ) -> None:
        self.document = document
        self.level = level
        # Whether the document has shown that it is of the older dialect.
        self.is_older = False
        self.problems: list[Problem] = []
        self.sites: list[TemplateSite] = []
        # Where each step that could be read stands in the document.
        self.step_indices: list[int] = []
        # Variables that are set, each with its place, name and long form.
        self.variables: list[tuple[Path, str, str]] = []
        # What rules do, each with its place.
        self.actions: list[tuple[Path, Action]] = []
        self._tasks: dict[Path, list[ReadTask]] = {}
        self._readers = readers
        self._moves = SourceMap()
        self._counts = dict.fromkeys(Severity, 0)
        self._hints = 0

    def report_problem(
        self,
        code: str,
        path: Path,
        message: str,
        *,
        hint: str | None = None,
        replacement: str | None = None,
        of_key: bool = False,
        place: TextPosition | None = None,
        severity: Severity | None = None,
    ) -> None:
        """Add a problem at a path."""
        if code in _OLDER_FORMS and path[-1:] and path[-1] not in _SHORT_FORMS:
            self.is_older = True
        severity = severity or find_severity(code, self.level)
        if severity is None or not self._count_problem(severity):
            return
        path = self.find_origin(path)
        place = place or self.document.find_place(path, of_key=of_key)
        self.problems.append(
            Problem(
                code=code,
                severity=severity,
                level=self.level,
                path=format_path(path),
                step=self._find_step_name(path),
                line=place.line,
                column=place.column,
                message=message,
                hint=hint,
                replacement=replacement,
            )
        )

    def _count_problem(self, severity: Severity) -> bool:
        """Count a problem, and say once that further ones are not listed."""
        self._counts[severity] += 1
        if self._counts[severity] == PROBLEMS_MAX + 1:
            self.problems.append(
                Problem(
                    code="W910",
                    severity=Severity.WARNING,
                    level=self.level,
                    path="",
                    line=1,
                    column=1,
                    message=f"only the first {PROBLEMS_MAX} {severity}s are listed",
                )
            )
        return self._counts[severity] <= PROBLEMS_MAX

    @property
    def has_hints(self) -> bool:
        """Tell whether hints are still given."""
        return self._hints < HINTS_MAX

    def suggest_word(self, word: str, known_names: Collection[str]) -> str | None:
        """Phrase the nearest known word as a question, for the first problems of a document."""
        self._hints += 1
        return spelling.suggest_word(word, known_names) if self._hints <= HINTS_MAX else None

    def add_task(self, task: ReadTask) -> None:
        """Remember where a task stands."""
        self._tasks.setdefault(task.path[:2], []).append(task)

    def list_tasks(self, path: Path) -> list[ReadTask]:
        """List the tasks of a step or workbook entry, in order."""
        return self._tasks.get(path[:2], [])

    def find_task(self, path: Path) -> ReadTask | None:
        """Find the task that a place is inside of."""
        within = [task for task in self.list_tasks(path) if path[: len(task.path)] == task.path]
        return max(within, key=lambda task: len(task.path), default=None)

    def record_move(self, old: Path, new: Path) -> None:
        """Remember that what is read at `new` was written at `old`."""
        self._moves.record_move(old, new)

    def record_moves(self, read_at: Mapping[Path, Path]) -> None:
        """Remember several moves at once, with all below them, within one step."""
        self._moves.record_moves(read_at)

    def find_origin(self, path: Path) -> Path:
        """Find the path under which a value was written."""
        return self._moves.find_origin(path)

    def _find_step_name(self, path: Path) -> str | None:
        match path:
            case ("workflow", int(index), *_):
                root = self.document.value
                steps = root.get("workflow") if isinstance(root, dict) else None
                step = steps[index] if isinstance(steps, list) and index < len(steps) else None
                name = (step.get("step") or step.get("name")) if isinstance(step, dict) else None
                return name if isinstance(name, str) else None
            case _:
                return None

    def report_wrong_type(self, path: Path, expected: str, value: Any) -> None:
        """Report a value of the wrong type."""
        self.report_problem("E104", path, f"expected {expected}, found {describe_value(value)}")

    def report_unknown(
        self, path: Path, known_names: Collection[str], *, code: str = "E103", noun: str = "key"
    ) -> None:
        """Report a name that is not among the known ones."""
        word = str(path[-1])
        self.report_problem(
            code,
            path,
            f"unknown {noun} '{word}'",
            hint=self.suggest_word(word, known_names),
            of_key=True,
        )

    def add_templates(self, value: Any, path: Path) -> None:
        """Remember every template inside a rendered value."""
        if isinstance(value, str):
            if coercion.is_template(value):
                self.sites.append(TemplateSite(path=path, source=value))
        elif isinstance(value, dict):
            for key, item in value.items():
                self.add_templates(item, (*path, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self.add_templates(item, (*path, index))

    def read_condition(self, value: Any, path: Path) -> str | bool | None:
        """Read a condition."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, str):
            self.report_wrong_type(path, "a condition", value)
            return None
        self.sites.append(TemplateSite(path=path, source=value, is_condition=True))
        if not coercion.is_template(value):
            self.report_problem(
                "W905",
                path,
                "a condition is written without {{ }}",
                replacement="{{ " + value.strip() + " }}",
            )
        return value

    def read_text(self, value: Any, path: Path) -> str | None:
        """Read a scalar as text, as it is written; `None` when the value is not one."""
        return declared_scalars.read_scalar_text(self.document, value, self.find_origin(path))

    def read_mapping(self, value: Any, path: Path) -> dict[str, Any] | None:
        """Read a mapping of any content; null is empty."""
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self.report_wrong_type(path, "a mapping", value)
        return None

    def read_list(self, value: Any, path: Path) -> list[Any]:
        """Read a list of any content; null is empty."""
        if value is None:
            return []
        if isinstance(value, list):
            return value
        self.report_wrong_type(path, "a list", value)
        return []

    def read_fields(
        self,
        kind: type[msgspec.Struct],
        value: dict[str, Any],
        path: Path,
        *,
        other: Collection[str] = (),
        hinted: Collection[str] = (),
    ) -> dict[str, Any]:
        """Read the known keys of a mapping by field name; keys in `other` are read elsewhere.

        Keys in `hinted` were rewritten before: they are what an unknown key may have meant.
        """
        fields = map_fields_by_key(kind)
        read_values: dict[str, Any] = {}
        for key, item in value.items():
            if key in other:
                continue
            if key not in fields:
                self.report_unknown((*path, key), {*fields, *other, *hinted})
                continue
            field = fields[key]
            if item is None and not isinstance(field.type, inspect.AnyType):
                continue
            field_value = self._read_value(field.type, item, (*path, key), key)
            if field_value is not None or isinstance(field.type, inspect.AnyType):
                read_values[field.name] = field_value
        return read_values

    def build_struct(self, kind: type[msgspec.Struct], fields: dict[str, Any], path: Path) -> Any:
        """Make the Struct, or report the required fields that are missing."""
        missing = [
            field.encode_name
            for field in map_fields_by_key(kind).values()
            if field.required and field.name not in fields
        ]
        for name in missing:
            if self.find_written((*path, name)) is None:
                self.report_problem("E104", path, f"'{name}' is required here")
        return None if missing else kind(**fields)

    def find_written(self, path: Path) -> Any:
        """Find what the document says at a path, however it is read; `None` when nothing."""
        value: Any = self.document.value
        for segment in self.find_origin(path):
            try:
                value = value[segment]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def read_struct(self, kind: type[msgspec.Struct], value: Any, path: Path) -> Any:
        """Read a section whose keys are exactly the Struct's fields."""
        if not isinstance(value, dict):
            self.report_wrong_type(path, "a mapping", value)
            return None
        return self.build_struct(kind, self.read_fields(kind, value, path), path)

    def _read_value(self, info: inspect.Type, value: Any, path: Path, name: str) -> Any:
        match info:
            case inspect.AnyType():
                self.add_templates(value, path)
                return value
            case inspect.StructType(cls=cls):
                reader = self._readers.get(cls)
                return reader(self, value, path) if reader else self.read_struct(cls, value, path)
            case inspect.VarTupleType(item_type=item):
                return self._read_items(item, value, path, name)
            case inspect.DictType(value_type=item):
                return self._read_entries(item, value, path, name)
            case inspect.UnionType(types=types):
                return self._read_union(types, value, path, name)
            case _:
                return self._read_scalar(info, value, path, name)

    def _read_items(self, item: inspect.Type, value: Any, path: Path, name: str) -> Any:
        if isinstance(item, inspect.StrType) and (text := self.read_text(value, path)) is not None:
            return (text,)
        if not isinstance(value, list):
            self.report_wrong_type(path, "a list", value)
            return None
        optional_items = (
            self._read_value(item, entry, (*path, i), name) for i, entry in enumerate(value)
        )
        return tuple(entry for entry in optional_items if entry is not None)

    def _read_entries(self, item: inspect.Type, value: Any, path: Path, name: str) -> Any:
        if not isinstance(value, dict):
            self.report_wrong_type(path, "a mapping", value)
            return None
        values_by_key = {
            key: self._read_value(item, entry, (*path, key), name) for key, entry in value.items()
        }
        if isinstance(item, inspect.AnyType):
            return values_by_key
        return {key: entry for key, entry in values_by_key.items() if entry is not None}

    def _read_union(
        self, types: tuple[inspect.Type, ...], value: Any, path: Path, name: str
    ) -> Any:
        inner = [item for item in types if not isinstance(item, inspect.NoneType)]
        if len(inner) == 1:
            return self._read_value(inner[0], value, path, name)
        if any(isinstance(item, inspect.BoolType) for item in inner):
            return self._read_flag(value, path, name)
        if isinstance(value, dict) and any(isinstance(item, inspect.DictType) for item in inner):
            self.add_templates(value, path)
            return value
        is_whole = not any(isinstance(item, inspect.FloatType) for item in inner)
        return self._read_number(value, path, name, is_whole=is_whole)

    def _read_flag(self, value: Any, path: Path, name: str) -> Any:
        if name == "when":
            return self.read_condition(value, path)
        if coercion.is_template(value):
            self.add_templates(value, path)
            return value
        return self._read_scalar(inspect.BoolType(), value, path, name)

    def _read_number(self, value: Any, path: Path, name: str, *, is_whole: bool) -> Any:
        if name in _PERCENT_FIELDS:
            number = declared_scalars.coerce_count_or_share(value)
            if number is None:
                self.report_wrong_type(path, "a whole number or a percentage, as 5 or 5%", value)
            return number
        if coercion.is_template(value):
            self.add_templates(value, path)
            return value
        return self._read_scalar(
            inspect.IntType() if is_whole else inspect.FloatType(), value, path, name
        )

    def _read_scalar(self, info: inspect.Type, value: Any, path: Path, name: str) -> Any:
        scalar, expected = declared_scalars.coerce_scalar(info, value, name)
        if isinstance(info, inspect.StrType):
            scalar = self.read_text(value, path)
        if scalar is None:
            self._report_refused(info, value, path, expected)
        elif name in _RENDERED_FIELDS:
            self.add_templates(scalar, path)
        return scalar

    def _report_refused(self, info: inspect.Type, value: Any, path: Path, expected: str) -> None:
        hint = None
        if isinstance(info, inspect.LiteralType) and isinstance(value, str):
            hint = self.suggest_word(value, [str(item) for item in info.values])
        self.report_problem(
            "E104", path, f"expected {expected}, found {describe_value(value)}", hint=hint
        )


def list_step_paths(reading: DocumentReader, playbook: Playbook) -> Iterator[tuple[Path, Step]]:
    """Pair every step with its place in the document."""
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        yield ("workflow", index), step


def list_arc_paths(step: Step, path: Path) -> Iterator[tuple[Path, Arc]]:
    """Pair every arc of a step with its place."""
    for index, arc in enumerate(step.next.arcs if step.next else ()):
        yield (*path, "next", "arcs", index), arc
