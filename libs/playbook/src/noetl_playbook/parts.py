"""The parts of a loop's outcome, one a unit: what `fanin` and reduce steps see of them."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook import forms
from noetl_playbook.canonical import Canonical
from noetl_playbook.lookup import MISSING, Lookup, member

# Gives the plain value of a part's result, or raises `PayloadNeeded`.
Open = Callable[["Part"], Any]

FAILED_ITEMS_MAX = 100
_LISTED = ("refs", "results", "failed_items", "failed_shards")
PARTS = "_parts"


class Part(Canonical, frozen=True, kw_only=True):
    """What became of one unit; `is_single` says that its list of results holds the result."""

    index: int
    key: str
    status: str = "ok"
    result: ResultEnvelope | None = None
    error: dict[str, Any] | None = None
    row_count: int | None = None
    is_single: bool = False

    @property
    def ref(self) -> dict[str, Any] | None:
        """Where the output is stored; None for a small one, which travels along."""
        reference = self.result.reference if self.result is not None else None
        return None if reference is None else msgspec.to_builtins(reference)


class PartView(Lookup):
    """A part as a reduce body sees it: `index key status data ref row_count`."""

    __slots__ = ("_open", "_part")

    def __init__(self, part: Part, *, open_part: Open) -> None:
        self._part = part
        self._open = open_part

    def find(self, key: Any) -> Any:
        """Find a field; the output is loaded when it is touched."""
        part = self._part
        if key == "data":
            return self._open(part)
        known = {
            "index": part.index,
            "key": part.key,
            "status": part.status,
            "ref": part.ref,
            "row_count": part.row_count,
        }
        if part.error is not None:
            known["error"] = part.error
        return known.get(key, MISSING)

    def may_lack(self, key: Any) -> bool:
        """Tell whether a field is that of a failed part alone."""
        return bool(key == "error")

    def plain(self) -> Any:
        """Give every field, the output loaded."""
        names = ("index", "key", "status", "data", "ref", "row_count")
        return {name: forms.plain(self.find(name)) for name in names}

    def by_reference(self) -> dict[str, Any]:
        """Give every field, the output only of a part that has no reference."""
        names = ("index", "key", "status", "ref", "row_count")
        found = {name: self.find(name) for name in names}
        return found if self._part.ref is not None else {**found, "data": self._data()}

    def _data(self) -> Any:
        return forms.plain(self.find("data"))

    def known_names(self) -> Iterable[str]:
        """List the fields."""
        return ("index", "key", "status", "data", "ref", "row_count", "error")

    def __str__(self) -> str:
        return str(self.plain())


class PartViews(Lookup):
    """The parts that a reduce body takes, in order; it reads as a list."""

    __slots__ = ("_views",)

    def __init__(self, views: list[PartView]) -> None:
        self._views = views

    def find(self, key: Any) -> Any:
        """Find a part by its place."""
        return member(self._views, key)

    def plain(self) -> Any:
        """Give every part, its output loaded."""
        return [view.plain() for view in self._views]

    def by_reference(self) -> list[dict[str, Any]]:
        """Give every part, large outputs by their reference alone."""
        return [view.by_reference() for view in self._views]

    def known_names(self) -> Iterable[str]:
        """List nothing: parts have no names."""
        return ()

    def __iter__(self) -> Iterator[PartView]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, key: Any) -> Any:
        return self._views[key]

    def __str__(self) -> str:
        return str(self.plain())


class Fanin(Lookup):
    """The outcome of a loop: counters at hand, `refs` and `results` loaded when touched."""

    __slots__ = ("_counters", "_list_parts", "_open")

    def __init__(
        self,
        counters: Mapping[str, Any],
        *,
        list_parts: Callable[[], list[Part]],
        open_part: Open,
    ) -> None:
        self._counters = counters
        self._list_parts = list_parts
        self._open = open_part

    def find(self, key: Any) -> Any:
        """Find a counter, or list what the units gave."""
        if key == "refs":
            return [part.ref for part in self._list_parts()]
        if key == "results":
            return [self._open(part) for part in self._list_parts()]
        if key in ("failed_items", "failed_shards"):
            return self._failed()
        return MISSING if key == PARTS else self._counters.get(key, MISSING)

    def plain(self) -> Any:
        """Give the counters and the failed units; outputs have to be named."""
        found = {key: item for key, item in self._counters.items() if key != PARTS}
        return {**found, "failed_items": self._failed()}

    def _failed(self) -> list[dict[str, Any]]:
        if not self._counters.get("failed"):
            return []
        failed = (part for part in self._list_parts() if part.status == "error")
        return [
            {"index": part.index, "key": part.key, "error": part.error}
            for part in itertools.islice(failed, FAILED_ITEMS_MAX)
        ]

    def known_names(self) -> Iterable[str]:
        """List the names."""
        return [*(key for key in self._counters if key != PARTS), *_LISTED]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known_names())

    def __contains__(self, key: object) -> bool:
        return key in list(self.known_names())

    def __str__(self) -> str:
        return str(self.plain())


def kept(parts: list[Part] | PayloadRef | None) -> dict[str, Any]:
    """Write where a loop's parts are, beside its counters."""
    if parts is None:
        return {}
    if isinstance(parts, list):
        return {PARTS: {"inline": msgspec.to_builtins(parts)}}
    return {PARTS: {"ref": msgspec.to_builtins(parts)}}


def reference_of(counters: Mapping[str, Any]) -> PayloadRef | None:
    """Return the payload of a loop's parts, or None when they are inline."""
    written = counters.get(PARTS, {}).get("ref")
    return None if written is None else msgspec.convert(written, PayloadRef)


def inline_of(counters: Mapping[str, Any]) -> list[Part]:
    """Return the parts that are kept beside the counters."""
    return msgspec.convert(counters.get(PARTS, {}).get("inline", []), list[Part])
