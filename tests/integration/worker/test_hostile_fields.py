"""Fields of every tool rendered to what nobody meant: an error with a kind, never a defect."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from tests.support.calls import call_of
from tests.support.scripted import Script, says, script
from tests.support.servers import NatsServer
from tests.support.working import Bench, bench

from noetl_playbook.tools import KINDS

HOSTILE: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", " ", "x", "²", "a\x00b"),
    *("\ud800", "{{ x }}", "../..", "noetl://", "s3://b/k", "http://[", "-1s", "x" * 70_000),
    *([], [1], [None], ["x"], [[]], [{}], [{"a": []}], {}, {"a": 1}, {"a": None}, {"": {}}),
    *({"kind": "result_ref"}, {"kind": "result_ref", "sha256": 5, "bytes": "many"}, {1: 2}),
    *({"type": 5}, {"type": "postgres"}, {"type": "data", "data": 5}),
]
ROWS = {"type": "data", "data": [{"id": 1}]}
TABLE = {"type": "postgres", "table": "kept"}
SEEN = {"type": "postgres", "query": "select 1 as id"}
BASES: dict[str, list[dict[str, Any]]] = {
    "http": [{"method": "POST"}],
    "postgres": [{"query": "select $1::int", "params": [1]}],
    "python": [{"code": "result = 1"}],
    "duckdb": [{"query": "select 1"}],
    "artifact": [
        {"action": "put", "uri": "artifact://kept", "data": {"a": 1}},
        {"action": "get", "uri": "artifact://kept"},
    ],
    "transfer": [{"source": ROWS, "target": TABLE}, {"source": SEEN, "target": TABLE}],
    "shell": [{"cmds": ["true"]}],
    "nats": [
        {"operation": "kv_put", "bucket": "b", "key": "k", "value": 1},
        {"operation": "js_publish", "subject": "s", "payload": 1},
        {"operation": "js_get_msg", "stream": "S", "seq": 1},
        {"operation": "object_put", "bucket": "o", "name": "n", "data": "d"},
    ],
    "noop": [{"result": 1}],
}
AUTHS = ("postgres", "transfer", "nats")
# What stands inside of these is read as closely.
INNER = {"transfer": {"source": ROWS | SEEN, "target": TABLE | {"mode": "append", "key": ["id"]}}}


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


def spoilt(kind: str) -> Iterator[dict[str, Any]]:
    """Every field of a kind, and what stands inside, replaced by each hostile value."""
    for base in BASES[kind]:
        for field in sorted(KINDS[kind].fields):
            for value in HOSTILE:
                yield {**base, field: value}
        for field, whole in INNER.get(kind, {}).items():
            for name in whole:
                for value in HOSTILE:
                    yield {**base, field: {**base[field], name: value}}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", sorted(BASES))
async def test_no_value_of_a_field_is_a_defect(worker: Bench, server: Script, kind: str) -> None:
    defects: list[str] = []
    for fields in spoilt(kind):
        given = {"url": server.url, **fields} if kind == "http" else fields
        call = call_of(
            kind,
            given,
            auth=kind if kind in AUTHS else None,
            timeout_s=2,
        )
        try:
            outcome = await worker.tools.run(call)
        except UnicodeEncodeError:
            # The lane knows what it means, of whatever tool.
            continue
        except Exception as problem:  # noqa: BLE001 - whatever it is, a defect
            defects.append(f"{_shown(fields)}: {problem!r}")
            continue
        if outcome.error is not None and outcome.error.kind == "internal":
            defects.append(f"{_shown(fields)}: {outcome.error.message}")
    assert not defects, "\n".join(defects)


def _shown(fields: dict[str, Any]) -> str:
    return ascii(fields)[:300]
