"""Running processes on PostgreSQL."""

from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("instances")


class PostgresInstances:
    """Leases node numbers and roles by the database's clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register_instance(self, *, instance: str, kind: str, lease_s: float) -> int:
        """Lease or extend a node number (0 to 1023) that no other live instance holds."""
        number: int = await self._database.get_value(_QUERIES["register"], instance, kind, lease_s)
        return number

    async def list_live_instances(self, kind: str) -> list[str]:
        """Return the live instances of a service."""
        return [
            row["instance"] for row in await self._database.fetch_rows(_QUERIES["list_live"], kind)
        ]

    async def claim_role(self, *, role: str, owner: str, lease_s: float) -> bool:
        """Take or extend the lease on a role; False while another owner holds it."""
        is_leader: bool = await self._database.get_value(_QUERIES["lead"], role, owner, lease_s)
        return is_leader
