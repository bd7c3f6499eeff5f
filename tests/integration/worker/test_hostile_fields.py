"""Fields of every tool rendered to what nobody meant: an error with a kind, never a defect."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.calls import call_of
from tests.support.hostile import defect, spoilt
from tests.support.scripted import Script, says, script
from tests.support.servers import NatsServer
from tests.support.working import Bench, bench

from noetl_playbook.model.tools import KINDS

ROWS = {"type": "data", "data": [{"id": 1}]}
TABLE = {"type": "postgres", "auth": "transfer", "table": "kept", "mode": "append", "key": ["id"]}
SEEN = {"type": "postgres", "auth": "transfer", "query": "select $1::int as id", "params": [1]}
DUCK = {"type": "duckdb", "database": "some.db", "query": "select $1", "params": [1]}
FILE = {"type": "file", "uri": "a.csv", "format": "csv"}
BASES: dict[str, list[dict[str, Any]]] = {
    "http": [{"method": "POST"}],
    "postgres": [{"query": "select $1::int", "params": [1]}],
    "python": [{"code": "result = 1"}],
    "duckdb": [{"query": "select * from i", "inputs": {"i": [{"a": 1}]}}],
    "artifact": [
        {"action": "put", "uri": "artifact://kept", "data": {"a": 1}},
        {"action": "put", "uri": "artifact://rows", "data": [{"a": 1}], "format": "csv"},
        {"action": "put", "uri": "artifact://rows", "data": [{"a": 1}], "format": "parquet"},
        {"action": "get", "uri": "artifact://kept"},
    ],
    "transfer": [
        {"source": ROWS, "target": TABLE},
        {"source": SEEN, "target": TABLE},
        {"source": DUCK, "target": TABLE},
        {"source": FILE, "target": TABLE},
        {"source": ROWS, "target": FILE},
        {"source": ROWS, "target": {"type": "duckdb", "database": "some.db", "table": "kept"}},
        {"source": ROWS, "target": {"type": "postgres", "query": "select :id::int"}},
    ],
    "shell": [{"cmds": ["true"]}],
    "nats": [
        {"operation": "kv_put", "bucket": "b", "key": "k", "value": 1},
        {"operation": "js_publish", "subject": "s", "payload": 1},
        {"operation": "js_get_msg", "stream": "S", "seq": 1},
        {"operation": "object_put", "bucket": "o", "name": "n", "data": "d"},
    ],
    "noop": [{"result": 1}],
    "container": [{"image": "a", "restart_policy": "Never"}],
}
AUTHS = ("postgres", "transfer", "nats")
# What stands inside of these is read as closely.
INNER = {"transfer": ("source", "target"), "duckdb": ("inputs",)}


@pytest.fixture
async def worker(database: str, nats: NatsServer) -> AsyncIterator[Bench]:
    connection = await asyncpg.connect(database)
    await connection.execute("create table kept(id int primary key)")
    await connection.close()
    async with bench() as found:
        await found.put_credential("postgres", {"dsn": database})
        await found.put_credential("transfer", {"dsn": database})
        await found.put_credential("nats", {"url": nats.url}, kind="nats")
        yield found


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script(says({"ok": True})) as found:
        yield found


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_brief_pauses")
@pytest.mark.parametrize(
    ("kind", "base"),
    [
        pytest.param(kind, base, id=f"{kind}-{number}")
        for kind, bases in sorted(BASES.items())
        for number, base in enumerate(bases)
    ],
)
async def test_no_value_of_a_field_is_a_defect(
    worker: Bench, server: Script, kind: str, base: dict[str, Any]
) -> None:
    defects: list[str] = []
    for fields in spoilt([base], sorted(KINDS[kind].fields), INNER.get(kind, ())):
        given = {"url": server.url, **fields} if kind == "http" else fields
        call = call_of(kind, given, auth=kind if kind in AUTHS else None, timeout_s=2)
        found = await defect(worker, call)
        if found is not None:
            defects.append(found)
    assert not defects, "\n".join(defects)
