"""The statements of the modules that speak to databases, by name."""

from noetl_storage.process.sql_statements import load_statements

load_queries = load_statements
