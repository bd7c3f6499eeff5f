"""Every spelling of a postgres credential is the same server."""

from typing import Any

import pytest

from noetl_worker.domain.postgres_connection import UnusableCredential
from noetl_worker.tools.duckdb.attachment import build_libpq_settings

SERVER = {"host": "h", "port": "5433", "user": "u", "password": "p@:/ w", "dbname": "d"}


@pytest.mark.parametrize(
    "fields",
    [
        {"dsn": "postgresql://u:p%40%3A%2F%20w@h:5433/d"},
        {"host": "h", "port": 5433, "user": "u", "password": "p@:/ w", "database": "d"},
        {"host": "h", "port": "5433", "username": "u", "password": "p@:/ w", "name": "d"},
        {"db_host": "h", "db_port": 5433, "db_user": "u", "db_password": "p@:/ w", "db_name": "d"},
    ],
)
def test_every_spelling_is_the_same_server(fields: dict[str, Any]) -> None:
    assert build_libpq_settings(fields) == SERVER


def test_what_an_address_asks_for_besides_is_kept() -> None:
    libpq_settings = build_libpq_settings({"dsn": "postgres://h/d?sslmode=require"})
    assert libpq_settings == {"host": "h", "port": "5432", "dbname": "d", "sslmode": "require"}


def test_an_address_that_cannot_be_read_repeats_nothing() -> None:
    with pytest.raises(UnusableCredential) as refused:
        build_libpq_settings({"dsn": "postgresql://u:s3cr3t@[h/d"})
    assert "s3cr3t" not in str(refused.value)
