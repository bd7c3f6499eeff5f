"""How parts are packed: `parquet`, loaded with the first of them."""

from typing import TYPE_CHECKING

from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_storage.archive import parquet
else:
    parquet = LazyModule("noetl_storage.archive.parquet")

__all__ = ["parquet"]
