"""What executors of this machine are told of the variables that its Spark does not see."""

from collections.abc import Callable, Iterable, Mapping

from noetl_worker import settings
from noetl_worker.spark.grants import launch_environ

Entry = Callable[[Iterable[bytes]], Iterable[bytes]]


def build_told_entry(
    entry: Entry, *, master: str, variables: Mapping[str, str] | None = None
) -> Entry:
    """Return an entry that reads its settings from variables, as executors call it.

    They are those of this process unless others are given; executors of clusters have their own.
    """
    if not master.startswith("local"):
        return entry
    if variables is None:
        variables = launch_environ.find_hidden_variables(settings.read_environ())
    return _ToldEntry(entry, variables)


class _ToldEntry:
    """An entry whose process is given some variables first."""

    def __init__(self, entry: Entry, variables: Mapping[str, str]) -> None:
        self._entry = entry
        self._variables = variables

    def __call__(self, shares: Iterable[bytes]) -> Iterable[bytes]:
        """Run the entry; no other job of Spark shares its process."""
        settings.set_variables(self._variables)
        return self._entry(shares)
