"""YAML text to plain values, with the place of everything; refuses what could hurt."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from noetl_playbook.problems import Path, Place

DOCUMENT_BYTES_MAX = 2 * 1024 * 1024
DEPTH_MAX = 64
NODES_MAX = 500_000
INTEGER_DIGITS_MAX = 1000

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_TRUE = re.compile(r"(?:true|True|TRUE)\Z")
_FALSE = re.compile(r"(?:false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_OCTAL_OR_HEX = re.compile(r"0(?:o[0-7]+|x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z",
)
_AMBIGUOUS = re.compile(r"(?:yes|no|on|off|y|n)\Z", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
# libyaml is ten times faster; a build without it reads the same.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell about the text itself."""

    code: str
    path: Path
    place: Place
    message: str
    hint: str | None = None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One YAML document: its value, the places of its keys and values, and remarks."""

    value: Any
    values: dict[Path, Place]
    keys: dict[Path, Place]
    remarks: tuple[Remark, ...]

    def place(self, path: Path, *, of_key: bool = False) -> Place:
        """Find where a path stands, or its nearest ancestor that does."""
        if of_key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            found = self.values.get(path[:length])
            if found is not None:
                return found
        return Place(line=1, column=1)


class UnreadableError(Exception):
    """The text is not a YAML document that we accept."""

    def __init__(self, message: str, place: Place, *, path: Path = (), hint: str = "") -> None:
        super().__init__(message)
        self.remark = Remark(
            code="E101", path=path, place=place, message=message, hint=hint or None
        )


class _Anchor(msgspec.Struct, frozen=True):
    value: Any
    nodes: int
    height: int


def read(text: str) -> Document:
    """Read the only document of a text."""
    documents = read_all(text)
    if len(documents) > 1:
        raise UnreadableError(
            f"the text holds {len(documents)} documents",
            documents[1].place(()),
            hint="submit each playbook by itself",
        )
    return documents[0]


def read_all(text: str) -> tuple[Document, ...]:
    """Read every document of a text; raises `UnreadableError` at the first fault."""
    _check_text(text)
    try:
        events = yaml.parse(text, Loader=_LOADER)
        documents = tuple(_documents(events))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(str(part) for part in (error.problem, error.context) if part)
        raise UnreadableError(message or "not YAML", _place(mark)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UnreadableError(str(error) or "too deeply nested", Place(line=1, column=1)) from error
    if not documents:
        raise UnreadableError("the document is empty", Place(line=1, column=1))
    return documents


def _check_text(text: str) -> None:
    start = Place(line=1, column=1)
    if len(text.encode("utf-8", "replace")) > DOCUMENT_BYTES_MAX:
        raise UnreadableError(f"the document is larger than {DOCUMENT_BYTES_MAX} bytes", start)
    unprintable = _CONTROL.search(text)
    if unprintable is not None:
        line = text.count("\n", 0, unprintable.start()) + 1
        column = unprintable.start() - text.rfind("\n", 0, unprintable.start())
        raise UnreadableError(
            "control characters are not accepted", Place(line=line, column=column)
        )
    if text.startswith("%") or "\n%YAML" in text or "\n%TAG" in text:
        raise UnreadableError("YAML directives are not accepted", start)


def _place(mark: Any, *, is_block: bool = False) -> Place:
    if mark is None:
        return Place(line=1, column=1)
    return Place(line=mark.line + 1, column=mark.column + 1, is_block=is_block)


def _documents(events: Iterator[Any]) -> Iterator[Document]:
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _Composer(events).document()


class _Composer:
    """Builds one document from the parser's events."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, _Anchor] = {}
        self._values: dict[Path, Place] = {}
        self._keys: dict[Path, Place] = {}
        self._remarks: list[Remark] = []
        self._nodes = 0

    def document(self) -> Document:
        value, _ = self._node(next(self._events), ())
        return Document(
            value=value, values=self._values, keys=self._keys, remarks=tuple(self._remarks)
        )

    def _node(self, event: Any, path: Path) -> tuple[Any, int]:
        """Build the value that starts with `event`; also tells its height."""
        place = _place(event.start_mark, is_block=getattr(event, "style", None) in ("|", ">"))
        self._values[path] = place
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path, place)
        first = self._nodes
        self._spend(1, path, place)
        if len(path) > DEPTH_MAX:
            raise UnreadableError(f"nested deeper than {DEPTH_MAX}", place, path=path)
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self._scalar(event, path, place)
            height = 0
        elif isinstance(event, yaml.SequenceStartEvent):
            value, height = self._sequence(event, path, place)
        else:
            value, height = self._mapping(event, path, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(value, self._nodes - first, height)
        return value, height

    def _spend(self, nodes: int, path: Path, place: Place) -> None:
        self._nodes += nodes
        if self._nodes > NODES_MAX:
            raise UnreadableError(
                f"the document expands to more than {NODES_MAX} values", place, path=path
            )

    def _alias(self, event: Any, path: Path, place: Place) -> tuple[Any, int]:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise UnreadableError(
                f"alias '*{event.anchor}' refers to no finished anchor", place, path=path
            )
        self._spend(anchor.nodes, path, place)
        if len(path) + anchor.height > DEPTH_MAX:
            raise UnreadableError(f"nested deeper than {DEPTH_MAX}", place, path=path)
        return anchor.value, anchor.height

    def _sequence(self, event: Any, path: Path, place: Place) -> tuple[list[Any], int]:
        _check_tag(event, "seq", path, place)
        items: list[Any] = []
        height = 0
        while not isinstance(child := next(self._events), yaml.SequenceEndEvent):
            value, below = self._node(child, (*path, len(items)))
            items.append(value)
            height = max(height, below + 1)
        return items, height

    def _mapping(self, event: Any, path: Path, place: Place) -> tuple[dict[str, Any], int]:
        _check_tag(event, "map", path, place)
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        height = 0
        while not isinstance(key_event := next(self._events), yaml.MappingEndEvent):
            key, key_place = self._key(key_event, path)
            below_path = (*path, key)
            if key == _MERGE and not key_event.style:
                value, below = self._node(next(self._events), below_path)
                _merge(merged, value, below_path, key_place)
            else:
                if key in found:
                    raise UnreadableError(
                        f"key '{key}' is written twice", key_place, path=below_path
                    )
                self._keys[below_path] = key_place
                found[key], below = self._node(next(self._events), below_path)
            height = max(height, below + 1)
        for key, value in merged.items():
            found.setdefault(key, value)
        return found, height

    def _key(self, event: Any, path: Path) -> tuple[str, Place]:
        place = _place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            anchor = self._anchors.get(event.anchor or "")
            if anchor is not None and isinstance(anchor.value, str):
                return anchor.value, place
        if not isinstance(event, yaml.ScalarEvent):
            raise UnreadableError("a key must be plain text", place, path=path)
        self._spend(1, path, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(event.value, 1, 0)
        return event.value, place

    def _scalar(self, event: Any, path: Path, place: Place) -> Any:
        text: str = event.value
        if event.tag is not None:
            return _tagged(event, path, place)
        if not event.implicit[0]:
            return text
        if _AMBIGUOUS.match(text):
            self._remarks.append(
                Remark(
                    code="W906",
                    path=path,
                    place=place,
                    message=f"{text} is text here, not a boolean",
                    hint="write true or false, or quote it",
                )
            )
            return text
        return _resolve(text, path, place)


def _check_tag(event: Any, kind: str, path: Path, place: Place) -> None:
    if event.tag not in (None, "!", _TAG + kind):
        raise UnreadableError(f"tag {event.tag} is not accepted", place, path=path)


def _tagged(event: Any, path: Path, place: Place) -> Any:
    name = event.tag.removeprefix(_TAG)
    if name in ("!", "str"):
        return event.value
    if name in ("int", "float", "bool", "null"):
        return _resolve(event.value, path, place)
    raise UnreadableError(f"tag {event.tag} is not accepted", place, path=path)


def _resolve(text: str, path: Path, place: Place) -> Any:
    """Give a plain scalar its YAML 1.2 core type."""
    if _NULL.match(text):
        return None
    if _TRUE.match(text) or _FALSE.match(text):
        return text[0] in "tT"
    if len(text) > INTEGER_DIGITS_MAX and _FLOAT.match(text):
        raise UnreadableError("the number is too long", place, path=path)
    if _INT.match(text):
        return int(text)
    if _OCTAL_OR_HEX.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    return text


def _merge(into: dict[str, Any], value: Any, path: Path, place: Place) -> None:
    sources = value if isinstance(value, list) else [value]
    for source in sources:
        if not isinstance(source, dict):
            raise UnreadableError("only mappings can be merged", place, path=path)
        for key, found in source.items():
            into.setdefault(key, found)
