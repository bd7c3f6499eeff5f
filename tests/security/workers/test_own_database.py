"""Two tenants in two databases of one PostgreSQL, and two accounts of one NATS: nothing crosses."""

import asyncio
import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from msgspec import Struct
from nats.aio.client import Client
from nats.js.api import RawStreamMsg
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError
from tests.e2e.command_line import CommandLine
from tests.support.asking import read_owner_headers
from tests.support.servers import (
    NatsServer,
    PostgresServer,
    nats_server,
    postgres_server,
    wait_until,
)
from tests.support.stack import Stack, running_stack

from noetl_cli.stack.processes import programs
from noetl_cli.stack.servers import roles
from noetl_contracts import codec, ids, subjects
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import FactBatch
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.dead_letters import REASON_HEADER
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message

SHARED, ACME = TenantId("default"), TenantId("acme")
OPS = OrganizationId("default")
SHARED_DATABASE, ACME_DATABASE = "noetl_shared", "noetl_acme"
PATIENCE_S = 120.0
PLAYBOOK = """\
workload: {word: none}
workflow:
  - step: say
    tool: {kind: noop, result: {word: "{{ workload.word }}", long: "{{ workload.word * 400 }}"}}
    set: {ctx.word: "{{ workload.word }}"}
"""
SERVICES = ("owner", "planner", "projector", "outbox", "reaper", "archivist", "reader")
_OWNERS = """
select format('%I.%I', c.table_schema, c.table_name) as name
from information_schema.columns as c
inner join information_schema.tables as t using (table_schema, table_name)
where c.table_schema = 'noetl' and c.column_name = 'tenant_id' and t.table_type = 'BASE TABLE'
"""


class Side(Struct, frozen=True, kw_only=True):
    """One installation: what its tenant's people and its operator have."""

    stack: Stack
    command_line: CommandLine
    tenant: TenantId
    dsn: str
    nats_url: str
    word: str

    @property
    def url(self) -> str:
        return self.stack.url("api")

    @property
    def headers(self) -> dict[str, str]:
        return read_owner_headers(self.stack.folder)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=60, **options)

    def dump(self) -> str:
        """All rows of its database as text, bytes in hexadecimal."""
        program = programs.find_postgres_tree() / "bin" / "pg_dump"
        done = subprocess.run(  # noqa: S603 - the server's own program
            [str(program), "--data-only", "--dbname", self.dsn],
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={"PATH": os.defpath},
        )
        return done.stdout


class StoredMessage(Struct, frozen=True, kw_only=True):
    """A message of a stream, and why it was buried."""

    subject: str
    data: bytes
    reason: str


class Pair(Struct, frozen=True, kw_only=True):
    """The shared installation and the tenant's own, on the same servers."""

    shared: Side
    own: Side
    postgres: PostgresServer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with (
        postgres_server(folder, is_durable=True) as postgres,
        nats_server(folder) as server,
    ):
        account_url = add_account(server)
        own_servers = ("--postgres", postgres.admin_dsn(ACME_DATABASE), "--nats", account_url)
        own_options = (*own_servers, "--no-s3", "--only-tenant", ACME)
        asyncio.run(postgres.create_database(SHARED_DATABASE))
        with running_stack(folder / "own", *own_options) as own:
            elsewhere = f"PLANNER_TENANTS_ELSEWHERE={ACME}={own.url('api')}"
            servers = ("--postgres", postgres.admin_dsn(SHARED_DATABASE), "--nats", server.url)
            with running_stack(
                folder / "shared", *servers, "--no-s3", "--set", elsewhere
            ) as shared:
                yield Pair(
                    shared=run_word(shared, folder, SHARED, postgres, server.url),
                    own=run_word(own, folder, ACME, postgres, account_url),
                    postgres=postgres,
                )


def add_account(server: NatsServer) -> str:
    """Give the tenant an account of its own beside that of the services; return its address."""
    password = secrets.token_urlsafe(12)
    file = server.server.directory / "nats.conf"
    text = file.read_text()
    match = re.search(r"^authorization \{\n(.*?)^\}\naccounts \{\n", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    users = f'users: [ {{ user: acme, password: "{password}" }} ]'
    accounts = (
        "accounts {\n"
        f"  SHARED: {{ jetstream: enabled\n{match[1]} }}\n"
        f"  ACME: {{ jetstream: enabled, {users} }}\n"
    )
    file.write_text(text.replace(match[0], accounts))
    server.restart()
    return f"nats://acme:{password}@127.0.0.1:{server.port}"


def run_word(
    stack: Stack, folder: Path, tenant: TenantId, postgres: PostgresServer, nats_url: str
) -> Side:
    """Run a playbook over a word that nobody else knows."""
    word = f"{tenant}word{secrets.token_hex(8)}"
    person = folder / f"person-{tenant}"
    person.mkdir()
    command_line = CommandLine(stack, person)
    database = ACME_DATABASE if tenant == ACME else SHARED_DATABASE
    execution_id = command_line.begin(
        command_line.write(f"say-{tenant}", PLAYBOOK), "--set", f"word={word}"
    )
    command_line.wait_for(execution_id, "COMPLETED")
    return Side(
        stack=stack,
        command_line=command_line,
        tenant=tenant,
        dsn=postgres.admin_dsn(database),
        nats_url=nats_url,
        word=word,
    )


async def list_owners(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    try:
        names = [row["name"] for row in await connection.fetch(_OWNERS)]
        assert len(names) > 10
        # The row of the role that reads `default` is made with the schema.
        found = [
            await connection.fetch(f"select distinct tenant_id from {name}")  # noqa: S608 - names of the schema
            for name in names
            if name != "noetl.tenant_role"
        ]
    finally:
        await connection.close()
    return {row["tenant_id"] for rows in found for row in rows}


async def read_streams(url: str, *names: str) -> list[StoredMessage]:
    """Read every message of every stream of an account, or of those that are named."""
    client = Client()
    await client.connect(url, inbox_prefix="_INBOX_admin", allow_reconnect=False)
    found: list[StoredMessage] = []
    try:
        jetstream = client.jetstream()
        for name in names or [spec.name for spec in topology.STREAMS]:
            state = (await jetstream.stream_info(name)).state
            for place in range(state.first_seq, state.last_seq + 1) if state.messages else ():
                message = await find_message(jetstream, name, place)
                if message is not None:
                    reason = (message.headers or {}).get(REASON_HEADER, "")
                    found.append(
                        StoredMessage(
                            subject=message.subject or "", data=message.data or b"", reason=reason
                        )
                    )
    finally:
        await client.close()
    return found


async def find_message(jetstream: JetStreamContext, name: str, place: int) -> RawStreamMsg | None:
    """Read one message; None where it is taken from its queue by now."""
    try:
        return await jetstream.get_msg(name, place)
    except NotFoundError:
        return None


def test_no_row_message_or_payload_of_one_tenant_is_at_the_other(pair: Pair) -> None:
    for side, other in ((pair.own, pair.shared), (pair.shared, pair.own)):
        assert asyncio.run(list_owners(side.dsn)) == {side.tenant}
        rows = side.dump()
        # The word is found where it belongs: so it would be found where it does not.
        spellings = {word: (word, word.encode().hex()) for word in (side.word, other.word)}
        assert any(spelling in rows for spelling in spellings[side.word])
        assert not any(spelling in rows for spelling in spellings[other.word])
        messages = asyncio.run(read_streams(side.nats_url))
        assert any(f".{side.tenant}." in message.subject for message in messages)
        assert not any(f".{other.tenant}." in message.subject for message in messages)
        assert any(side.word.encode() in message.data for message in messages)
        assert not any(other.word.encode() in message.data for message in messages)
        files = [file for file in (side.stack.folder / "payloads").rglob("*") if file.is_file()]
        assert files
        assert not any(
            f"/tenant/{other.tenant}/" in str(file) or other.word.encode() in file.read_bytes()
            for file in files
        )


@pytest.mark.parametrize("service", SERVICES)
async def test_no_role_of_one_database_connects_to_the_other(pair: Pair, service: str) -> None:
    places = (
        (pair.shared, f"noetl_{service}", SHARED_DATABASE, ACME_DATABASE),
        (pair.own, f"noetl_{service}_{ACME}", ACME_DATABASE, SHARED_DATABASE),
    )
    for side, role, database, others in places:
        keyring = json.loads((side.stack.folder / "secrets.json").read_text())
        password = keyring["postgres_by_role"][f"noetl_{service}"]

        def build_dsn(name: str, role: str = role, password: str = password) -> str:
            return roles.build_role_dsn(
                pair.postgres.admin_dsn(), role=role, password=password, database=name
            )

        connection = await asyncpg.connect(build_dsn(database))
        # Its rights are those of the service that everywhere has the same.
        named = await connection.fetchval("select current_user")
        assert named == (role if service == "owner" else f"noetl_{service}")
        await connection.close()
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="CONNECT"):
            await asyncpg.connect(build_dsn(others))


@pytest.mark.parametrize(
    "setting",
    [
        *("select 1", "set app.tenant = 'default'", "set role noetl_reader"),
        "select set_config('app.tenant', 'acme', false)",
    ],
)
async def test_the_reader_of_a_database_reads_its_tenant_alone(pair: Pair, setting: str) -> None:
    for side, role, database in (
        (pair.shared, "noetl_reader", SHARED_DATABASE),
        (pair.own, f"noetl_reader_{ACME}", ACME_DATABASE),
    ):
        keyring = json.loads((side.stack.folder / "secrets.json").read_text())
        connection = await asyncpg.connect(
            roles.build_role_dsn(
                pair.postgres.admin_dsn(),
                role=role,
                password=keyring["postgres_by_role"]["noetl_reader"],
                database=database,
            )
        )
        try:
            await connection.execute(setting)
            rows = await connection.fetch("select distinct tenant_id from noetl.event")
            assert [row["tenant_id"] for row in rows] == [side.tenant]
            # What it has by its login alone, where it gives the reader's rights back.
            if side is pair.own:
                await connection.execute("set role none")
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.fetch("select tenant_id from noetl.event")
        finally:
            await connection.close()


def test_the_shared_installation_keeps_nothing_of_the_tenant(pair: Pair) -> None:
    as_acme = {"X-NoETL-Tenant": ACME}
    binding = {"kind": "service_account", "subject": "ann", "role": "viewer"}
    answers = [
        pair.shared.ask("POST", "/api/execute", json={"path": "p"}, headers=as_acme),
        pair.shared.ask("POST", "/api/catalog/register", content=PLAYBOOK, headers=as_acme),
        pair.shared.ask("POST", "/api/roles", json=binding, headers=as_acme),
        pair.shared.ask("PATCH", f"/api/quotas/{ACME}", json={"running_max": 1}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (421, "tenant_elsewhere")
        assert answer.json()["url"] == pair.own.url
    typed = pair.shared.command_line.type("ls", "--server", pair.shared.url)
    assert typed.code == 0, typed
    assert asyncio.run(list_owners(pair.shared.dsn)) == {SHARED}
    followed = httpx.get(f"{answers[0].json()['url']}/api/executions", headers=pair.own.headers)
    assert followed.status_code == HTTPStatus.OK


def test_the_command_line_shows_where_the_tenant_is(pair: Pair) -> None:
    line = pair.shared.command_line
    added = line.type(
        "context", "add", "there", "--server", pair.shared.url, "--tenant", ACME, "--use"
    )
    assert added.code == 0, added
    refused = line.type("ls")
    line.type("context", "rm", "there")
    assert refused.code != 0
    assert f"--server {pair.own.url} --tenant {ACME}" in refused.err


def test_what_proves_somebody_here_proves_nobody_there(pair: Pair) -> None:
    made = pair.shared.ask("POST", "/api/keys", json={"account": "ci", "role": "admin"})
    assert made.is_success, made.text
    key = {"Authorization": f"Bearer {made.json()['key']}"}
    for headers in (pair.shared.headers, key, {**key, "X-NoETL-Tenant": ACME}):
        answer = httpx.get(f"{pair.own.url}/api/executions", headers=headers)
        assert answer.status_code == HTTPStatus.UNAUTHORIZED
    answer = pair.own.ask("GET", "/api/executions", headers={"X-NoETL-Tenant": SHARED})
    assert (answer.status_code, answer.json()["code"]) == (421, "tenant_elsewhere")
    answer = pair.shared.ask("GET", "/api/executions", headers={**key, "X-NoETL-Tenant": ACME})
    assert (answer.status_code, answer.json()["code"]) == (403, "no_role")


async def forge_start(url: str, tenant: TenantId, path: str) -> ExecutionId:
    """Ask for an execution of a tenant as only services may, in the account of an address."""
    execution_id = ExecutionId(str((1 << 60) + secrets.randbits(40)))
    batch = FactBatch(
        key=f"forged-{execution_id}",
        execution_id=execution_id,
        tenant_id=tenant,
        organization_id=OPS,
        producer="forged",
        facts=[facts.ExecutionRequested(path=path)],
    )
    shard = ids.find_shard(execution_id, ids.SHARD_COUNT_DEFAULT)
    async with open_connection(url, name="admin") as connection:
        await JetStreamPublisher(connection).publish_message(
            Message(
                subject=subjects.build_ingest_subject(shard, tenant, OPS),
                message_id=batch.key,
                data=codec.encode_json(batch),
            )
        )
    return execution_id


def test_a_forged_subject_stays_in_its_account_and_is_buried(pair: Pair) -> None:
    for side, other in ((pair.own, pair.shared), (pair.shared, pair.own)):
        execution_id = asyncio.run(
            forge_start(side.nats_url, other.tenant, f"e2e/say-{other.tenant}")
        )

        def is_buried(side: Side = side, name: str = execution_id) -> bool:
            letters = asyncio.run(read_streams(side.nats_url, topology.DEAD_LETTERS))
            return any(
                letter.reason.startswith("TenantNotServed") and name.encode() in letter.data
                for letter in letters
            )

        wait_until(is_buried, timeout_s=PATIENCE_S, what="the forged fact is buried")
        for place in (side, other):
            assert place.ask("GET", f"/api/executions/{execution_id}").status_code == 404
            assert asyncio.run(list_owners(place.dsn)) == {place.tenant}


def test_doctor_says_who_else_may_connect(pair: Pair) -> None:
    def find_doors() -> dict[str, Any]:
        typed = pair.own.command_line.type("doctor", "--dir", str(pair.own.stack.folder), "--json")
        (doors,) = [
            check for check in json.loads(typed.out)["checks"] if check["name"] == "postgres doors"
        ]
        return dict(doors)

    assert find_doors()["verdict"] == "ok"
    pair.postgres.execute(f"grant connect on database {ACME_DATABASE} to noetl_planner")
    try:
        doors = find_doors()
    finally:
        pair.postgres.execute(f"revoke connect on database {ACME_DATABASE} from noetl_planner")
    assert (doors["verdict"], "noetl_planner" in doors["found"]) == ("fail", True)
    assert find_doors()["verdict"] == "ok"
