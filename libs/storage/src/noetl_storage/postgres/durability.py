"""The settings of the ledger's server, as this connection sees them."""

from collections.abc import Iterable

from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("durability")
# The command line asks with a client of its own, where no service runs.
SETTINGS_QUERY = _QUERIES["settings"]


class PostgresDurability:
    """Asks the server for its settings."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_settings(self) -> dict[str, str]:
        """Return the values by the names of the settings, and the server's version."""
        rows = await self._database.fetch_rows(SETTINGS_QUERY)
        return parse_settings(row["setting"] for row in rows)


def parse_settings(lines: Iterable[str]) -> dict[str, str]:
    """Read lines of `name=value`."""
    return dict(line.split("=", 1) for line in lines if "=" in line)
