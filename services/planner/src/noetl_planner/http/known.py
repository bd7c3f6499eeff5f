"""Playbooks that were looked up: an entry never changes, but its path may get a later one."""

from collections import OrderedDict

from noetl_contracts.ledger import CatalogEntry

ENTRIES_MAX = 64


class Known:
    """The last entries that were found, by path and by the version that was asked for."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, int | None], CatalogEntry] = OrderedDict()

    def find(self, path: str, version: int | None) -> CatalogEntry | None:
        """Return an entry; where no version is named, what was the latest when it was looked up."""
        return self._found.get((path, version))

    def keep(self, version: int | None, entry: CatalogEntry) -> None:
        """Remember what was found for a version, or for none."""
        self._found[entry.path, version] = entry
        while len(self._found) > ENTRIES_MAX:
            self._found.popitem(last=False)
