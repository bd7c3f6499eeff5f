"""Canary secrets through every tool, in success and failure: afterwards they are nowhere.

A decoy, which nobody was told is a secret, takes the same ways: it is found in every place that is
searched, so each place can be found in.
"""

import asyncio
import base64
import html
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import pytest
import yaml
from tests.e2e.desk import Desk
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

ENV = "kanarienvogel-9f27c1d0-env"
PASSWORD = "kanarienvogel-51be77aa-datenbank"  # noqa: S105 - a value for the test
REFUSED = "kanarienvogel-0d4e8c93-falsch"
BEARER = "kanarienvogel-e8a1f6b2-traeger"
AWKWARD = "kanarien\"vogel'/+&<77d0>-b3c9-sönder"
KEY = "kanarienvogel-46c2ab19-schluessel"
CLIENT = "kanarienvogel-a70f55d3-kunde"
GRANTED = "kanarienvogel-13f9e0c7-erteilt"
FETCHED = "kanarienvogel-ccd81b42-geholt"
SECRETS = (ENV, PASSWORD, REFUSED, BEARER, AWKWARD, KEY, CLIENT, GRANTED, FETCHED)
DECOY_NAME = "workload.d"
DECOY = "lockvogel-2b6c91e4-offen"

TABLES = """
SELECT c.oid::regclass::text FROM pg_class AS c
WHERE c.relnamespace = 'noetl'::regnamespace AND c.relkind = 'r' ORDER BY 1
"""


class Echo(BaseHTTPRequestHandler):
    """Repeats every request in its answer, headers and all."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        heard = {"headers": dict(self.headers), "body": body, "path": self.path}
        status = 200
        if self.path.startswith("/token"):
            heard = {"access_token": GRANTED, "expires_in": 600}
        elif self.path.startswith("/entry"):
            heard = {"found": {"value": FETCHED}}
        elif self.path[1:4].isdigit():
            status = int(self.path[1:4])
        text = json.dumps(heard) if "html" not in self.path else html.escape(json.dumps(heard))
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if "html" in self.path else "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST  # noqa: N815 - the name that the server looks for

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("canary") / "stack"
    options = ("--workers", "1", "--no-s3", "--set", "WORKER_SECRET_ENV=CANARY_ENV")
    with running_stack(folder, *options, environ={"CANARY_ENV": ENV}) as running:
        yield running


def keychain(echo: str) -> list[dict[str, Any]]:
    shop = {"data": {"secret": "{{ keychain.env.pw }}"}, "auto_renew": True}
    return [
        {"name": "env", "kind": "secret_manager", "provider": "env", "map": {"pw": "CANARY_ENV"}},
        {"name": "shop", "kind": "oauth2", "endpoint": echo + "/token", **shop},
        {"name": "web", "kind": "http", "url": echo + "/entry", "map": {"v": "found.value"}},
        {"name": "db", "kind": "credential", "credential": "c_pg"},
    ]


def tasks(secret: str, echo: str) -> list[dict[str, Any]]:
    """Every tool with a secret, where it works, and where it fails quoting it."""
    use = "{{ " + secret + " }}"
    pg = {"kind": "postgres", "auth": "c_pg"}
    python = {"kind": "python", "input": {"s": use}}
    raising = "\n    raise ConnectionError({'why': s}) from problem"
    return [
        *(
            {"kind": "http", "method": "POST", "url": echo + path, "auth": auth, "json": {"s": use}}
            for path in ("/200", "/500", "/401/html")
            for auth in ("c_bearer", "c_basic", "c_key", "c_oauth", "shop")
        ),
        {"kind": "http", "url": echo, "auth": {"type": "bearer", "token": "{{ keychain.web.v }}"}},
        {"kind": "http", "url": echo + "/404?k=" + use, "headers": {"X-Own": use}},
        {"kind": "http", "url": "http://127.0.0.1:1/?k=" + use},
        {"kind": "http", "url": "ftp://" + use},
        {"kind": "http", "url": echo, "auth": use},
        {**pg, "query": "select 1 as one"},
        {**pg, "query": "select $1::text as s, 1 / 0", "params": [use]},
        {**pg, "query": f"select cast('{use}' as text) as s"},
        {**pg, "auth": "c_wrong", "query": "select 1"},
        {**python, "code": "print('printed', s)\nresult = {'s': s, 'more': [s]}"},
        {**python, "code": "import logging\nlogging.warning('logged %s', s)\nraise ValueError(s)"},
        {**python, "code": f"try:\n    raise KeyError(s)\nexcept KeyError as problem:{raising}"},
        {**python, "code": "result = base64.b64encode(b'user:' + s.encode()).decode()"},
        {**python, "code": "result = [json.dumps({'a': s}), s] * 2000"},
        {**python, "code": f"x = '{use}'\nraise RuntimeError(x * 3)"},
        {"kind": "python", "input": {"s": use}, "code": "import os\nos._exit(3)"},
        {"kind": "noop", "result": {"s": use, "t": "a " + use}},
        {"kind": "noop", "result": "{{ " + secret + " | int }}"},
        {"kind": "noop", "result": "{{ (" + secret + ").gone }}"},
        {"kind": "noop", "set": {"ctx.kept": use, "v": use, "ctx.again": ["x " + use]}},
        {**python, "input": {"s": "{{ ctx.kept }}"}, "code": "print(s)\nresult = len(s)"},
    ]  # fmt: skip


def secret_uses(secret: str) -> list[dict[str, Any]]:
    """Uses by which a worker learns that a value is a secret."""
    dsn = "postgres://a:{{ " + secret + " }}@127.0.0.1:1/x"
    sealed = "{{ " + secret + " | encrypt_secret }}"
    return [
        {"kind": "postgres", "auth": {"type": "postgres", "dsn": dsn}, "query": "select 1"},
        {"kind": "noop", "set": {"ctx.sealed": sealed}},
        {"kind": "noop", "result": sealed},
    ]


def playbook(secret: str, echo: str) -> str:
    used = tasks(secret, echo) + (secret_uses(secret) if secret != DECOY_NAME else [])
    found = [
        {"name": f"t{index}", **task, "spec": {"policy": {"on_unmatched": "continue"}}}
        for index, task in enumerate(used)
    ]
    last = "failed with {{ " + secret + " }}"
    rules = [{"else": {"then": {"do": "fail", "message": last}}}]
    each = {"in": [1, 2], "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 2}}
    echoed = {"kind": "http", "url": echo + "/500", "headers": {"X": "{{ " + secret + " }}"}}
    steps = [
        {"step": "start", "tool": found, "next": {"arcs": [{"step": "each"}]}},
        {"step": "each", "loop": each, "tool": echoed, "next": {"arcs": [
            {"step": "last", "when": "{{ event.name == 'call.error' }}"}]}},
        {"step": "last", "tool": {"kind": "noop", "spec": {"policy": {"rules": rules}}}},
    ]  # fmt: skip
    return yaml.safe_dump({"keychain": keychain(echo), "workload": {"d": DECOY}, "workflow": steps})


async def change_password(dsn: str, user: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        # ALTER ROLE takes no parameters; both parts are this test's own.
        await connection.execute(f"ALTER ROLE \"{user}\" PASSWORD '{PASSWORD}'")
    finally:
        await connection.close()


async def dump(dsn: str) -> str:
    """Write out every row of every table of the service's schema."""
    connection = await asyncpg.connect(dsn)
    try:
        texts = []
        for (table,) in await connection.fetch(TABLES):
            rows = await connection.fetch(f"SELECT one::text FROM {table} AS one")  # noqa: S608 - a name from the catalogue
            texts += [row[0] for row in rows]
    finally:
        await connection.close()
    return "\n".join(texts)


def put_credentials(desk: Desk, stack: Stack, echo: str) -> None:
    target = stack.url("target")
    parts = urlsplit(target)
    asyncio.run(change_password(target, str(parts.username)))
    place = f"{parts.hostname}:{parts.port}{parts.path}"
    kept: list[tuple[str, str, list[str]]] = [
        ("c_pg", "postgres", [f"dsn=postgres://{parts.username}:{PASSWORD}@{place}"]),
        ("c_wrong", "postgres", [f"dsn=postgres://{parts.username}:{REFUSED}@{place}"]),
        ("c_bearer", "bearer", [f"token={BEARER}"]),
        ("c_basic", "basic", ["username=ann", f"password={AWKWARD}"]),
        ("c_key", "api_key", ["header=X-Own-Key", f"value={KEY}"]),
        ("c_oauth", "oauth2", [f"token_url={echo}/token", "client_id=me",
                               f"client_secret={CLIENT}"]),
    ]  # fmt: skip
    for name, kind, fields in kept:
        data = [part for field in fields for part in ("--data", field)]
        answer = desk.type("credential", "put", name, "--type", kind, *data)
        assert answer.code == 0, answer


def spelled(secret: str) -> set[bytes]:
    """The forms in which a secret would show."""
    forms = {
        secret,
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        html.escape(secret),
        base64.b64encode(secret.encode()).decode().rstrip("=")[:-1],
        base64.b64encode(b"ann:" + secret.encode()).decode()[8:-4],
        base64.b64encode(b"user:" + secret.encode()).decode()[8:-4],
    }
    return {form.encode() for form in forms}


def places(desk: Desk, stack: Stack, execution_id: str, said: str) -> dict[str, list[bytes]]:
    """Everything that can be read of a run, by where it is read."""
    api = [f"/api/executions/{execution_id}{part}" for part in ("", "/status", "/events")]
    api += ["/api/executions", "/api/credentials", "/api/catalog", "/api/catalog/e2e/canary"]
    verbs = (("events", execution_id), ("status", execution_id), ("logs", "worker-1"))
    found = {
        "ledger, outbox and projections": [asyncio.run(dump(stack.url("postgres"))).encode()],
        "answers": [desk.get(path).content for path in api],
        "terminal": [said.encode()],
        "verbs": [(a.out + a.err).encode() for a in (desk.type(*verb) for verb in verbs)],
    }
    for folder in ("nats", "payloads", "logs"):
        files = [file for file in (stack.folder / folder).rglob("*") if file.is_file()]
        # A database server's log is its own: it repeats the statements that it refuses.
        found[folder] = [file.read_bytes() for file in files if "postgres" not in file.name]
    return found


def run(desk: Desk, secret: str, echo: str) -> tuple[str, str]:
    answer = desk.type("run", desk.write("canary", playbook(secret, echo)))
    assert answer.code == 1, answer
    begun = re.search(r"\b\d{15,}\b", answer.err)
    assert begun is not None, answer
    execution_id = begun[0]
    desk.wait_for(execution_id, "FAILED")
    return execution_id, answer.out + answer.err


def test_canaries_are_nowhere_and_a_decoy_is_everywhere(
    house: Stack, echo: str, tmp_path: Path
) -> None:
    desk = Desk(house, tmp_path)
    put_credentials(desk, house, echo)
    execution_id, said = run(desk, "keychain.env.pw", echo)
    assert "failed with ***" in said
    for place, texts in places(desk, house, execution_id, said).items():
        for secret in SECRETS:
            leaks = [
                text[max(0, text.find(form) - 300) : text.find(form) + 60]
                for text in texts
                for form in spelled(secret)
                if form in text
            ]
            assert leaks == [], (place, secret)
    execution_id, said = run(desk, DECOY_NAME, echo)
    searched = places(desk, house, execution_id, said)
    assert f"failed with {DECOY}" in said
    hidden = [where for where, texts in searched.items() if not any(_holds(t) for t in texts)]
    assert hidden == []


def _holds(text: bytes) -> bool:
    return any(form in text for form in spelled(DECOY))
