# ruff: noqa: E501, S608 - a playbook reads best with one task to a line
"""Canary secrets through every other tool, loop and wait: afterwards they are nowhere.

Data that a task sends to a place of its author's choice (a table, a bucket, a file of the work
folder) is that place's own; here such data holds no secret, so those places are searched too.
"""

import asyncio
import itertools
import json
import secrets as random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats as client
import pytest
import yaml
from msgspec import Struct
from tests.e2e import canaries
from tests.e2e.canaries import BUS, ENV, SECRETS, Echo
from tests.e2e.command_line import CommandLine
from tests.support.files import read_files
from tests.support.servers import NatsServer, wait_until
from tests.support.stack import Stack, running_stack

from noetl_cli.stack.processes import loopback
from noetl_cli.stack.servers import nats

PATIENCE_S = 150.0
STEPS = 11
WAITS = 5
pytestmark = pytest.mark.timeout(600)

QUEUE = (
    "DROP TABLE IF EXISTS canary_queue, canary_done",
    "CREATE TABLE canary_queue (id bigint, lane text, state text)",
    "CREATE TABLE canary_done (id bigint)",
    "INSERT INTO canary_queue SELECT n, 'plain', 'new' FROM generate_series(1, 6) AS n",
    "INSERT INTO canary_queue SELECT n, 'once', 'new' FROM generate_series(1, 6) AS n",
)
CHILD = """\
workload: {s: ""}
workflow:
  - step: start
    tool: {kind: python, input: {s: "{{ workload.s }}"}, code: "print(s)\\nresult = {'length': len(s), 's': s}"}
    next: {arcs: [{step: broken, when: "{{ workload.fails }}"}]}
  - {step: broken, tool: {kind: python, input: {s: "{{ workload.s }}"}, code: "raise ValueError(s)"}}
"""


class House(Struct, frozen=True, kw_only=True):
    """A stack, the echo that its tasks and spans go to, and where its tasks keep files."""

    stack: Stack
    echo: str
    heard: type[Echo]
    bus: str
    work: Path


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("bus")
    chosen = loopback.choose_ports(["nats"], before={})
    passwords = {user: random.token_urlsafe(12) for user in nats.USERS} | {"admin": BUS}
    described = nats.describe_nats(
        home=folder,
        port=chosen["nats"],
        password_by_user=passwords,
    )
    nats.prepare_nats(described)
    server = NatsServer(described, home=folder)
    try:
        server.start()
        asyncio.run(make_bucket(server.url))
        yield f"nats://127.0.0.1:{server.port}"
    finally:
        server.kill()


async def make_bucket(url: str) -> None:
    connection = await client.connect(url)
    await connection.jetstream().create_key_value(bucket="canary")
    await connection.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, bus: str) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("everywhere")
    work = folder / "work"
    with canaries.echoing() as (echo, heard):
        options = (
            *("--workers", "1", "--no-s3"),
            *("--set", "WORKER_SECRET_ENV=CANARY_ENV"),
            *("--set", "WORKER_SHELL_ALLOWED=true"),
            *("--set", f"WORKER_WORK_DIRECTORY={work}"),
            *("--set", f"WORKER_OTLP_ENDPOINT={echo}"),
            *("--set", f"PLANNER_OTLP_ENDPOINT={echo}"),
        )
        environ = {"CANARY_ENV": ENV, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        with running_stack(folder / "stack", *options, environ=environ) as stack:
            yield House(stack=stack, echo=echo, heard=heard, bus=bus, work=work)


def tasks(use: str, echo: str) -> list[dict[str, Any]]:
    """Every tool that the other test leaves out, where it works, and where it fails quoting."""
    duck = {"kind": "duckdb", "database": ":memory:"}
    rows = [{"s": use, "n": 1}]
    put = {"kind": "artifact", "action": "put"}
    moved = {"kind": "transfer", "target": {"type": "file", "uri": "moved.json"}}
    lost = {"kind": "transfer", "target": {"type": "postgres", "auth": "c_pg", "table": "no_such"}}
    bus = {"kind": "nats", "auth": "c_bus", "bucket": "canary", "key": "k"}
    call = {"kind": "http", "url": echo + "/200", "headers": {"X": use}}
    quoting = f"select cast('{use}' as integer)"
    return [
        {**duck, "query": "select ? as s", "params": [use]},
        {**duck, "query": f"select error('{use}')"},
        {**duck, "query": quoting},
        {**duck, "inputs": {"p": {"auth": "c_pg", "query": f"select '{use}' as s"}}, "query": "select * from p"},
        {**duck, "inputs": {"p": {"auth": "c_pg", "query": quoting}}, "query": "select * from p"},
        {**duck, "inputs": {"p": {"auth": "c_wrong", "query": "select 1"}}, "query": "select * from p"},
        {**duck, "inputs": {"p": rows}, "query": "select s || '!' as t from p", "output": {"format": "parquet", "inline_max_bytes": 0}},
        {**duck, "auth": {"pg": {"credential": "c_pg"}}, "query": "select * from pg.public.no_such"},
        {"kind": "duckdb", "query": "create or replace table kept as select 1 as one; select * from kept"},
        {**moved, "source": {"type": "http", "url": echo + "/200", "auth": "c_bearer", "data_path": "path"}},
        {**moved, "source": {"type": "http", "url": echo + "/500?k=" + use, "auth": "c_bearer"}},
        {**moved, "source": {"type": "http", "url": echo + "/200", "auth": "c_key", "data_path": "no.such"}},
        {**moved, "source": {"type": "postgres", "auth": "c_pg", "query": "select 1 as one"}},
        {**moved, "source": {"type": "postgres", "auth": "c_pg", "query": quoting}},
        {**moved, "source": {"type": "postgres", "auth": "c_wrong", "query": "select 1"}},
        {**lost, "source": {"type": "data", "data": rows}},
        {**put, "data": use},
        {**put, "data": rows, "format": "json", "compress": "gzip"},
        {**put, "data": rows, "format": "parquet"},
        {**put, "data": rows, "format": "arrow", "compress": "zstd"},
        {**put, "data": rows, "format": "csv", "uri": "artifact://canary/one"},
        {"kind": "artifact", "action": "get", "uri": "artifact://canary/one"},
        {**put, "data": [1], "uri": "s3://canary/key", "credential": "c_s3"},
        {**put, "data": [1], "uri": "s3://403/" + use, "credential": "c_s3"},
        {"kind": "artifact", "action": "get", "uri": "s3://canary/key", "credential": "c_s3"},
        {"kind": "artifact", "action": "get", "uri": echo + "/200", "auth": "c_bearer"},
        {"kind": "artifact", "action": "get", "uri": echo + "/404?k=" + use, "auth": "c_basic"},
        {"kind": "artifact", "action": "get", "uri": "artifact://" + use},
        {"kind": "shell", "env": {"S": use}, "cmds": ["echo $S", "echo no $S >&2; exit 3"]},
        {"kind": "shell", "cmds": f"echo '{use}' | rev | rev", "stdin": use},
        {"kind": "shell", "cmds": "cat; cat >&2", "stdin": use},
        {"kind": "credential_test", "auth": "c_pg"},
        {"kind": "credential_test", "auth": "c_wrong"},
        {"kind": "credential_test", "auth": "c_bearer", "url": echo + "/200"},
        {"kind": "credential_test", "auth": "c_bearer", "url": echo + "/403?k=" + use},
        {"kind": "credential_test", "auth": "c_s3", "url": "s3://403"},
        {"kind": "credential_test", "auth": "c_bus"},
        {"kind": "credential_test", "auth": "c_bus_wrong"},
        {**bus, "operation": "kv_put", "value": {"s": use}},
        {**bus, "operation": "kv_get"},
        {**bus, "operation": "kv_get", "key": "no." + use},
        {**bus, "operation": "js_publish", "subject": "no.such." + use, "payload": use},
        {**bus, "operation": "kv_get", "auth": "c_bus_wrong"},
        {**bus, "operation": "kv_get", "auth": "c_bus_url"},
        {**bus, "operation": "kv_get", "auth": "c_bus_gone"},
        {**bus, "operation": "kv_get", "auth": {"type": "nats", "url": f"nats://admin:{use}@127.0.0.1:1"}},
        {**call, "url": echo + "/500", "spec": {"policy": {"on_unmatched": "continue", "rules": [
            {"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "delay": 0, "set": {"iter.seen": use}}},
            {"when": "{{ output.status == 'error' }}", "then": {"do": "continue"}}]}}},
    ]  # fmt: skip


def waits(use: str, echo: str) -> list[dict[str, Any]]:
    """A pipeline that parks again and again, with a secret in hand."""
    keep = {"v": use, "iter.i": ["x " + use], "ctx.kept": use}
    submit = {
        "kind": "http",
        "method": "POST",
        "url": echo + "/notify",
        "json": {"notify": "{{ callback.url }}", "s": use, "t": "{{ callback.token }}"},
    }
    refused = {**submit, "url": echo + "/403"}
    child = {"kind": "playbook", "path": "e2e/child", "return_step": "start"}
    say = {"kind": "python", "input": {"v": "{{ v }}", "i": "{{ iter.i }}", "k": "{{ ctx.kept }}"}}
    asked = {
        "kind": "external",
        "mode": "approval",
        "title": "May " + use,
        "timeout": 1,
        "on_timeout": "continue",
        "assignees": ["ops"],
    }
    return [
        {"kind": "noop", "result": {"s": use}, "set": keep},
        {"kind": "external", "submit": submit, "input": {"s": use}, "timeout": 60},
        {**say, "code": "print(v, i, k)\nresult = {'v': v, 'lengths': [len(v), len(i[0]) - 2, len(k)]}"},
        {"kind": "external", "submit": refused, "timeout": 60},
        {"kind": "external", "submit": {"kind": "noop", "result": use}, "timeout": 1, "cancel": refused},
        {"kind": "external", "mode": "signal", "correlation_key": "key " + use, "timeout": 1},
        asked,
        {**child, "input": {"s": use, "fails": False}},
        {**child, "input": {"s": use, "fails": True}},
        {**child, "path": "e2e/" + use, "input": {"s": use}},
        {**say, "code": "raise ValueError(v + k)"},
    ]  # fmt: skip


def loops(use: str, echo: str) -> list[dict[str, Any]]:
    """Every kind of loop, each with secrets in its source, its items or its body."""
    call = {"kind": "http", "url": echo + "/500", "headers": {"X": use}, "auth": "c_bearer"}
    fails = {
        "kind": "python",
        "input": {"s": use},
        "code": "print(s)\nraise ValueError(s)",
    }
    passes = {**fails, "code": "print(s)\nresult = {'s': s, 'more': [s] * 3}"}
    claim = (
        "UPDATE canary_queue SET state = 'taken' WHERE (id, lane) IN (SELECT id, lane FROM canary_queue"
        " WHERE state = 'new' AND lane = 'LANE' ORDER BY id LIMIT {{ __frame_max_rows | int }}"
        f" FOR UPDATE SKIP LOCKED) AND $1 <> '' RETURNING id, '{use}' AS s, $1 AS t"
    )
    cursor = {"kind": "postgres", "auth": "c_pg", "params": [use]}
    bad = {**cursor, "params": None, "claim": f"SELECT cast('{use}' AS integer) AS id"}
    some = {"in": [1, 2, 3], "iterator": "n"}
    frame = {"max_rows": 2, "process": "row"}
    done = {"kind": "postgres", "auth": "c_pg"}
    insert = {**done, "query": "INSERT INTO canary_done VALUES ({{ iter.job.id }})"}
    return [
        {"step": "items", "loop": {**some, "spec": {"mode": "parallel"}}, "tool": passes},
        {"step": "chunks", "loop": {**some, "spec": {"mode": "chunked", "chunk_size": 2}}, "tool": call},
        {"step": "whole", "loop": {**some, "spec": {"mode": "chunked", "chunk_size": 2, "frame": {"process": "frame"}}}, "tool": fails},
        {"step": "shards", "loop": {**some, "spec": {"mode": "fanout", "fanout": {"max_shard_retries": 1}}}, "tool": passes},
        {"step": "sum", "reduce": {"from": "shards", "spec": {"accept_partial": True}}, "tool": fails},
        {"step": "rows", "loop": {"cursor": {**cursor, "claim": claim.replace("LANE", "plain")}, "iterator": "job",
         "spec": {"mode": "cursor", "collect": "all", "frame": frame}}, "tool": [{"name": "say", **passes}, {"name": "fail", **fails}]},
        {"step": "once", "loop": {"cursor": {**cursor, "claim": claim.replace("LANE", "once")}, "iterator": "job",
         "spec": {"mode": "cursor", "collect": "all", "frame": {**frame, "transaction": True}}},
         "tool": [{"name": "keep", **insert}, {"name": "show", **done, "query": f"SELECT '{use}' AS s, {{{{ iter.job.id }}}} / ({{{{ iter.job.id }}}} - 3)"}]},
        {"step": "nothing", "loop": {"cursor": bad, "iterator": "job", "spec": {"mode": "cursor"}}, "tool": passes},
        {"step": "table", "tool": {**passes, "code": "result = {'columns': ['s', 'n'], 'rows': [[s, i] for i in range(50)]}"},
         "output": {"format": "parquet", "inline_max_bytes": 0, "store": {"compression": "zstd"}}},
    ]  # fmt: skip


def playbook(secret: str, echo: str) -> str:
    use = "{{ " + secret + " }}"

    def named(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lenient = {"policy": {"on_unmatched": "continue"}}
        return [{"name": f"t{i}", "spec": lenient, **task} for i, task in enumerate(found)]

    steps = [
        {"step": "start", "tool": named(tasks(use, echo))},
        {"step": "wait", "tool": named(waits(use, echo))},
        *loops(use, echo),
    ]
    for before, after in itertools.pairwise(steps):
        before["next"] = {
            "spec": {"mode": "exclusive"},
            "arcs": [{"step": after["step"], "on": name} for name in ("call.done", "call.error")],
        }
    return yaml.safe_dump({
        "keychain": canaries.keychain(echo), "workflow": steps,
    })  # fmt: skip


CANCELLED = """\
keychain: KEYCHAIN
workflow:
  - step: begin
    next: {spec: {mode: inclusive}, arcs: [{step: sleep}, {step: hold}, {step: each}]}
  - {step: sleep, tool: {kind: shell, env: {S: "USE"}, cmds: "echo $S; sleep 100"}}
  - {step: hold, tool: {kind: external, submit: {kind: noop, result: "USE"}, input: {s: "USE"}, cancel: {kind: http, url: "ECHO/500", headers: {X: "USE"}}}}
  - {step: each, loop: {in: [1, 2], iterator: n, spec: {mode: parallel}}, tool: {kind: python, input: {s: "USE"}, code: "import asyncio\\nprint(s)\\nawait asyncio.sleep(100)"}}
"""


def run(command_line: CommandLine, house: House, secret: str, target: str) -> tuple[list[str], str]:
    """Run everything once, and once something that is cancelled in the middle."""
    asyncio.run(canaries.execute(target, *QUEUE))
    child = command_line.write("child", CHILD)
    everything = command_line.begin(
        command_line.write("canary", playbook(secret, house.echo)), "--with", child, "--register"
    )
    ended = {"COMPLETED", "FAILED"}
    wait_until(
        lambda: command_line.status(everything)["status"] in ended,
        timeout_s=PATIENCE_S,
        what="everything has been tried",
    )
    answer = command_line.type("run", "--attach", everything)
    body = CANCELLED.replace("USE", "{{ " + secret + " }}").replace("ECHO", house.echo)
    body = body.replace("KEYCHAIN", json.dumps(canaries.keychain(house.echo)))
    halted = command_line.begin(command_line.write("halted", body))
    command_line.wait_for_event(halted, "command.parked")
    command_line.wait_for_event(halted, "command.started", 5)
    assert command_line.type("cancel", halted).code == 0
    command_line.wait_for(halted, "CANCELLED")
    return [everything, halted], answer.out + answer.err


def searched(
    command_line: CommandLine, house: House, runs: list[str], said: str
) -> dict[str, list[bytes]]:
    """Everything that can be read, the work folder and the exported spans among it."""
    found = canaries.places(command_line, house.stack, runs, said)
    found["work folder"] = [canaries.unpacked(data) for _, data in read_files(house.work)]
    found["spans"] = list(house.heard.spans)
    return found


def assert_nothing_was_skipped(command_line: CommandLine, execution_id: str) -> None:
    """Every step has run to its own end, and each wait was waited for."""
    events = command_line.events(execution_id)
    kinds = [str(event["event_type"]) for event in events]
    assert kinds.count("step.exit") == STEPS
    assert {"loop.done", "loop.failed", "frame.committed", "frame.failed"} <= set(kinds)
    assert kinds.count("command.resumed") >= WAITS
    assert kinds.count("child.started") >= 2
    done = {event["node_name"] for event in events if event["event_type"] == "call.done"}
    assert {"start", "wait", "table"} <= done


def test_canaries_are_nowhere_after_loops_waits_and_cancellation(
    house: House, tmp_path: Path
) -> None:
    command_line = CommandLine(house.stack, tmp_path)
    target = canaries.put_credentials(command_line, house.stack, house.echo, bus=house.bus)
    runs, outcome = run(command_line, house, "keychain.env.pw", target)
    secrets = [*SECRETS, *house.heard.tokens]
    everything = searched(command_line, house, runs, outcome)
    found = {place: canaries.leaks(texts, secrets) for place, texts in everything.items()}
    assert {place: leaks for place, leaks in found.items() if leaks} == {}
    # What is searched is there at all.
    assert [place for place, texts in everything.items() if not texts] == []
    assert house.heard.tokens, "the echo was called with a token"
    assert any(runs[0].encode() in span for span in house.heard.spans)
    assert_nothing_was_skipped(command_line, runs[0])
