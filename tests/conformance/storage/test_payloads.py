import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.clouds import AZURE_ABSENT, AZURE_KEY, azure_store, gcs_emulator, has_azure
from tests.support.servers import S3Server
from tests.support.storage import ORGANIZATION, TENANT

from noetl_chassis.seals.key_management import LocalKeyManagement, ManagedKeys
from noetl_chassis.seals.payload_seal import KeyRing, KeyService, PayloadSeals
from noetl_contracts import codec, locators
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_storage.arrow import result_values
from noetl_storage.arrow.encoding import PayloadUnreadable
from noetl_storage.payloads import object_keys
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.errors import (
    NameRefused,
    PayloadCorrupt,
    PayloadMissing,
    StorageMisconfigured,
    StorageUnavailable,
)
from noetl_storage.ports.payload_ports import Owner, StoredContent

OTHER = TenantId("other")
MEBIBYTE = 1024 * 1024
BIG_BYTES = 64 * MEBIBYTE
STORES = [
    "memory",
    "filesystem",
    "sealed",
    "managed",
    "s3",
    "gcs",
    *(["azure"] if has_azure() else []),
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A store, and how to damage it behind its back."""

    store: PayloadStore
    folder: Path | None
    is_sealed: bool = False

    async def overwrite(self, key: str, data: bytes) -> None:
        match self.store:
            case MemoryPayloads():
                self.store.bytes_by_key[key] = data
            case _ if self.folder is not None:
                (self.folder / key).write_bytes(data)
            case _:
                self.store._objects.store_object(key, data, "text/plain")

    async def put(
        self, data: bytes | AsyncIterator[bytes], tenant: TenantId = TENANT
    ) -> PayloadRef:
        return await self.store.put_payload(
            data, tenant_id=tenant, organization_id=ORGANIZATION, media_type="text/plain"
        )


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs_emulator(tmp_path_factory.mktemp("gcs")) as url:
        yield url


@pytest.fixture(params=STORES)
def address(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[str, str | None, str | None, Path | None]:
    match request.param:
        case "memory":
            return "memory://", None, None, None
        case "filesystem" | "sealed" | "managed":
            return f"file://{tmp_path}/store%20one", None, None, tmp_path / "store one"
        case "gcs":
            return request.getfixturevalue("gcs"), None, None, None
        case "azure":
            return azure_store(), None, AZURE_KEY, None
    server: S3Server = request.getfixturevalue("s3")
    return server.payload_url, server.access_key, server.secret_key, None


@pytest.fixture
async def case(
    request: pytest.FixtureRequest, address: tuple[str, str | None, str | None, Path | None]
) -> AsyncIterator[Case]:
    url, access_key, secret_key, folder = address
    how = request.node.callspec.params["address"]
    is_sealed = how in {"sealed", "managed"}
    holds: KeyService = KeyRing({"k1": bytes(32)})
    if how == "managed":
        holds = ManagedKeys(LocalKeyManagement({"k1": bytes(32)}))
    seals = PayloadSeals(holds) if is_sealed else None
    async with open_payloads(
        url, access_key=access_key, secret_key=secret_key, seals=seals
    ) as store:
        yield Case(store=store, folder=folder, is_sealed=is_sealed)


async def in_pieces(data: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def gather_into(seen: list[bytes], chunks: AsyncIterator[bytes]) -> None:
    async for chunk in chunks:
        seen.append(chunk)  # noqa: PERF401 - what came before a failure is of interest


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
async def test_what_was_stored_is_read(case: Case, data: bytes) -> None:
    ref = await case.put(data)

    assert (ref.sha256, ref.payload_bytes) == (codec.digest_hex(data), len(data))
    assert ref.uri == locators.build_payload_locator(TENANT, ORGANIZATION, ref.sha256)
    assert await case.store.read_payload(ref) == data
    assert b"".join([chunk async for chunk in case.store.stream_payload(ref)]) == data
    assert await case.store.has_payload(ref)


async def test_a_check_of_writes_leaves_nothing_behind(case: Case) -> None:
    await case.store.check_write()
    await case.store.check_write()
    left = await case.store.run_blocking(
        lambda: list(case.store._objects.iterate_objects_under("readiness/"))
    )
    assert left == []


async def test_a_store_that_forgets_what_it_took_is_found(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case.store._objects, "store_object", lambda *_: None)
    with pytest.raises(PayloadCorrupt, match="does not return it"):
        await case.store.check_write()


async def test_a_reference_says_what_it_was_told(case: Case) -> None:
    ref = await case.store.put_payload(
        b"rows",
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
        row_count=3,
        schema_digest="d",
    )
    assert (ref.media_type, ref.row_count, ref.schema_digest) == ("application/json", 3, "d")


async def test_storing_twice_is_storing_once(case: Case) -> None:
    data = b"the same" * 1000
    refs = [await case.put(data), await case.put(data), await case.put(in_pieces(data, 999))]
    assert refs[0] == refs[1] == refs[2]
    assert await case.store.read_payload(refs[0]) == data


async def test_storing_the_same_at_once_is_storing_once(case: Case) -> None:
    data = b"at once" * 50_000
    refs = await asyncio.gather(
        *(case.put(data if n % 2 else in_pieces(data, 100_000)) for n in range(12))
    )
    assert len(set(map(codec.encode_text, refs))) == 1
    assert await case.store.read_payload(refs[0]) == data


async def test_a_flipped_byte_is_noticed_and_named(case: Case) -> None:
    data = bytearray(b"truth" * 600_000)
    ref = await case.put(bytes(data))
    data[len(data) // 2] ^= 1
    await case.overwrite(object_keys.find_place(ref)[0], bytes(data))

    with pytest.raises(PayloadCorrupt, match=ref.sha256):
        await case.store.read_payload(ref)
    seen: list[bytes] = []
    with pytest.raises(PayloadCorrupt, match=ref.sha256):
        await gather_into(seen, case.store.stream_payload(ref))
    assert len(b"".join(seen)) < len(data)


async def test_a_truncated_object_is_noticed(case: Case) -> None:
    ref = await case.put(b"whole")
    await case.overwrite(object_keys.find_place(ref)[0], b"who")
    with pytest.raises(PayloadCorrupt):
        await case.store.read_payload(ref)
    await case.put(b"whole")
    assert await case.store.read_payload(ref) == b"whole"


async def test_what_is_not_there_is_missing(case: Case) -> None:
    absent = codec.digest_hex(b"never stored")
    ref = PayloadRef(
        uri=locators.build_payload_locator(TENANT, ORGANIZATION, absent),
        sha256=absent,
        media_type="m",
        payload_bytes=1,
    )
    assert not await case.store.has_payload(ref)
    with pytest.raises(PayloadMissing, match=absent):
        await case.store.read_payload(ref)
    with pytest.raises(PayloadMissing, match=absent):
        await gather_into([], case.store.stream_payload(ref))
    await case.store.delete_payload(ref)


async def test_deleted_content_is_gone(case: Case) -> None:
    ref = await case.put(b"to be removed")
    await case.store.delete_payload(ref)
    assert not await case.store.has_payload(ref)
    with pytest.raises(PayloadMissing):
        await case.store.read_payload(ref)


async def test_what_is_removed_while_it_is_read_is_read_whole_or_refused(case: Case) -> None:
    data = bytes(range(256)) * 20_000
    ref = await case.put(data)
    pieces = case.store.stream_payload(ref)
    seen = [await anext(pieces)]
    await case.store.delete_payload(ref)
    try:
        seen += [piece async for piece in pieces]
    except (PayloadMissing, StorageUnavailable):
        assert len(b"".join(seen)) < len(data)
    else:
        assert b"".join(seen) == data
    assert not await case.store.has_payload(ref)


async def contents(case: Case, owner: Owner) -> dict[str, StoredContent]:
    pages = [page async for page in case.store.iterate_contents(owner)]
    return {content.sha256: content for page in pages for content in page}


async def test_content_is_listed_by_its_owner(case: Case) -> None:
    tenant = TenantId(f"list-{codec.digest_hex(repr(case).encode())[:8]}")
    owner = Owner(tenant_id=tenant, organization_id=ORGANIZATION)
    refs = [await case.put(b"one", tenant=tenant), await case.put(in_pieces(b"two2"), tenant)]
    await case.put(b"of another", tenant=OTHER)
    await case.store.put_named("n/1", b"x", tenant_id=tenant, organization_id=ORGANIZATION)

    found = await contents(case, owner)

    assert set(found) == {ref.sha256 for ref in refs}
    if not case.is_sealed:
        assert [found[ref.sha256].stored_bytes for ref in refs] == [3, 4]
    assert [item.name async for page in case.store.iterate_objects(owner) for item in page] == [
        "n/1"
    ]
    texts = [piece async for piece in case.store.stream_content(owner, "n/1", is_name=True)]
    assert b"".join(texts) == b"x"


async def test_all_objects_of_a_tenant_are_added_up(case: Case) -> None:
    tenant = TenantId(f"sum-{codec.digest_hex(repr(case).encode())[:8]}")
    owner = Owner(tenant_id=tenant, organization_id=ORGANIZATION)
    assert await case.store.count_stored_bytes(tenant) == 0
    await case.put(b"one", tenant=tenant)
    await case.put(b"two2", tenant=tenant)
    await case.put(b"of another", tenant=TenantId(f"{tenant}2"))
    await case.store.put_named("n/1", b"x", tenant_id=tenant, organization_id=ORGANIZATION)
    listed = [item async for page in case.store.iterate_objects(owner) for item in page]
    found = (await contents(case, owner)).values()
    stored_bytes = sum(item.stored_bytes for item in (*listed, *found))
    assert await case.store.count_stored_bytes(tenant) == stored_bytes
    if not case.is_sealed:
        assert stored_bytes == 8
    # What is put aside still takes its place.
    for content in found:
        await case.store.shelve_content(owner, content)
    assert await case.store.count_stored_bytes(tenant) == stored_bytes
    with pytest.raises(NameRefused):
        await case.store.count_stored_bytes(TenantId("../other"))


async def test_shelved_content_is_read_brought_back_and_purged(case: Case) -> None:
    tenant = TenantId(f"shelf-{codec.digest_hex(repr(case).encode())[:8]}")
    owner = Owner(tenant_id=tenant, organization_id=ORGANIZATION)
    ref = await case.put(b"put aside", tenant=tenant)
    (content,) = (await contents(case, owner)).values()

    assert await case.store.shelve_content(owner, content)
    assert not await case.store.shelve_content(owner, content)
    assert (await contents(case, owner))[ref.sha256].is_shelved
    assert await case.store.has_payload(ref)
    assert await case.store.read_payload(ref) == b"put aside"
    assert [piece async for piece in case.store.stream_payload(ref)] == [b"put aside"]

    # The shelf keeps its copy: another collector may still be removing what it has put aside.
    assert await case.store.restore_content(owner, ref.sha256)
    assert not await case.store.restore_content(owner, ref.sha256)
    pages = [page async for page in case.store.iterate_contents(owner)]
    assert sorted(item.is_shelved for page in pages for item in page) == [False, True]
    (shelved,) = [item for page in pages for item in page if item.is_shelved]
    earlier = structs.replace(shelved, modified_at=shelved.modified_at - timedelta(days=1))
    assert not await case.store.purge_content(owner, earlier)
    assert await case.store.purge_content(owner, shelved)
    assert not (await contents(case, owner))[ref.sha256].is_shelved
    assert await case.store.read_payload(ref) == b"put aside"

    (content,) = (await contents(case, owner)).values()
    assert await case.store.shelve_content(owner, content)
    shelved = (await contents(case, owner))[ref.sha256]
    assert await case.store.purge_content(owner, shelved)
    assert not await case.store.purge_content(owner, shelved)
    assert await contents(case, owner) == {}
    with pytest.raises(PayloadMissing):
        await case.store.read_payload(ref)


async def test_content_that_was_wanted_again_is_not_shelved(case: Case) -> None:
    tenant = TenantId(f"again-{codec.digest_hex(repr(case).encode())[:8]}")
    owner = Owner(tenant_id=tenant, organization_id=ORGANIZATION)
    ref = await case.put(b"wanted", tenant=tenant)
    (content,) = (await contents(case, owner)).values()
    earlier = structs.replace(content, modified_at=content.modified_at - timedelta(seconds=1))

    assert not await case.store.shelve_content(owner, earlier)
    assert await case.store.read_payload(ref) == b"wanted"


async def test_a_tenant_has_its_own_copy(case: Case) -> None:
    data = b"tenant " * 10
    ours = await case.put(data)
    theirs = structs.replace(
        ours, uri=locators.build_payload_locator(OTHER, ORGANIZATION, ours.sha256)
    )
    with pytest.raises(PayloadMissing):
        await case.store.read_payload(theirs)
    assert await case.put(data, tenant=OTHER) == theirs
    await case.store.delete_payload(ours)
    assert await case.store.read_payload(theirs) == data


async def test_a_name_is_taken_once(case: Case) -> None:
    place: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    name = f"frames/1/{codec.digest_hex(repr(case).encode())[:8]}/0"

    assert await case.store.find_named(name, **place) is None
    assert await case.store.put_named(name, b"first", **place) is None
    assert await case.store.put_named(name, b"second", **place) == b"first"
    assert await case.store.find_named(name, **place) == b"first"
    assert await case.store.find_named(name, tenant_id=OTHER, organization_id=ORGANIZATION) is None


async def test_one_of_many_writers_of_a_name_wins(case: Case) -> None:
    place: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    name = f"race/{codec.digest_hex(repr(case).encode())[:8]}"

    answers = await asyncio.gather(
        *(case.store.put_named(name, b"writer %d" % n, **place) for n in range(16))
    )

    (winner,) = [n for n, answer in enumerate(answers) if answer is None]
    assert {answer for answer in answers if answer is not None} == {b"writer %d" % winner}
    assert await case.store.find_named(name, **place) == b"writer %d" % winner


async def test_names_are_listed_by_prefix_in_order(case: Case) -> None:
    place: dict[str, Any] = {"tenant_id": TenantId("lister"), "organization_id": ORGANIZATION}
    for name in ("credentials/b/0000000002", "credentials/b/0000000010", "credentials/bb/1", "x"):
        await case.store.put_named(name, b"-", **place)
    assert await case.store.list_names("credentials/b/", **place) == [
        "credentials/b/0000000002",
        "credentials/b/0000000010",
    ]
    assert len(await case.store.list_names("", **place)) == 4
    assert await case.store.list_names("nothing/", **place) == []
    assert (
        await case.store.list_names("", tenant_id=TenantId("none"), organization_id=ORGANIZATION)
        == []
    )


@pytest.mark.parametrize("names_max", [None, 1, 4, 100])
async def test_names_behind_a_name_are_listed(case: Case, names_max: int | None) -> None:
    place: dict[str, Any] = {"tenant_id": TenantId("pager"), "organization_id": ORGANIZATION}
    names = [f"logs/7/20261126T23{minute:02}/{n:08}-x" for minute in (1, 2, 3) for n in (5, 6)]
    for name in (*names, "logs/71/20261126T2301/00000005-x"):
        await case.store.put_named(name, b"-", **place)
    for number, name in enumerate(["", *names]):
        listed = await case.store.list_names("logs/7/", **place, after=name, names_max=names_max)
        assert listed == names[number:][:names_max]


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../../b", "a/./b", "a//b", "a/", "nul\x00", "a\\b", ".hidden",
     "a" * 600, "new\nline", "é"],
)  # fmt: skip
async def test_hostile_names_are_refused(case: Case, name: str) -> None:
    place: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    with pytest.raises(NameRefused):
        await case.store.put_named(name, b"x", **place)
    with pytest.raises(NameRefused):
        await case.store.find_named(name, **place)


@pytest.mark.parametrize("owner", ["", "..", "a/b", "a.b", "x\x00", "a" * 65])
async def test_hostile_owners_are_refused(case: Case, owner: str) -> None:
    with pytest.raises(NameRefused):
        await case.put(b"x", tenant=TenantId(owner))
    with pytest.raises(NameRefused):
        await case.store.put_named(
            "x", b"x", tenant_id=TENANT, organization_id=OrganizationId(owner)
        )


@pytest.mark.parametrize(
    ("uri", "sha256"),
    [
        ("noetl://tenant/acme/org/west/payloads/sha256/..", ".."),
        ("file:///etc/passwd", "0" * 64),
        (locators.build_payload_locator(TENANT, ORGANIZATION, "1" * 64), "0" * 64),
        (
            locators.build_locator("tenant", "a/../b", "org", "w", "payloads", "sha256", "0" * 64),
            "0" * 64,
        ),
    ],
)
async def test_hostile_references_are_refused(case: Case, uri: str, sha256: str) -> None:
    ref = PayloadRef(uri=uri, sha256=sha256, media_type="m", payload_bytes=1)
    with pytest.raises(NameRefused):
        await case.store.read_payload(ref)
    with pytest.raises(NameRefused):
        await case.store.has_payload(ref)


async def test_a_large_stream_needs_little_memory(case: Case) -> None:
    if isinstance(case.store, MemoryPayloads):
        pytest.skip("keeps everything in memory, by its name")
    piece = bytes(MEBIBYTE)

    async def pieces() -> AsyncIterator[bytes]:
        for n in range(BIG_BYTES // MEBIBYTE):
            yield n.to_bytes(4, "big") + piece[4:]

    tracemalloc.start()
    try:
        ref = await case.put(pieces())
        seen = 0
        async for chunk in case.store.stream_payload(ref):
            seen += len(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (ref.payload_bytes, seen) == (BIG_BYTES, BIG_BYTES)
    assert peak < BIG_BYTES / 2


async def test_a_source_that_breaks_off_leaves_nothing(case: Case) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"begun"
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        await case.put(broken())
    if case.folder is not None:
        assert list((case.folder / ".staging").iterdir()) == []


@pytest.mark.parametrize("url", ["", "ftp://x", "file://host/x", "file:relative", "s3://", "/x"])
async def test_an_address_that_is_not_understood_is_refused(url: str) -> None:
    with pytest.raises(StorageMisconfigured):
        async with open_payloads(url):
            pytest.fail("opened")


async def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with open_payloads(f"file://{tmp_path}/file/store") as store:
        with pytest.raises(StorageUnavailable, match="file/store"):
            await store.put_payload(
                b"x", tenant_id=TENANT, organization_id=ORGANIZATION, media_type="text/plain"
            )


async def test_an_s3_that_is_not_there_is_unavailable() -> None:
    url = "s3://bucket?endpoint=http://127.0.0.1:9"
    async with open_payloads(url, access_key="a", secret_key="b") as store:  # noqa: S106 - no secret
        with pytest.raises(StorageUnavailable):
            await store.put_named("x", b"x", tenant_id=TENANT, organization_id=ORGANIZATION)


async def test_a_bucket_that_refuses_is_named(s3: S3Server) -> None:
    url = s3.payload_url.replace(f"s3://{s3.bucket}", "s3://no-such-bucket")
    async with open_payloads(url, access_key=s3.access_key, secret_key="wrong") as store:  # noqa: S106 - no secret
        with pytest.raises(StorageMisconfigured, match="no-such-bucket"):
            await store.find_named("x", tenant_id=TENANT, organization_id=ORGANIZATION)


def test_azure_passes_the_suite_where_its_emulator_runs() -> None:
    if not has_azure():
        pytest.skip(AZURE_ABSENT)
    assert "azure" in STORES


@pytest.mark.parametrize(
    ("url", "extra"), [("gs://bucket", "gcs"), ("azure://box?account=a", "azure")]
)
async def test_a_cloud_whose_client_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, extra: str
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(StorageMisconfigured, match=rf"noetl-storage\[{extra}\]"):
        async with open_payloads(url):
            pytest.fail("opened")


async def test_azure_without_a_key_is_refused() -> None:
    with pytest.raises(StorageMisconfigured, match="PAYLOAD_SECRET_KEY"):
        async with open_payloads("azure://box?account=a"):
            pytest.fail("opened")


def kept_form(length: int) -> dict[str, Any]:
    return {"results": ["x" * length], "stats": {}}


async def enveloped(case: Case, length: int, *, tenant: TenantId = TENANT) -> ResultEnvelope:
    form = kept_form(length)
    return await result_values.build_result_envelope(
        result_values.build_keep(case.store, tenant_id=tenant, organization_id=ORGANIZATION),
        codec.encode_json(form),
        inline=lambda: {"shape": "loop", "data": form},
        beside={"shape": "loop", "fields": {}},
        row_count=1,
    )


async def test_results_go_into_envelopes_and_come_back(case: Case) -> None:
    load = result_values.build_load(case.store)
    small, middle, large = [await enveloped(case, n) for n in (10, 5000, 70_000)]
    assert small.reference is None
    assert middle.reference is not None
    assert large.reference is not None
    # The playbook sees the first two as inline; only the first travels.
    assert [item.context.get("is_inline", False) for item in (small, middle, large)] == [
        False,
        True,
        False,
    ]
    assert max(len(codec.encode_json(item)) for item in (small, middle, large)) < 2048
    for envelope, length in ((small, 10), (middle, 5000), (large, 70_000)):
        assert await result_values.load_result(load, envelope) == kept_form(length)
    assert await result_values.load_result(load, None) == {}
    assert await result_values.load_stored_result(load, small) == {}
    assert await result_values.load_stored_result(load, large) == {
        large.reference.sha256: kept_form(70_000)
    }
    # The same result again is the same reference; another tenant's is another one.
    assert (await enveloped(case, 5000)).reference == middle.reference
    other = await enveloped(case, 5000, tenant=OTHER)
    assert other.reference is not None
    assert other.reference.uri != middle.reference.uri
    await case.store.delete_payload(middle.reference)
    with pytest.raises(PayloadMissing):
        await result_values.load_result(load, middle)
    assert await result_values.load_result(load, other) == kept_form(5000)


async def test_what_is_no_result_does_not_resolve(case: Case) -> None:
    reference = await result_values.build_keep(
        case.store, tenant_id=TENANT, organization_id=ORGANIZATION
    )(b"{no json", media_type="application/json")
    with pytest.raises(PayloadUnreadable):
        await result_values.load_result(
            result_values.build_load(case.store), ResultEnvelope(status="ok", reference=reference)
        )
