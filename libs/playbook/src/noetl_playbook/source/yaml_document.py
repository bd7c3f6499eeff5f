"""YAML text as documents with the places of their values: YAML 1.2's core schema, within limits."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from noetl_playbook.source.problems import Path, TextPosition

DIGITS_MAX = 1000

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_TRUE = re.compile(r"(?:true|True|TRUE)\Z")
_FALSE = re.compile(r"(?:false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_OCTAL_OR_HEX = re.compile(r"0(?:o[0-7]+|x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z",
)
_AMBIGUOUS = re.compile(r"(?:yes|no|on|off|y|n)\Z", re.IGNORECASE)


class NumberTooLongError(Exception):
    """A number has more digits than are read."""


def is_ambiguous_word(text: str) -> bool:
    """Tell whether some readers of YAML take a word for a boolean."""
    return _AMBIGUOUS.match(text) is not None


def resolve_scalar(text: str) -> str | bool | float | None:
    """Give a plain scalar its core type; raises `NumberTooLongError`."""
    if _NULL.match(text):
        return None
    if _TRUE.match(text) or _FALSE.match(text):
        return text[0] in "tT"
    if len(text) > DIGITS_MAX and (_FLOAT.match(text) or _OCTAL_OR_HEX.match(text)):
        raise NumberTooLongError
    if _INT.match(text):
        return int(text)
    if _OCTAL_OR_HEX.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    return text


DOCUMENT_BYTES_MAX = 2 * 1024 * 1024
DEPTH_MAX = 64
NODES_MAX = 500_000
EXPANDED_CHARACTERS_MAX = 16 * 1024 * 1024

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_DIRECTIVE = re.compile(r"^%(?:YAML|TAG)\b|\A%", re.MULTILINE)
_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
LINE_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_TOO_LARGE = "E605"
# What people most often meant, by what the parser says.
_HINTS = {
    "found character that cannot start any token": "quote text that begins with this character;"
    " indent with spaces, not with tabs",
    "mapping values are not allowed in this context": "quote text that holds ': '",
    "could not find expected ':'": "a key needs ': ' after it; is a quote or a brace missing?",
    "did not find expected key": "is this line indented as its neighbours are?",
    "did not find expected '-' indicator": "is this line indented as its neighbours are?",
    "did not find expected ',' or '}'": "quote text that holds braces, commas or quotes",
    "did not find expected ',' or ']'": "quote text that holds brackets, commas or quotes",
}
# libyaml is ten times faster; a build without it reads the same.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TextProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell about the text itself."""

    code: str
    path: Path
    place: TextPosition
    message: str
    hint: str | None = None


class YamlDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One YAML document: its value, the places of its keys and values, and problems."""

    value: Any
    values: dict[Path, TextPosition]
    keys: dict[Path, TextPosition]
    text_problems: tuple[TextProblem, ...]
    lines: tuple[str, ...] = ()
    # The line, from 1, at which the document begins, its marker included.
    begins: int = 1

    def find_place(self, path: Path, *, of_key: bool = False) -> TextPosition:
        """Find where a path stands, or its nearest ancestor that does."""
        if of_key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            text_position = self.values.get(path[:length])
            if text_position is not None:
                return text_position
        return TextPosition(line=1, column=1)


class UnreadableError(Exception):
    """The text is not a YAML document that we accept."""

    def __init__(
        self,
        message: str,
        place: TextPosition,
        *,
        path: Path = (),
        hint: str = "",
        code: str = "E101",
    ) -> None:
        super().__init__(message)
        self.text_problem = TextProblem(
            code=code, path=path, place=place, message=message, hint=hint or None
        )


class _Anchor(msgspec.Struct, frozen=True):
    value: Any
    nodes: int
    characters: int
    height: int


def decode_text(data: bytes) -> str:
    """Decode a text as UTF-8; raises `UnreadableError` where it is not."""
    # A reader that stops at the limit may have cut a character in two.
    if len(data) > DOCUMENT_BYTES_MAX:
        raise UnreadableError(
            f"the document is larger than {DOCUMENT_BYTES_MAX} bytes",
            TextPosition(line=1, column=1),
            code=_TOO_LARGE,
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnreadableError(
            "the text is UTF-16", TextPosition(line=1, column=1), hint="save it as UTF-8"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode(errors="replace")
        line = before.count("\n") + 1
        raise UnreadableError(
            f"the text is not UTF-8: byte {error.start} does not decode",
            TextPosition(line=line, column=len(before) - before.rfind("\n")),
            hint="save it as UTF-8",
        ) from error


def read_document(text: str) -> YamlDocument:
    """Read the only document of a text; raises `UnreadableError` also for a key written twice."""
    only_document = get_only_document(read_documents(text))
    for text_problem in only_document.text_problems:
        if text_problem.code == "E101":
            raise UnreadableError(text_problem.message, text_problem.place, path=text_problem.path)
    return only_document


def get_only_document(documents: tuple[YamlDocument, ...]) -> YamlDocument:
    """Give the only document of a text; raises `UnreadableError` when there are several."""
    if len(documents) > 1:
        raise UnreadableError(
            f"the text holds {len(documents)} documents",
            documents[1].find_place(()),
            hint="submit each playbook by itself",
        )
    return documents[0]


def read_documents(text: str) -> tuple[YamlDocument, ...]:
    """Read every document of a text; raises `UnreadableError` at the first fault of syntax.

    A key that is written twice is remarked; its first value counts.
    """
    _check_yaml_text(text)
    lines = tuple(LINE_BREAK.split(text))
    try:
        events = yaml.parse(text, Loader=_LOADER)
        documents = tuple(_compose_documents(events, lines))
    except yaml.MarkedYAMLError as error:
        raise _build_syntax_error(error, lines) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UnreadableError(
            str(error) or "too deeply nested", TextPosition(line=1, column=1)
        ) from error
    if not documents:
        raise UnreadableError("the document is empty", TextPosition(line=1, column=1))
    return documents


def _build_syntax_error(error: yaml.MarkedYAMLError, lines: tuple[str, ...]) -> UnreadableError:
    """Say what the parser says; what is never closed is placed where it opens."""
    problem = str(error.problem or "")
    mark = error.problem_mark or error.context_mark
    message = " ".join(str(part) for part in (error.problem, error.context) if part)
    hint = _HINTS.get(problem, "")
    if error.context_mark is not None and _is_at_end(mark, lines):
        mark, hint = error.context_mark, "what opens here is never closed"
    return UnreadableError(message or "not YAML", _mark_place(mark), hint=hint)


def _is_at_end(mark: Any, lines: tuple[str, ...]) -> bool:
    """Tell whether nothing follows a mark."""
    following_lines = (
        (lines[mark.line][mark.column :], *lines[mark.line + 1 :]) if mark.line < len(lines) else ()
    )
    return not any(line.strip() for line in following_lines)


def _check_yaml_text(text: str) -> None:
    start = TextPosition(line=1, column=1)
    if len(text.encode("utf-8", "replace")) > DOCUMENT_BYTES_MAX:
        raise UnreadableError(
            f"the document is larger than {DOCUMENT_BYTES_MAX} bytes", start, code=_TOO_LARGE
        )
    unprintable = _CONTROL.search(text)
    if unprintable is not None:
        line = text.count("\n", 0, unprintable.start()) + 1
        column = unprintable.start() - text.rfind("\n", 0, unprintable.start())
        raise UnreadableError(
            "control characters are not accepted", TextPosition(line=line, column=column)
        )
    directive = _DIRECTIVE.search(text)
    if directive is not None:
        line = text.count("\n", 0, directive.start()) + 1
        raise UnreadableError("YAML directives are not accepted", TextPosition(line=line, column=1))


def _mark_place(mark: Any) -> TextPosition:
    if mark is None:
        return TextPosition(line=1, column=1)
    return TextPosition(line=mark.line + 1, column=mark.column + 1)


def _scalar_place(event: Any) -> TextPosition:
    start, end = event.start_mark, event.end_mark
    return TextPosition(
        line=start.line + 1,
        column=start.column + 1,
        is_block=event.style in ("|", ">"),
        line_end=end.line + 1 if end.line > start.line else 0,
    )


def _compose_documents(events: Iterator[Any], lines: tuple[str, ...]) -> Iterator[YamlDocument]:
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _DocumentComposer(events, lines).compose_document(
                begins=_mark_place(event.start_mark).line
            )


class _DocumentComposer:
    """Builds one document from the parser's events."""

    def __init__(self, events: Iterator[Any], lines: tuple[str, ...]) -> None:
        self._events = events
        self._lines = lines
        self._anchors: dict[str, _Anchor] = {}
        self._values: dict[Path, TextPosition] = {}
        self._keys: dict[Path, TextPosition] = {}
        self._text_problems: list[TextProblem] = []
        self._nodes = 0
        self._characters = 0

    def compose_document(self, *, begins: int) -> YamlDocument:
        value, _ = self._compose_node(next(self._events), ())
        return YamlDocument(
            value=value,
            values=self._values,
            keys=self._keys,
            text_problems=tuple(self._text_problems),
            lines=self._lines,
            begins=begins,
        )

    def _compose_node(self, event: Any, path: Path) -> tuple[Any, int]:
        """Build the value that starts with `event`; also tells its height."""
        is_scalar = isinstance(event, yaml.ScalarEvent)
        place = _scalar_place(event) if is_scalar else _mark_place(event.start_mark)
        self._values[path] = place
        if isinstance(event, yaml.AliasEvent):
            return self._compose_alias(event, path, place)
        first, characters = self._nodes, self._characters
        self._count_nodes(1, len(event.value) if is_scalar else 0, path, place)
        _check_depth(len(path), path, place)
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self._compose_scalar(event, path, place)
            height = 0
        elif isinstance(event, yaml.SequenceStartEvent):
            value, height = self._compose_sequence(event, path, place)
        else:
            value, height = self._compose_mapping(event, path, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(
                value, self._nodes - first, self._characters - characters, height
            )
        return value, height

    def _count_nodes(self, nodes: int, characters: int, path: Path, place: TextPosition) -> None:
        self._nodes += nodes
        self._characters += characters
        if self._nodes <= NODES_MAX and self._characters <= EXPANDED_CHARACTERS_MAX:
            return
        limit_text = (
            f"{NODES_MAX} values"
            if self._nodes > NODES_MAX
            else f"{EXPANDED_CHARACTERS_MAX} characters"
        )
        raise UnreadableError(
            f"the document expands to more than {limit_text}", place, path=path, code=_TOO_LARGE
        )

    def _compose_alias(self, event: Any, path: Path, place: TextPosition) -> tuple[Any, int]:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise UnreadableError(
                f"alias '*{event.anchor}' refers to no finished anchor", place, path=path
            )
        self._count_nodes(anchor.nodes, anchor.characters, path, place)
        _check_depth(len(path) + anchor.height, path, place)
        return anchor.value, anchor.height

    def _compose_sequence(
        self, event: Any, path: Path, place: TextPosition
    ) -> tuple[list[Any], int]:
        _check_tag(event, "seq", path, place)
        items: list[Any] = []
        height = 0
        while not isinstance(child := next(self._events), yaml.SequenceEndEvent):
            value, below = self._compose_node(child, (*path, len(items)))
            items.append(value)
            height = max(height, below + 1)
        return items, height

    def _compose_mapping(
        self, event: Any, path: Path, place: TextPosition
    ) -> tuple[dict[str, Any], int]:
        _check_tag(event, "map", path, place)
        mapping: dict[str, Any] = {}
        merged_values: dict[str, Any] = {}
        height = 0
        while not isinstance(key_event := next(self._events), yaml.MappingEndEvent):
            key, key_place = self._compose_key(key_event, path)
            below_path = (*path, key)
            if key == _MERGE and not key_event.style:
                value, below = self._compose_node(next(self._events), below_path)
                _merge_mappings(merged_values, value, below_path, key_place)
            else:
                below = self._compose_entry(mapping, key, key_place, path)
            height = max(height, below + 1)
        for key, value in merged_values.items():
            mapping.setdefault(key, value)
        return mapping, height

    def _compose_entry(
        self, mapping: dict[str, Any], key: str, key_place: TextPosition, path: Path
    ) -> int:
        """Read one value into its mapping; tells the value's height."""
        below_path = (*path, key)
        if key not in mapping:
            self._keys[below_path] = key_place
            mapping[key], below = self._compose_node(next(self._events), below_path)
            return below
        first = self._keys[below_path].line
        text_problems = len(self._text_problems)
        _, below = self._compose_node(next(self._events), (*path, f"{key}\x00twice"))
        self._text_problems[text_problems:] = [
            TextProblem(
                code="E101",
                path=below_path,
                place=key_place,
                message=f"key '{key}' is written twice",
                hint=f"it stands on line {first} already",
            )
        ]
        return below

    def _compose_key(self, event: Any, path: Path) -> tuple[str, TextPosition]:
        place = _mark_place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            anchor = self._anchors.get(event.anchor or "")
            if anchor is not None and isinstance(anchor.value, str):
                return anchor.value, place
        if not isinstance(event, yaml.ScalarEvent):
            is_template = isinstance(event, yaml.MappingStartEvent) and event.flow_style
            hint = 'quote a template: "{{ … }}"' if is_template else ""
            raise UnreadableError("a key must be plain text", place, path=path, hint=hint)
        self._count_nodes(1, len(event.value), path, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(event.value, 1, len(event.value), 0)
        return event.value, place

    def _compose_scalar(self, event: Any, path: Path, place: TextPosition) -> Any:
        text: str = event.value
        if event.tag is not None:
            return _resolve_tagged(event, path, place)
        if not event.implicit[0]:
            return text
        if is_ambiguous_word(text):
            self._text_problems.append(
                TextProblem(
                    code="W906",
                    path=path,
                    place=place,
                    message=f"{text} is text here, not a boolean",
                    hint="write true or false, or quote it",
                )
            )
            return text
        return _resolve_or_refuse(text, path, place)


def _check_depth(depth: int, path: Path, place: TextPosition) -> None:
    if depth > DEPTH_MAX:
        raise UnreadableError(f"nested deeper than {DEPTH_MAX}", place, path=path, code=_TOO_LARGE)


def _check_tag(event: Any, kind: str, path: Path, place: TextPosition) -> None:
    if event.tag not in (None, "!", _TAG + kind):
        raise UnreadableError(f"tag {event.tag} is not accepted", place, path=path)


def _resolve_tagged(event: Any, path: Path, place: TextPosition) -> Any:
    name = event.tag.removeprefix(_TAG)
    if name in ("!", "str"):
        return event.value
    if name in ("int", "float", "bool", "null"):
        return _resolve_or_refuse(event.value, path, place)
    raise UnreadableError(f"tag {event.tag} is not accepted", place, path=path)


def _resolve_or_refuse(text: str, path: Path, place: TextPosition) -> Any:
    try:
        return resolve_scalar(text)
    except NumberTooLongError as error:
        raise UnreadableError("the number is too long", place, path=path) from error


def _merge_mappings(into: dict[str, Any], value: Any, path: Path, place: TextPosition) -> None:
    sources = value if isinstance(value, list) else [value]
    for source in sources:
        if not isinstance(source, dict):
            raise UnreadableError("only mappings can be merged", place, path=path)
        for key, item in source.items():
            into.setdefault(key, item)


def split_documents(text: str, begins: list[int]) -> list[str]:
    """Cut a text into its documents, each with what stands before it; the first begins the text."""
    places = [0, *(match.end() for match in LINE_BREAK.finditer(text)), len(text)]
    starts = [0, *(places[line - 1] for line in begins[1:]), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(starts)]
