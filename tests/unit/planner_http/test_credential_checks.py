"""What is no credential is refused when it is put, with what it should be."""

from typing import Any

import pytest
from tests.unit.planner_http.conftest import Api

from noetl_contracts.credentials import TYPES


async def put(api: Api, kind: str, data: dict[str, Any]) -> Any:
    return await api.post("/api/credentials", json={"name": "c", "type": kind, "data": data})


@pytest.mark.parametrize(
    ("kind", "data", "detail", "hint"),
    [
        ("postgers", {"dsn": "x"}, "'postgers' is not a type of credential", "'postgres'"),
        ("mongodb", {}, "'mongodb' is not a type of credential", "one of postgres, bearer"),
        (
            "postgres",
            {"hots": "h"},
            "unknown field 'hots' (did you mean 'host'?)",
            "host (or db_host)",
        ),
        ("postgres", {"user": "u"}, "it needs 'dsn' or 'host'", "dsn"),
        ("postgres", {"host": ""}, "it needs 'dsn' or 'host'", "dsn"),
        ("postgres", {"host": "h", "port": "5432x"}, "'port' is not a number", "port"),
        ("postgres", {"host": ["h"]}, "'host' is not a text", "host"),
        ("postgres", {"dsn": "mysql://u:s3cr3t@h/d"}, "'dsn' is not an address", "dsn"),
        *[
            ("postgres", {"dsn": f"postgresql://u:s3cr3t@h:{port}/d"}, "'dsn' is not", "dsn")
            for port in ("notaport", "99999", "0", "-1")
        ],
        ("bearer", {}, "it needs 'token'", "token"),
        ("basic", {"password": "p"}, "it needs 'username'", "username (or user)"),
        ("api_key", {"header": "X"}, "it needs 'value'", "value"),
        ("oauth2", {"token_url": "u", "client_id": "i"}, "it needs 'client_secret'", "client_id"),
        ("nats", {"user": "u"}, "it needs 'url'", "url"),
        ("s3", {"acces_key": "a"}, "did you mean 'access_key'?", "secret_key"),
    ],
)
async def test_what_is_wrong_with_a_credential_is_told(
    api: Api, kind: str, data: dict[str, Any], detail: str, hint: str
) -> None:
    answer = await put(api, kind, data)
    assert answer.status_code == 400, answer.text
    problem = answer.json()
    assert detail in problem["detail"]
    assert hint in problem["hint"]
    assert "s3cr3t" not in answer.text
    assert (await api.get("/api/credentials")).json()["credentials"] == []


async def test_every_fault_is_told_at_once(api: Api) -> None:
    answer = await put(api, "oauth2", {"tokn_url": "u", "client": "i"})
    detail = answer.json()["detail"]
    faults = ("'tokn_url' (did you mean 'token_url'?)", "'client'", "'client_secret'")
    assert all(fault in detail for fault in faults), detail


@pytest.mark.parametrize(
    ("kind", "data", "fields"),
    [
        ("postgres", {"dsn": "postgresql://u:p@h/d"}, ["dsn"]),
        ("postgres", {"url": "postgres://u:p@h/d"}, ["dsn"]),
        ("postgresql", {"host": "h", "database": "d"}, ["database", "host"]),
        (
            "postgres",
            {"db_host": "h", "db_name": "d", "db_user": "u"},
            ["db_host", "db_name", "db_user"],
        ),
        ("postgres", {"host": "h", "dbname": "d", "port": "5433"}, ["database", "host", "port"]),
        ("s3", {"access_key_id": "a", "secret_access_key": "s"}, ["access_key", "secret_key"]),
        ("basic", {"user": "u", "password": "p"}, ["password", "user"]),
        ("generic", {"anything": {"below": 1}}, ["anything"]),
    ],
)
async def test_short_forms_are_taken(
    api: Api, kind: str, data: dict[str, Any], fields: list[str]
) -> None:
    answer = await put(api, kind, data)
    assert answer.status_code == 200, answer.text
    assert answer.json()["fields"] == fields


@pytest.mark.parametrize("kind", [name for name, item in TYPES.items() if not item.is_open])
async def test_every_type_is_taken_with_what_it_needs(api: Api, kind: str) -> None:
    data = {group[-1]: "x" for group in TYPES[kind].needs}
    answer = await put(api, kind, data)
    assert answer.status_code == 200, answer.text
    assert answer.json()["type"] == kind
