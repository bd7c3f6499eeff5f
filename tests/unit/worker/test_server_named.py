"""The error of a database that cannot be opened names it and its credential, never a secret."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from noetl_worker.domain import postgres_connection
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.sql.server_names import describe_server
from noetl_worker.tools.nats import connection as nats_connection
from noetl_worker.tools.postgres.postgres_pool import open_postgres_connection
from noetl_worker.tools.postgres.postgres_tool import classify_postgres_error


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken, and that nobody listens at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def a_credential(kind: str, **fields: Any) -> Credential:
    return Credential(name="main_db", kind=kind, version=1, fields=fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"dsn": "postgresql://ann:secret@db.example.org:5433/shop?sslmode=require"},
            "database 'shop' at db.example.org:5433",
        ),
        ({"dsn": "postgresql://db.example.org"}, "the server at db.example.org:5432"),
        ({"dsn": "postgresql:///shop"}, "database 'shop' at port 5432"),
        ({"dsn": "postgresql://ann:s@cret@db/shop"}, "database 'shop' at db:5432"),
        (
            {"host": "db", "database": "shop", "user": "ann", "password": "secret"},
            "database 'shop' at db:5432",
        ),
        ({"db_host": "db", "db_port": "6543"}, "the server at db:6543"),
    ],
)
def test_a_credential_names_its_server(fields: dict[str, Any], said: str) -> None:
    assert describe_server(fields) == said


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:12/secret@db:5432/shop",
        "postgresql://ann:12?secret@db:5432/shop",
        "postgresql://ann:12#secret@db:5432/shop",
        "postgresql://ann:secret/more@db/shop",
    ],
)
def test_nothing_is_told_of_an_address_whose_parts_are_in_doubt(dsn: str) -> None:
    assert describe_server({"dsn": dsn}) == ""


async def test_the_error_of_a_dead_database_names_it(closed_port: int) -> None:
    dsn = f"postgresql://ann:secret@127.0.0.1:{closed_port}/shop"
    with pytest.raises(OSError, match="Connect call failed") as caught:
        await open_postgres_connection(a_credential("postgres", dsn=dsn))
    error = classify_postgres_error(caught.value, None)
    assert error.kind == "db_connection"
    assert error.message.endswith(
        f"(database 'shop' at 127.0.0.1:{closed_port}, credential 'main_db')"
    )
    assert "secret" not in error.message


async def test_the_error_of_a_dead_nats_server_names_it(closed_port: int) -> None:
    url = f"nats://ann:secret@127.0.0.1:{closed_port}"
    with pytest.raises(ToolFailure) as caught:
        await nats_connection.open_nats_connection(a_credential("nats", url=url))
    assert f"at 127.0.0.1:{closed_port} is not reachable" in caught.value.error.message
    assert "credential 'main_db'" in caught.value.error.message
    assert "secret" not in caught.value.error.message


async def test_a_server_that_does_not_answer_is_no_end_of_the_tasks_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_connection, "CONNECT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        credential = a_credential("postgres", host="127.0.0.1", port=port, database="shop")
        with pytest.raises(ConnectionError) as caught:
            await open_postgres_connection(credential)
    error = classify_postgres_error(caught.value, None)
    assert error.kind == "db_connection"
    assert f"no answer within 0.2 s (database 'shop' at 127.0.0.1:{port}" in error.message
