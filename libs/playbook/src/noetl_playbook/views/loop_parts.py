"""The parts of a loop's outcome, one a unit: what `fanin` and reduce steps see of them."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook.model.playbook import CanonicalValue
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.lookup import MISSING, Lookup, look_up_member
from noetl_playbook.views.result_view import ResultView

# Gives the plain value of a part's result, or raises `PayloadNeeded`.
Open = Callable[["LoopPart"], Any]

FAILED_ITEMS_MAX = 100
_LISTED = ("refs", "results", "failed_items", "failed_shards")
PARTS = "_parts"


class FailedRow(CanonicalValue, frozen=True, kw_only=True):
    """An item that failed in a unit of several: its place in the collection, key and error."""

    index: int
    key: str
    error: dict[str, Any]


class LoopPart(CanonicalValue, frozen=True, kw_only=True):
    """What became of one unit; `is_single` says that its list of results holds the result.

    `failed_rows` are the items that failed, where units hold several and each counts.
    """

    index: int
    key: str
    status: str = "ok"
    result: ResultEnvelope | None = None
    error: dict[str, Any] | None = None
    row_count: int | None = None
    is_single: bool = False
    failed_rows: list[FailedRow] = msgspec.field(default_factory=list)

    @property
    def ref(self) -> dict[str, Any] | None:
        """Where the output is stored; None for a small one, which travels along."""
        reference = self.result.reference if self.result is not None else None
        return None if reference is None else msgspec.to_builtins(reference)


class LoopPartView(Lookup):
    """A part as a reduce body sees it: `index key status data ref row_count`."""

    __slots__ = ("_open", "_part")

    def __init__(self, part: LoopPart, *, open_part: Open) -> None:
        self._part = part
        self._open = open_part

    def find_member(self, key: Any) -> Any:
        """Find a field; the output is loaded when it is touched."""
        part = self._part
        if key == "data":
            return self._open(part)
        members = {
            "index": part.index,
            "key": part.key,
            "status": part.status,
            "ref": part.ref,
            "row_count": part.row_count,
        }
        if part.error is not None:
            members["error"] = part.error
        return members.get(key, MISSING)

    def can_lack_member(self, key: Any) -> bool:
        """Tell whether a field is that of a failed part alone."""
        return bool(key == "error")

    def to_plain(self) -> Any:
        """Give every field, the output loaded."""
        names = ("index", "key", "status", "data", "ref", "row_count")
        return {name: output_forms.to_plain(self.find_member(name)) for name in names}

    def to_reference_form(self) -> dict[str, Any]:
        """Give every field, the output only of a part that has no reference."""
        names = ("index", "key", "status", "ref", "row_count")
        members = {name: self.find_member(name) for name in names}
        return (
            members if self._part.ref is not None else {**members, "data": self._get_plain_data()}
        )

    def _get_plain_data(self) -> Any:
        return output_forms.to_plain(self.find_member("data"))

    def known_names(self) -> Iterable[str]:
        """List the fields."""
        return ("index", "key", "status", "data", "ref", "row_count", "error")

    def __str__(self) -> str:
        return str(self.to_plain())


class LoopPartList(Lookup):
    """The parts that a reduce body takes, in order; it reads as a list."""

    __slots__ = ("_views",)

    def __init__(self, views: list[LoopPartView]) -> None:
        self._views = views

    def find_member(self, key: Any) -> Any:
        """Find a part by its place."""
        return look_up_member(self._views, key)

    def to_plain(self) -> Any:
        """Give every part, its output loaded."""
        return [view.to_plain() for view in self._views]

    def to_reference_form(self) -> list[dict[str, Any]]:
        """Give every part, large outputs by their reference alone."""
        return [view.to_reference_form() for view in self._views]

    def known_names(self) -> Iterable[str]:
        """List nothing: parts have no names."""
        return ()

    def __iter__(self) -> Iterator[LoopPartView]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, key: Any) -> Any:
        return self._views[key]

    def __str__(self) -> str:
        return str(self.to_plain())


class FaninView(Lookup):
    """The outcome of a loop: counters at hand, `refs` and `results` loaded when touched."""

    __slots__ = ("_counters", "_list_parts", "_open")

    def __init__(
        self,
        counters: Mapping[str, Any],
        *,
        list_parts: Callable[[], list[LoopPart]],
        open_part: Open,
    ) -> None:
        self._counters = counters
        self._list_parts = list_parts
        self._open = open_part

    def find_member(self, key: Any) -> Any:
        """Find a counter, or list what the units gave."""
        if key == "refs":
            return [part.ref for part in self._list_parts()]
        if key == "results":
            return [self._open(part) for part in self._list_parts()]
        if key in ("failed_items", "failed_shards"):
            return self._list_failed()
        return MISSING if key == PARTS else self._counters.get(key, MISSING)

    def to_plain(self) -> Any:
        """Give the counters and the failed units; outputs have to be named."""
        counters = {key: item for key, item in self._counters.items() if key != PARTS}
        return {**counters, "failed_items": self._list_failed()}

    def _list_failed(self) -> list[dict[str, Any]]:
        if not self._counters.get("failed"):
            return []
        parts = self._list_parts()
        failed: Iterable[LoopPart | FailedRow] = [row for part in parts for row in part.failed_rows]
        if not failed:
            failed = (part for part in parts if part.status == "error")
        return [
            {"index": item.index, "key": item.key, "error": item.error}
            for item in itertools.islice(failed, FAILED_ITEMS_MAX)
        ]

    def known_names(self) -> Iterable[str]:
        """List the names."""
        return [*(key for key in self._counters if key != PARTS), *_LISTED]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known_names())

    def __contains__(self, key: object) -> bool:
        return key in list(self.known_names())

    def __str__(self) -> str:
        return str(self.to_plain())


def build_parts_entry(parts: list[LoopPart] | PayloadRef | None) -> dict[str, Any]:
    """Build the entry of a `fanin` record that holds a loop's parts, inline or by reference."""
    if parts is None:
        return {}
    if isinstance(parts, list):
        return {PARTS: {"inline": msgspec.to_builtins(parts)}}
    return {PARTS: {"ref": msgspec.to_builtins(parts)}}


def find_parts_reference(counters: Mapping[str, Any]) -> PayloadRef | None:
    """Return the payload of a loop's parts, or None when they are inline."""
    written = counters.get(PARTS, {}).get("ref")
    return None if written is None else codec.convert_value(written, PayloadRef)


def list_inline_parts(counters: Mapping[str, Any]) -> list[LoopPart]:
    """Return the parts that are kept beside the counters."""
    return codec.convert_value(counters.get(PARTS, {}).get("inline", []), list[LoopPart])


class NoCollectionError(Exception):
    """A value is no collection."""


def list_collection_items(value: Any) -> list[Any]:
    """Return the list that a rendered value means; raises `NoCollectionError`.

    Null is for the caller to decide about, and so are whole numbers: a long range is never built.
    """
    if isinstance(value, ResultView):
        value = _take_view_list(value)
    elif isinstance(value, Lookup):
        value = value.to_plain()
    match value:
        case str():
            return _parse_text_list(value)
        case Mapping():
            return _list_mapping_items(value)
        case list():
            return value
        case tuple():
            return list(value)
        case _:
            raise NoCollectionError(type(value).__name__)


def _take_view_list(view: ResultView) -> Any:
    """Take the list from a result without walking its rows."""
    raw = view.raw
    if type(raw) is dict and isinstance(raw.get("rows"), list):
        return raw["rows"]
    if view.kind == "loop":
        return raw["results"]
    return raw if isinstance(raw, list) else view.to_plain()


def _list_mapping_items(value: Mapping[str, Any]) -> list[Any]:
    if isinstance(value.get("rows"), list):
        return list(value["rows"])
    if isinstance(value.get("results"), list) and "stats" in value:
        return list(value["results"])
    return [{"key": key, "value": item} for key, item in value.items()]


def _parse_text_list(value: str) -> list[Any]:
    try:
        text_list = msgspec.json.decode(value)
    except ValueError as error:
        raise NoCollectionError("text that is no JSON") from error
    if not isinstance(text_list, list):
        raise NoCollectionError("text that holds no JSON list")
    return text_list
