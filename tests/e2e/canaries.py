"""Canary secrets: where they are put, and every place in which they must not show up afterwards."""

import asyncio
import base64
import html
import itertools
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
from tests.e2e.command_line import CommandLine
from tests.support.asking import http
from tests.support.files import read_files
from tests.support.stack import Stack

from noetl_planner.api.console import console_files
from noetl_storage.arrow import encoding

ENV = "kanarienvogel-9f27c1d0-env"
PASSWORD = "kanarienvogel-51be77aa-datenbank"  # noqa: S105 - a value for the test
REFUSED = "kanarienvogel-0d4e8c93-falsch"
BEARER = "kanarienvogel-e8a1f6b2-traeger"
AWKWARD = "kanarien\"vogel'/+&<77d0>-b3c9-sönder"
KEY = "kanarienvogel-46c2ab19-schluessel"
CLIENT = "kanarienvogel-a70f55d3-kunde"
GRANTED = "kanarienvogel-13f9e0c7-erteilt"
FETCHED = "kanarienvogel-ccd81b42-geholt"
BUCKET_KEY = "kanarienvogel-7be3902f-eimer"
BUS = "kanarienvogel-61d04fb8-bus"
SECRETS = (ENV, PASSWORD, REFUSED, BEARER, AWKWARD, KEY, CLIENT, GRANTED, FETCHED, BUCKET_KEY, BUS)
DECOY_NAME = "workload.d"
DECOY = "lockvogel-2b6c91e4-offen"
STARTED = re.compile(r"\b\d{15,}\b")

TABLES = """
SELECT c.oid::regclass::text FROM pg_class AS c
WHERE c.relnamespace = 'noetl'::regnamespace AND c.relkind = 'r' ORDER BY 1
"""


class Echo(BaseHTTPRequestHandler):
    """Repeats every request in its answer, headers and all; answers to callbacks at once.

    It also takes spans: what is exported to it is kept in `spans`.
    """

    spans: list[bytes]
    tokens: list[str]

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        if self.path == "/v1/traces":
            type(self).spans.append(content)
        heard: Any = {
            "headers": dict(self.headers),
            "body": content.decode(errors="replace"),
            "path": self.path,
        }
        status = 200
        if self.path.startswith("/token"):
            heard = {"access_token": GRANTED, "expires_in": 600}
        elif self.path.startswith("/entry"):
            heard = {"found": {"value": FETCHED}}
        elif self.path.startswith("/notify"):
            self._call_back(json.loads(content))
        elif self.path[1:4].isdigit():
            status = int(self.path[1:4])
        text = json.dumps(heard) if "html" not in self.path else html.escape(json.dumps(heard))
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if "html" in self.path else "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815 - the names that the server looks for

    def _call_back(self, submitted: Any) -> None:
        url = str(submitted["notify"])
        type(self).tokens.append(url.rpartition("/")[2])
        http.post(url, json={"done": True}, timeout=30).raise_for_status()

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


@contextmanager
def echoing() -> Iterator[tuple[str, type[Echo]]]:
    """Run an echo of its own; yields its address and what it has kept."""

    class Kept(Echo):
        """An echo with a memory of its own."""

    Kept.spans, Kept.tokens = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kept)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def keychain(echo: str) -> list[dict[str, Any]]:
    """Spell a keychain whose entries need every kind of secret."""
    shop = {"data": {"secret": "{{ keychain.env.pw }}"}, "auto_renew": True}
    named = {"pw": "CANARY_ENV"}
    return [
        {"name": "env", "kind": "secret_manager", "provider": "env", "map": named},
        {"name": "shop", "kind": "oauth2", "endpoint": echo + "/token", **shop},
        {"name": "web", "kind": "http", "url": echo + "/entry", "map": {"v": "found.value"}},
        {"name": "db", "kind": "credential", "credential": "c_pg"},
    ]


async def execute(dsn: str, *statements: str) -> None:
    """Run statements in a database."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def change_password(dsn: str, user: str, password: str) -> None:
    """Give a role another password."""
    # ALTER ROLE takes no parameters; both parts are the test's own.
    await execute(dsn, f"ALTER ROLE \"{user}\" PASSWORD '{password}'")


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


def put_credentials(
    command_line: CommandLine, stack: Stack, echo: str, *, bus: str = "nats://127.0.0.1:1"
) -> str:
    """Register a credential for every tool; return the target's address with its new password."""
    target = stack.url("target")
    parts = urlsplit(target)
    asyncio.run(change_password(target, str(parts.username), PASSWORD))
    place = f"{parts.hostname}:{parts.port}{parts.path}"
    changed = f"postgres://{parts.username}:{PASSWORD}@{place}"
    kept: list[tuple[str, str, list[str]]] = [
        ("c_pg", "postgres", [f"dsn={changed}"]),
        ("c_wrong", "postgres", [f"dsn=postgres://{parts.username}:{REFUSED}@{place}"]),
        ("c_bearer", "bearer", [f"token={BEARER}"]),
        ("c_basic", "basic", ["username=ann", f"password={AWKWARD}"]),
        ("c_key", "api_key", ["header=X-Own-Key", f"value={KEY}"]),
        ("c_oauth", "oauth2", [f"token_url={echo}/token", "client_id=me",
                               f"client_secret={CLIENT}"]),
        ("c_s3", "s3", [f"endpoint={echo}", "access_key=ann", f"secret_key={BUCKET_KEY}"]),
        ("c_bus", "nats", [f"url={bus}", "user=admin", f"password={BUS}"]),
        ("c_bus_wrong", "nats", [f"url={bus}", "user=admin", f"password={REFUSED}"]),
        ("c_bus_url", "nats", [f"url={bus.replace('//', '//admin:' + REFUSED + '@')}"]),
        ("c_bus_gone", "nats", [f"url=nats://admin:{BUS}@127.0.0.1:1"]),
    ]  # fmt: skip
    for name, kind, fields in kept:
        data = [part for field in fields for part in ("--data", field)]
        answer = command_line.type("credential", "put", name, "--type", kind, *data)
        assert answer.code == 0, answer
    return changed


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


def leaks(texts: Sequence[bytes], secrets: Sequence[str]) -> list[bytes]:
    """Return what stands around every secret that is found."""
    return [
        text[max(0, text.find(form) - 300) : text.find(form) + 60]
        for secret in secrets
        for form in spelled(secret)
        for text in texts
        if form in text
    ]


def holds_decoy(texts: Sequence[bytes]) -> bool:
    """Tell whether the decoy shows somewhere."""
    return bool(leaks(texts, [DECOY]))


def places(
    command_line: CommandLine, stack: Stack, execution_ids: Sequence[str], said: str
) -> dict[str, list[bytes]]:
    """Everything that can be read of some runs, by where it is read."""
    api = [
        f"/api/executions/{execution_id}{part}"
        for execution_id in execution_ids
        for part in ("", "/status")
    ]
    api += [f"/api/executions/{execution_id}/events" for execution_id in execution_ids]
    api += ["/api/executions", "/api/credentials", "/api/catalog", "/api/catalog/e2e/canary"]
    api += ["/api/approvals", "/metrics"]
    verbs = [
        (verb, execution_id) for execution_id in execution_ids for verb in ("events", "status")
    ]
    found = {
        "ledger, outbox and projections": [asyncio.run(dump(stack.url("postgres"))).encode()],
        "answers": [command_line.get(path).content for path in api],
        "terminal": [said.encode()],
        "ledger's log": [ledger_log(stack)],
        "verbs": [
            (a.out + a.err).encode()
            for a in (
                command_line.type(*verb) for verb in [*verbs, ("logs", "worker-1"), ("approvals",)]
            )
        ],
    }
    # A machine whose console was left out exports none.
    if console_files.has_bundle():
        dossiers = [read_dossier(command_line, execution_id) for execution_id in execution_ids]
        found["dossiers"] = list(itertools.chain.from_iterable(dossiers))
    for folder in ("nats", "payloads", "logs"):
        files = read_files(stack.folder / folder)
        # A database server's log is read apart: it repeats what a statement complains of.
        found[folder] = [unpacked(data) for file, data in files if "postgres" not in file.name]
    return found


def read_dossier(command_line: CommandLine, execution_id: str) -> list[bytes]:
    """Export a run as a page, and read that with the contents in it."""
    file = command_line.folder / f"dossier-{execution_id}.html"
    answer = command_line.type("evidence", "export", execution_id, "--html", "--output", str(file))
    assert answer.code == 0, answer
    page = file.read_bytes()
    file.unlink()
    contents = re.findall(rb'"content":"([A-Za-z0-9+/=]+)"', page)
    assert contents, "a run has payloads or logs"
    return [page, *(unpacked(base64.b64decode(content)) for content in contents)]


def unpacked(data: bytes) -> bytes:
    """Give a file's bytes as they are and, where it is packed or a table, as what it holds."""
    found = [data]
    for magic, how in ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd")):
        if data.startswith(magic):
            data = encoding.expand_bytes(data, how)  # type: ignore[arg-type]  # both names are compressions
            found.append(data)
    if data.startswith((b"PAR1", b"\xff\xff\xff\xff")):
        found.append(json.dumps(encoding.read_table(data).to_pylist(), default=str).encode())
    return b"\n".join(found)


def ledger_log(stack: Stack) -> bytes:
    """Read what the database server has logged of the ledger; a target's own log is its own."""
    database = urlsplit(stack.url("postgres")).path[1:].encode()
    logs = [data for file, data in read_files(stack.folder / "logs") if "postgres" in file.name]
    lines = [line for data in logs for line in data.splitlines()]
    return b"\n".join(line for line in lines if b"@" + database + b" " in line)


def started(err: str) -> str:
    """Find the execution's id in what `noetl run` said."""
    begun = STARTED.search(err)
    assert begun is not None, err
    return begun[0]
