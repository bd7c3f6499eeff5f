"""Lazy views of stored results: metadata answers some reads, others need the payload loaded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from noetl_playbook.templates import output_forms
from noetl_playbook.templates.lookup import MISSING, Lookup, look_up_member
from noetl_playbook.views import error_view
from noetl_playbook.views.loop_parts import list_collection_items
from noetl_playbook.views.results import StoredResult

Load = Callable[[StoredResult], Any]

# Fields of a stored result that a result in its event does not have.
_OF_STORED = frozenset({"_ref", "_store", "_bytes", "_preview"})


class NeededForRender(Exception):  # noqa: N818 (a request to the caller, not an error)
    """A render needs a value that only the caller can load: load it and render again."""


class PayloadNeeded(NeededForRender):
    """A render needs a payload that is not loaded: load it and render again."""

    def __init__(self, stored: StoredResult) -> None:
        super().__init__(f"the payload {stored.locator} is not loaded")
        self.stored = stored


def refuse_to_load(stored: StoredResult) -> Any:
    """Raise `PayloadNeeded`: a loader for callers that load every payload themselves."""
    raise PayloadNeeded(stored)


class PayloadHandle(Lookup):
    """A value in the payload store; `load` returns the loaded value, or raises `PayloadNeeded`."""

    __slots__ = ("_load", "error", "stored")

    def __init__(
        self,
        stored: StoredResult,
        *,
        load: Load = refuse_to_load,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        self.stored = stored
        self.error = error_view.show_error_record(error)
        self._load = load

    def find_member(self, key: Any) -> Any:
        """Find a name in the metadata, else in the payload."""
        if key in _OF_STORED and self.stored.is_inline and key not in self.stored.fields:
            return MISSING
        metadata = self._find_in_metadata(key) if isinstance(key, str) else MISSING
        return look_up_member(self._load(self.stored), key) if metadata is MISSING else metadata

    def _find_in_metadata(self, key: str) -> Any:
        stored = self.stored
        if key in stored.fields:
            return stored.fields[key]
        if key == "_ref":
            return stored.as_mapping()
        metadata_by_name = {
            "_store": stored.store,
            "_bytes": stored.reference.payload_bytes,
            "_preview": stored.preview,
            "row_count": stored.reference.row_count,
            "columns": stored.columns,
        }
        metadata = metadata_by_name.get(key)
        return self._find_in_outline(key) if metadata is None else metadata

    def _find_in_outline(self, key: str) -> Any:
        if self._is_row_list(key):
            return RowsHandle(
                self.stored, load=lambda _: list_collection_items(self._load_settled())
            )
        if key in ("data", "context", "rows") and self.stored.reference.row_count is not None:
            return self
        if key == "error" and self.error is not None:
            return self.error
        return MISSING

    def _is_row_list(self, key: str) -> bool:
        if self.stored.reference.row_count is None:
            return False
        return key == "rows" or (self.stored.shape == "loop" and key in ("results", "data"))

    def can_lack_member(self, key: Any) -> bool:
        """Tell whether a name is one that only some results have."""
        return key == "error" or key in _OF_STORED

    def load_value(self) -> Any:
        """Return the view or value behind it; raises `PayloadNeeded`."""
        return self._load(self.stored)

    def _load_settled(self) -> Any:
        value = self.load_value()
        return value.settle_view() if isinstance(value, Lookup) else value

    def settle_view(self) -> Any:
        """Return the handle itself: a path may end here, and only a use of the value loads it."""
        return self

    def to_plain(self) -> Any:
        """Give the payload's plain form."""
        return output_forms.to_plain(self._load_settled())

    def known_names(self) -> Iterable[str]:
        """List the selected fields."""
        return self.stored.fields.keys()

    def __len__(self) -> int:
        count = self.stored.item_count
        return len(self._load_settled()) if count is None else count

    def __bool__(self) -> bool:
        count = self.stored.item_count
        return True if count is None else count > 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._load_settled())

    def __getitem__(self, key: Any) -> Any:
        return self._load_settled()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._load_settled()

    def __eq__(self, other: object) -> bool:
        return bool(self.to_plain() == output_forms.to_plain(other))

    __hash__ = None  # type: ignore[assignment]  # its value is not hashable

    def __str__(self) -> str:
        return str(self.to_plain())


class RowsHandle(PayloadHandle):
    """The list of rows or results in a payload: its length is known without loading it."""

    __slots__ = ()

    def find_member(self, key: Any) -> Any:
        """Find a row."""
        return look_up_member(self._load(self.stored), key)

    def known_names(self) -> Iterable[str]:
        """List nothing: rows have no names."""
        return ()
