"""What an input of a task says of rows of PostgreSQL; it needs no import of Spark."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_worker.spark.tables.store_access import StoreAddress


class ReadRequest(Struct, frozen=True, kw_only=True):
    """Rows of PostgreSQL: a query with values for `$1`, …, or a table, and how to share it.

    `partitions` is None for `auto`.
    """

    name: str
    query: str
    values: list[Any] = []
    table: list[str] | None = None
    column: str | None = None
    partitions: int | None = 1


def build_postgres_options(
    home: StoreAddress, *, credential: str, request: ReadRequest, snapshot: str | None = None
) -> dict[str, str]:
    """Write the options of a read: the credential is named, and opened by who uses it."""
    postgres_options = {
        "store": home.url,
        "tenant": home.tenant_id,
        "organization": home.organization_id,
        "credential": credential,
        "input": request.name,
        "request": codec.encode_text(request),
    }
    if snapshot is not None:
        postgres_options["snapshot"] = snapshot
    return postgres_options
