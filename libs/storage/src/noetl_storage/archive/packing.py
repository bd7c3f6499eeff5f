"""How parts are packed: `parquet`, loaded with the first of them."""

from typing import TYPE_CHECKING

from noetl_storage.deferred import Deferred

if TYPE_CHECKING:
    from noetl_storage.archive import parquet
else:
    parquet = Deferred("noetl_storage.archive.parquet")

__all__ = ["parquet"]
