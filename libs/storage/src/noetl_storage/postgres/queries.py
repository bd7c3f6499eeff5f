"""The queries of each table, by name."""

from noetl_storage.process.sql_statements import load_statements


def load_queries(table: str) -> dict[str, str]:
    """Read every query of one table's file."""
    return load_statements(__package__, table)
