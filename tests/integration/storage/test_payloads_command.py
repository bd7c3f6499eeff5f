"""`noetl payloads` against a real ledger and a folder of payloads."""

import asyncio
import getpass
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.support.servers import PostgresServer
from tests.support.storage import (
    ORGANIZATION,
    TENANT,
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
    migrated,
    postgres_stores,
)
from typer.testing import CliRunner

from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_cli.__main__ import app
from noetl_cli.errors import CliError
from noetl_contracts import codec
from noetl_contracts.errors import PayloadKeyUnknown
from noetl_contracts.identity.administration import AdministrationRecord, RecordFilter
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.ledger.payload_references import PostgresPayloadReferences
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
OLD = f"old:{b64encode(b'o' * 32).decode()}"
NEW = f"new:{b64encode(b'n' * 32).decode()}"


class World(Struct):
    dsn: str
    folder: Path

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def run(self, *words: str) -> Any:
        options = ["--postgres", self.dsn, "--payloads", self.url, "--json"]
        done = CliRunner().invoke(app, ["payloads", *words, *options], catch_exceptions=True)
        if done.exception is not None:
            raise done.exception
        return codec.decode_json(done.stdout)

    def put(self, data: bytes, *, key: str = "") -> PayloadRef:
        async def put() -> PayloadRef:
            async with open_payloads(self.url, seals=read_payload_keys(key, file="")) as payloads:
                return await payloads.put_payload(data, media_type="text/plain", **PLACE)

        return asyncio.run(put())

    def read(self, ref: PayloadRef, *, key: str = "") -> bytes:
        async def read() -> bytes:
            async with open_payloads(self.url, seals=read_payload_keys(key, file="")) as payloads:
                return await payloads.read_payload(ref)

        return asyncio.run(read())

    def list_records(self, what: str) -> list[AdministrationRecord]:
        async def list_records() -> list[AdministrationRecord]:
            async with open_database(self.dsn, must_be_durable=False) as database:
                return await PostgresAdministrationLog(database).list_latest_records(
                    RecordFilter(what=what), **PLACE, records_max=99
                )

        return asyncio.run(list_records())


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> Iterator[str]:
    async def make() -> str:
        dsn = await postgres.create_database("payloads_command")
        async with migrated(dsn) as database:
            stores = postgres_stores(database)
            stream = a_stream(an_execution(), [a_run()])
            await stores.ledger.append(an_append(await a_fence(stores), stream))
        return dsn

    yield asyncio.run(make())
    asyncio.run(postgres.drop_database("payloads_command"))


@pytest.fixture
def world(dsn: str, tmp_path: Path) -> World:
    return World(dsn=dsn, folder=tmp_path / "payloads")


def test_a_dry_run_says_what_a_run_then_does(world: World) -> None:
    ref = world.put(b"nobody wants it")
    for file in world.folder.rglob("*"):
        os.utime(file, (0, 0))

    before = len(world.list_records("payloads"))
    (planned,) = world.run("gc", "--dry-run")
    assert len(world.list_records("payloads")) == before, "a dry run changes nothing"
    assert (planned["garbage"], planned["garbage_bytes"], planned["shelved"]) == (1, 15, 0)
    assert planned["held_since"] is not None
    assert world.read(ref) == b"nobody wants it"

    (done,) = world.run("gc", "--ttl", "1h")
    assert (done["garbage"], done["shelved"], done["purged"]) == (1, 1, 0)
    begun, ended = world.list_records("payloads")[before:]
    assert (begun.action, ended.action) == ("payloads.collection_begun", "payloads.collected")
    assert ended.details["shelved"] == 1
    assert world.read(ref) == b"nobody wants it"
    for file in world.folder.rglob("*"):
        os.utime(file, (0, 0))
    (done,) = world.run("gc")
    assert (done["garbage"], done["purged"], done["purged_bytes"]) == (0, 1, 15)


def test_what_another_process_collects_is_left_to_it(world: World) -> None:
    world.put(b"nobody wants it")
    for file in world.folder.rglob("*"):
        os.utime(file, (0, 0))

    async def meanwhile() -> Any:
        owner = Owner(**PLACE)
        async with open_database(world.dsn, must_be_durable=False) as database:
            references = PostgresPayloadReferences(database)
            async with references.hold_collector_lock(owner) as is_alone:
                assert is_alone
                async with references.hold_collector_lock(owner) as is_alone_too:
                    assert not is_alone_too
                return await asyncio.to_thread(world.run, "gc", "--ttl", "1h")

    (left,) = asyncio.run(meanwhile())
    assert (left["left_to_another"], left["shelved"]) == (True, 0)
    (done,) = world.run("gc", "--ttl", "1h")
    assert (done["left_to_another"], done["shelved"]) == (False, 1)


def test_turned_keys_open_what_older_keys_have_sealed(world: World, tmp_path: Path) -> None:
    plain, sealed = world.put(b"never sealed"), world.put(b"sealed long ago", key=OLD)
    keys = tmp_path / "keys"
    keys.write_text(f"# newest first\n{NEW}\n{OLD}\n")

    before = len(world.list_records("payloads"))
    assert world.run("rotate", "--keys", str(keys))["sealed"] == 2
    begun, ended = world.list_records("payloads")[before:]
    assert (begun.action, ended.action) == ("payloads.rotation_begun", "payloads.rotated")
    assert ended.details == {"sealed": 2, "unchanged": 0, "destroyed": []}
    assert ended.actor.id == getpass.getuser()
    again = world.run("rotate", "--keys", str(keys))

    assert (again["sealed"], again["unchanged"]) == (0, 2)
    assert (world.read(plain, key=NEW), world.read(sealed, key=NEW)) == (
        b"never sealed",
        b"sealed long ago",
    )
    texts = [file.read_bytes() for file in world.folder.rglob("*") if file.is_file()]
    assert not any(b"sealed" in text or b"b2xk" in text for text in texts)


def test_keys_move_to_who_holds_them_from_now_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sealed = world.put(b"never sealed"), world.put(b"sealed long ago", key=OLD)
    before, master = tmp_path / "before", tmp_path / "master"
    before.write_text(OLD)
    master.write_text(NEW)
    address = f"kms+file://{master}"
    monkeypatch.setenv("NOETL_PAYLOAD_SEAL_KEY", address)
    assert world.run("rotate", "--keys", str(before))["sealed"] == 2
    # It may end anywhere and is run again, then without the keys from before.
    assert world.run("rotate", "--keys", str(before))["unchanged"] == 2
    assert world.run("rotate")["unchanged"] == 2

    assert world.read(plain, key=address) == b"never sealed"
    assert world.read(sealed, key=address) == b"sealed long ago"
    before.write_text(OLD.replace("old:", "new:"))
    with pytest.raises(CliError, match="both named 'new'"):
        world.run("rotate", "--keys", str(before))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gc", "--ttl", "1m"], "at least one hour"),
        (["gc", "--ttl", "soon"], "no length of time"),
        (["rotate"], "sealed"),
        (["rotate", "--keys", "/nowhere/keys"], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said(world: World, words: list[str], said: str) -> None:
    world.put(b"x")
    before = len(world.list_records("payloads"))
    with pytest.raises(CliError, match=said):
        world.run(*words)
    actions = [record.action for record in world.list_records("payloads")[before:]]
    assert actions in ([], ["payloads.rotation_begun"]), "what failed has no end"


def test_an_erased_tenant_has_a_certificate_and_no_payloads(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"tenant+{NEW}"
    ref = world.put(b"somebody's data", key=key)
    monkeypatch.setenv("NOETL_PAYLOAD_SEAL_KEY", key)
    certificate = tmp_path / "certificate.json"
    words = ["erase", "--tenant", TENANT, "--organization", ORGANIZATION]
    words += ["--certificate", str(certificate)]
    with pytest.raises(CliError, match="for good"):
        world.run(*words)
    with pytest.raises(CliError, match="still holds histories"):
        world.run(*words, "--yes")
    nowhere = [*words[:-1], str(tmp_path / "none" / "certificate.json")]
    with pytest.raises(CliError, match="no folder"):
        world.run(*nowhere, "--yes", "--keep-histories")
    assert world.read(ref, key=key) == b"somebody's data", "nothing goes without a certificate"

    written = world.run(*words, "--yes", "--keep-histories")
    assert written == codec.decode_json(certificate.read_bytes())
    assert (written["objects"], written["key_ids"]) == (1, [ref.key_id])
    assert written["has_histories"]
    with pytest.raises(PayloadKeyUnknown, match="erased"):
        world.read(ref, key=key)

    (record,) = world.list_records("tenant")
    assert (record.version, record.checksum) == (
        written["record_version"],
        written["record_checksum"],
    )
    assert record.details["key_ids"] == [ref.key_id]
