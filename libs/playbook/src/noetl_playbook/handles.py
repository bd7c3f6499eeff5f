"""Results kept by reference: metadata answers what it can, the rest asks for the payload."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from noetl_playbook import error_view, forms
from noetl_playbook.lookup import MISSING, Lookup, member
from noetl_playbook.results import Stored
from noetl_playbook.sources import rows_of

Load = Callable[[Stored], Any]

# What only a result has that the playbook knows to be stored.
_OF_STORED = frozenset({"_ref", "_store", "_bytes", "_preview"})


class Needed(Exception):  # noqa: N818 (a request to the caller, not an error)
    """A render touched what only the caller can get; get it and render again."""


class PayloadNeeded(Needed):
    """A render touched a payload that is not loaded; load it and render again."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(f"the payload {stored.locator} is not loaded")
        self.stored = stored


def refuse_to_load(stored: Stored) -> Any:
    """Ask the caller for every payload."""
    raise PayloadNeeded(stored)


class Handle(Lookup):
    """A value in the payload store; `load` gives its view or value, or raises `PayloadNeeded`."""

    __slots__ = ("_load", "error", "stored")

    def __init__(
        self,
        stored: Stored,
        *,
        load: Load = refuse_to_load,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        self.stored = stored
        self.error = error_view.found(error)
        self._load = load

    def find(self, key: Any) -> Any:
        """Find a name in the metadata, else in the payload."""
        if key in _OF_STORED and self.stored.is_inline and key not in self.stored.fields:
            return MISSING
        found = self._from_metadata(key) if isinstance(key, str) else MISSING
        return member(self._load(self.stored), key) if found is MISSING else found

    def _from_metadata(self, key: str) -> Any:
        stored = self.stored
        if key in stored.fields:
            return stored.fields[key]
        if key == "_ref":
            return stored.as_mapping()
        known = {
            "_store": stored.store,
            "_bytes": stored.reference.payload_bytes,
            "_preview": stored.preview,
            "row_count": stored.reference.row_count,
            "columns": stored.columns,
        }
        found = known.get(key)
        return self._from_outline(key) if found is None else found

    def _from_outline(self, key: str) -> Any:
        if self._is_list(key):
            return Rows(self.stored, load=lambda _: rows_of(self._value()))
        if key in ("data", "context", "rows") and self.stored.reference.row_count is not None:
            return self
        if key == "error" and self.error is not None:
            return self.error
        return MISSING

    def _is_list(self, key: str) -> bool:
        if self.stored.reference.row_count is None:
            return False
        return key == "rows" or (self.stored.shape == "loop" and key in ("results", "data"))

    def may_lack(self, key: Any) -> bool:
        """Tell whether a name is one that only some results have."""
        return key == "error" or key in _OF_STORED

    def loaded(self) -> Any:
        """Return the view or value behind it; raises `PayloadNeeded`."""
        return self._load(self.stored)

    def _value(self) -> Any:
        found = self.loaded()
        return found.settled() if isinstance(found, Lookup) else found

    def settled(self) -> Any:
        """Stay a handle: how it is used decides whether it is loaded."""
        return self

    def plain(self) -> Any:
        """Give the payload's plain form."""
        return forms.plain(self._value())

    def known_names(self) -> Iterable[str]:
        """List the selected fields."""
        return self.stored.fields.keys()

    def __len__(self) -> int:
        count = self.stored.count
        return len(self._value()) if count is None else count

    def __bool__(self) -> bool:
        count = self.stored.count
        return True if count is None else count > 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._value())

    def __getitem__(self, key: Any) -> Any:
        return self._value()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._value()

    def __eq__(self, other: object) -> bool:
        return bool(self.plain() == forms.plain(other))

    __hash__ = None  # type: ignore[assignment]  # its value is not hashable

    def __str__(self) -> str:
        return str(self.plain())


class Rows(Handle):
    """The list of rows or results in a payload: its length is known without loading it."""

    __slots__ = ()

    def find(self, key: Any) -> Any:
        """Find a row."""
        return member(self._load(self.stored), key)

    def known_names(self) -> Iterable[str]:
        """List nothing: rows have no names."""
        return ()
