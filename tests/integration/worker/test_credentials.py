"""Credentials: opened late, looked up once, kept while the store is away."""

import asyncio
import os
from base64 import b64encode
from datetime import UTC, datetime

import pytest
from aiohttp import web
from tests.support.attempting import site_of
from tests.support.manual_clock import ManualClock
from tests.support.polling import eventually
from tests.support.scripted import Script, says
from tests.support.working import KEY, ORGANIZATION, TENANT, Bench, command_of

from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts import codec, credentials
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_storage.ports.errors import StorageUnavailable
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.keychain import credential_vault
from noetl_worker.keychain.credential_vault import (
    REMEMBERED_S,
    RENEWED_S,
    CredentialVault,
    record_used_versions,
)
from noetl_worker.payloads import payload_retry
from noetl_worker.payloads.payload_retry import retry_store_call

SITE = site_of()


class Shelf:
    """Named objects that count how often they are asked for, and may be away."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lookups = 0
        self.is_away = False

    def put(self, name: str, version: int, *, key: str = KEY, **fields: str) -> None:
        sealed = CredentialSealer(key).seal_credential(
            fields,
            name=name,
            version=version,
            kind="generic",
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
        )
        self.objects[credentials.build_object_name(name, version)] = codec.encode_json(sealed)

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        assert (tenant_id, organization_id) == (TENANT, ORGANIZATION)
        return self.objects.get(name)

    async def list_names(
        self, prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> list[str]:
        assert (tenant_id, organization_id) == (TENANT, ORGANIZATION)
        self.lookups += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise StorageUnavailable("the store does not answer")
        return sorted(name for name in self.objects if name.startswith(prefix))


def vault_of(shelf: Shelf) -> tuple[CredentialVault, ManualClock, SecretMask]:
    clock, mask = ManualClock(datetime(2026, 1, 1, tzinfo=UTC)), SecretMask()
    return (
        CredentialVault(
            objects=shelf,
            ask_again=retry_store_call,
            sealer=CredentialSealer(KEY),
            mask=mask,
            clock=clock,
        ),
        clock,
        mask,
    )


async def test_the_latest_version_is_opened_and_its_secrets_are_masked() -> None:
    shelf = Shelf()
    shelf.put("db", 1, user="ann", password="old-secret")  # noqa: S106 - a value for the test
    shelf.put("db", 12, user="ann", password="new-secret")  # noqa: S106 - a value for the test
    vault, _, mask = vault_of(shelf)
    found = await vault.resolve_auth("db", SITE)
    assert (found.version, found.fields["password"]) == (12, "new-secret")
    assert mask.mask_text("ann has new-secret") == "ann has ***"


async def test_the_password_inside_an_address_is_masked_too() -> None:
    shelf = Shelf()
    shelf.put("db", 1, dsn="postgres://ann:hunter22@h/d")
    vault, _, mask = vault_of(shelf)
    await vault.resolve_auth({"credential": "db"}, SITE)
    assert mask.mask_text("login hunter22 failed") == "login *** failed"


async def test_many_askers_cause_one_lookup_and_it_is_remembered_for_a_while() -> None:
    shelf = Shelf()
    shelf.put("db", 1, token="a")  # noqa: S106 - a value for the test
    vault, clock, _ = vault_of(shelf)
    await asyncio.gather(*(vault.resolve_auth("db", SITE) for _ in range(20)))
    assert shelf.lookups == 1
    shelf.put("db", 2, token="b")  # noqa: S106 - a value for the test
    assert (await vault.resolve_auth("db", SITE)).version == 1
    clock.advance_by(REMEMBERED_S)
    assert (await vault.resolve_auth("db", SITE)).version == 2
    assert shelf.lookups == 2


async def test_a_refused_credential_is_looked_for_again_and_told_when_it_has_changed() -> None:
    shelf = Shelf()
    shelf.put("db", 1, token="a")  # noqa: S106 - a value for the test
    vault, clock, _ = vault_of(shelf)
    assert not await vault.renew_credential("db", SITE, used_versions={})
    with record_used_versions() as used:
        await vault.resolve_auth("db", SITE)
    assert used == {"db": 1}
    clock.advance_by(RENEWED_S)
    assert not await vault.renew_credential({"credential": "db"}, SITE, used_versions=used)
    shelf.put("db", 2, token="b")  # noqa: S106 - a value for the test
    assert not await vault.renew_credential("db", SITE, used_versions=used)
    clock.advance_by(RENEWED_S)
    assert await vault.renew_credential("db", SITE, used_versions=used)
    with record_used_versions() as used:
        assert (await vault.resolve_auth("db", SITE)).version == 2
    assert not await vault.renew_credential("db", SITE, used_versions=used)
    inline = {"type": "bearer", "token": "c"}
    assert not await vault.renew_credential(inline, SITE, used_versions=used)
    assert shelf.lookups == 3


async def test_all_calls_that_were_refused_with_the_old_version_get_the_new_one() -> None:
    shelf = Shelf()
    shelf.put("db", 1, token="a")  # noqa: S106 - a value for the test
    vault, clock, _ = vault_of(shelf)
    with record_used_versions() as used:
        await vault.resolve_auth("db", SITE)
    shelf.put("db", 2, token="b")  # noqa: S106 - a value for the test
    clock.advance_by(RENEWED_S)
    calls = (vault.renew_credential("db", SITE, used_versions=used) for _ in range(5))
    assert await asyncio.gather(*calls) == [True] * 5
    assert await vault.renew_credential("db", SITE, used_versions=used)
    assert shelf.lookups == 2


async def test_a_refused_credential_is_not_forgotten_while_the_store_is_away() -> None:
    shelf = Shelf()
    shelf.put("db", 1, token="a")  # noqa: S106 - a value for the test
    vault, clock, _ = vault_of(shelf)
    with record_used_versions() as used:
        await vault.resolve_auth("db", SITE)
    clock.advance_by(RENEWED_S)
    shelf.is_away = True
    assert not await vault.renew_credential("db", SITE, used_versions=used)
    assert shelf.lookups == 2
    assert (await vault.resolve_auth("db", SITE)).version == 1


FETCH = """
  - step: fetch
    tool: {kind: http, url: "%s/private", auth: shop}
"""


async def test_a_replaced_credential_counts_at_once_where_the_old_one_is_refused(
    worker: Bench, server: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_vault, "RENEWED_S", 0.0)
    command = command_of(FETCH % server.url)
    await worker.put_credential("shop", {"token": "old-token"}, kind="bearer")
    server.answers(says(status=401))
    *_, refused = await worker.run(command)
    assert isinstance(refused, CommandFailed), refused
    assert len(server.seen) == 1
    await worker.put_credential("shop", {"token": "new-token"}, kind="bearer", version=2)
    server.answers(says(status=401), says({"n": 1}))
    *_, done = await worker.run(command)
    assert isinstance(done, CommandCompleted), done
    sent = [request.headers["Authorization"] for request in server.seen[1:]]
    assert sent == ["Bearer old-token", "Bearer new-token"]


async def test_every_item_of_a_loop_goes_on_with_a_replaced_credential(
    worker: Bench, server: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_vault, "RENEWED_S", 0.0)
    commands = [command_of(FETCH % server.url) for _ in range(5)]
    await worker.put_credential("shop", {"token": "old-token"}, kind="bearer")
    refused = asyncio.Barrier(len(commands))

    async def refuse_old_token(request: web.Request) -> web.Response:
        if request.headers["Authorization"] == "Bearer new-token":
            return web.json_response({"n": 1})
        # All are with the server when it refuses the first, and the new version is there by then.
        if await refused.wait() == 0:
            await worker.put_credential("shop", {"token": "new-token"}, kind="bearer", version=2)
        await refused.wait()
        return web.json_response(status=401)

    server.answers(refuse_old_token)
    for command in commands:
        await worker.send(command)
    deliveries = await worker.commands.fetch_batch(messages_max=len(commands), wait_s=5)
    async with asyncio.timeout(60):
        await asyncio.gather(*map(worker.lane.handle_delivery, deliveries))
    assert [type(fact) for fact in await worker.facts() if is_end(fact)] == [CommandCompleted] * 5
    assert len(server.seen) == 10


def is_end(fact: object) -> bool:
    return isinstance(fact, CommandCompleted | CommandFailed)


async def test_a_credential_is_looked_for_until_the_store_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payload_retry, "_RETRY_BASE_S", 0.001)
    shelf = Shelf()
    shelf.put("db", 1, token="a")  # noqa: S106 - a value for the test
    shelf.is_away = True
    vault, _, _ = vault_of(shelf)
    looking = asyncio.create_task(vault.resolve_auth("db", SITE))

    async def was_asked_again() -> bool:
        return shelf.lookups > 2

    await eventually(was_asked_again)
    shelf.is_away = False
    assert (await looking).version == 1


async def test_a_known_credential_stays_good_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payload_retry, "_RETRY_BASE_S", 0.001)
    shelf = Shelf()
    shelf.put("db", 1, token="a")  # noqa: S106 - a value for the test
    vault, clock, _ = vault_of(shelf)
    await vault.resolve_auth("db", SITE)
    shelf.is_away = True
    clock.advance_by(REMEMBERED_S)
    assert (await vault.resolve_auth("db", SITE)).version == 1


async def test_a_credential_sealed_with_another_key_says_what_to_do() -> None:
    shelf = Shelf()
    shelf.put("db", 1, key=b64encode(os.urandom(32)).decode(), token="a")  # noqa: S106 - a value for the test
    vault, _, _ = vault_of(shelf)
    with pytest.raises(ToolFailure, match="put it again") as caught:
        await vault.resolve_auth("db", SITE)
    assert caught.value.error.kind == "config"


async def test_what_names_no_credential_is_refused() -> None:
    vault, _, _ = vault_of(Shelf())
    for auth in ({}, 5, ""):
        with pytest.raises(ToolFailure) as caught:
            await vault.resolve_auth(auth, SITE)
        assert caught.value.error.kind == "config"
