"""Tenants' keys under master keys that somebody else holds: this machine, or AWS KMS."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber

from noetl_chassis.seals.credential_seal import KeyUnusable
from noetl_chassis.seals.key_management import KeyManagement, LocalKeyManagement, ManagedKeys
from noetl_chassis.seals.payload_seal import PayloadSeals, read_payload_keys
from noetl_contracts.errors import PayloadKeyUnknown, PayloadSealBroken
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.aws_keys import AwsKeys, open_keys
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import PayloadCorrupt, StorageMisconfigured, StorageUnavailable
from noetl_storage.ports.payload_ports import Owner

PLACE: dict[str, Any] = {"tenant_id": TenantId("acme"), "organization_id": OrganizationId("west")}
OWNER = Owner(**PLACE)
OTHER = Owner(tenant_id=TenantId("other"), organization_id=OrganizationId("west"))
CONTEXT = {"noetl:tenant": "acme", "noetl:organization": "west"}
ONE, TWO = bytes(32), bytes([1]) * 32
ALIAS = "alias/noetl"


class Counting:
    """Key management that counts how often it is asked."""

    def __init__(self, inner: KeyManagement) -> None:
        self._inner = inner
        self.wrapped = self.unwrapped = 0

    def get_key_id(self) -> str:
        return self._inner.get_key_id()

    def wrap_key(self, key: bytes, context: Mapping[str, str]) -> bytes:
        self.wrapped += 1
        return self._inner.wrap_key(key, context)

    def unwrap_key(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        self.unwrapped += 1
        return self._inner.unwrap_key(key_id, wrapped, context)


async def test_many_objects_of_a_tenant_cost_one_call_each_way() -> None:
    asked = Counting(LocalKeyManagement({"k1": ONE}))
    store = MemoryPayloads(seals=PayloadSeals(ManagedKeys(asked)))
    refs = [await store.put_payload(b"%d" % n, media_type="text/plain", **PLACE) for n in range(50)]
    await store.put_payload(
        b"0", media_type="text/plain", tenant_id="other", organization_id="west"
    )
    assert {ref.key_id for ref in refs} == {"k1"}
    assert (asked.wrapped, asked.unwrapped) == (2, 0)
    # A process that starts anew opens what this one sealed.
    later = Counting(LocalKeyManagement({"k1": ONE}))
    reader = MemoryPayloads(seals=PayloadSeals(ManagedKeys(later)))
    reader._objects = store._objects
    assert [await reader.read_payload(ref) for ref in refs] == [b"%d" % n for n in range(50)]
    assert (later.wrapped, later.unwrapped) == (0, 1)
    assert all(b"0" not in data[:8] for data in store._objects.bytes_by_key.values())


async def test_turning_the_master_key_rewrites_heads_alone() -> None:
    store = MemoryPayloads(seals=PayloadSeals(ManagedKeys(LocalKeyManagement({"old": ONE}))))
    ref = await store.put_payload(b"content" * 1000, media_type="text/plain", **PLACE)
    turned = MemoryPayloads(
        seals=PayloadSeals(ManagedKeys(LocalKeyManagement({"new": TWO, "old": ONE})))
    )
    turned._objects = store._objects
    assert await turned.reseal_owner(OWNER) == (1, 0)
    assert await turned.reseal_owner(OWNER) == (0, 1)
    only_new = MemoryPayloads(seals=PayloadSeals(ManagedKeys(LocalKeyManagement({"new": TWO}))))
    only_new._objects = store._objects
    assert await only_new.read_payload(ref) == b"content" * 1000
    only_old = MemoryPayloads(seals=PayloadSeals(ManagedKeys(LocalKeyManagement({"old": ONE}))))
    only_old._objects = store._objects
    with pytest.raises(PayloadKeyUnknown, match=r"'new'.*'old'"):
        await only_old.read_payload(ref)
    wrong = MemoryPayloads(seals=PayloadSeals(ManagedKeys(LocalKeyManagement({"new": ONE}))))
    wrong._objects = store._objects
    with pytest.raises(PayloadCorrupt):
        await wrong.read_payload(ref)


async def test_while_keys_move_both_kinds_open_and_one_seals(tmp_path: Path) -> None:
    before, master = tmp_path / "before", tmp_path / "master"
    before.write_text(f"old:{base64.b64encode(ONE).decode()}")
    master.write_text(f"new:{base64.b64encode(TWO).decode()}")
    store = MemoryPayloads(seals=read_payload_keys("", file=str(before)))
    ref = await store.put_payload(b"from before", media_type="text/plain", **PLACE)
    both = MemoryPayloads(seals=read_payload_keys(f"kms+file://{master}", file=str(before)))
    both._objects = store._objects
    assert await both.read_payload(ref) == b"from before"
    later = await both.put_payload(b"from now on", media_type="text/plain", **PLACE)
    assert (ref.key_id, later.key_id) == ("old", "new")
    assert await both.reseal_owner(OWNER) == (1, 1)
    only_new = MemoryPayloads(seals=read_payload_keys(f"kms+file://{master}", file=""))
    only_new._objects = store._objects
    assert await only_new.read_payload(ref) == b"from before"
    assert await only_new.read_payload(later) == b"from now on"


def test_a_key_opens_for_its_tenant_and_its_place_alone() -> None:
    keys = ManagedKeys(LocalKeyManagement({"k1": ONE}))
    wrapped = keys.wrap_key(OWNER, TWO, b"here")
    assert keys.unwrap_key(OWNER, "k1", wrapped, b"here") == TWO
    for owner, place in ((OTHER, b"here"), (OWNER, b"there")):
        with pytest.raises(PayloadSealBroken):
            keys.unwrap_key(owner, "k1", wrapped, place)
    for end in range(0, len(wrapped), 7):
        with pytest.raises(PayloadSealBroken):
            keys.unwrap_key(OWNER, "k1", wrapped[:end], b"here")


def test_an_address_names_who_holds_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# newest first\nk2:{base64.b64encode(TWO).decode()}\n")
    seals = read_payload_keys(f"kms+file://{file}", file="", managed=master_keys.open_managed_keys)
    assert seals is not None
    assert seals.start_sealing(OWNER, "").key_id == "k2"
    aws = master_keys.open_managed_keys(f"kms+aws://eu-west-1/{ALIAS}?endpoint=http://127.0.0.1:1")
    assert aws.get_key_id() == ALIAS
    file.write_text("# none\n")
    for address in (f"kms+file://{file}", "kms+file:///no/such/file", "kms+aws://eu/x"):
        with pytest.raises(KeyUnusable):
            read_payload_keys(address, file="")
    for address in ("kms+vault://x/y", "kms+aws://eu-west-1", "kms+aws:///key"):
        with pytest.raises(StorageMisconfigured):
            read_payload_keys(address, file="", managed=master_keys.open_managed_keys)


@pytest.fixture
def client() -> Any:
    session = botocore.session.get_session()
    return session.create_client(
        "kms",
        region_name="eu-west-1",
        aws_access_key_id="nobody",
        aws_secret_access_key="nothing",  # noqa: S106 - no secret: nobody is asked
    )


def test_aws_wraps_and_unwraps_under_the_tenants_context(client: Any) -> None:
    with Stubber(client) as stub:
        stub.add_response(
            "encrypt",
            {"CiphertextBlob": b"wrapped", "KeyId": ALIAS},
            {"KeyId": ALIAS, "Plaintext": TWO, "EncryptionContext": CONTEXT},
        )
        stub.add_response(
            "decrypt",
            {"Plaintext": TWO, "KeyId": ALIAS},
            {"KeyId": "older", "CiphertextBlob": b"wrapped", "EncryptionContext": CONTEXT},
        )
        keys = AwsKeys(client, key=ALIAS)
        assert keys.wrap_key(TWO, CONTEXT) == b"wrapped"
        assert keys.unwrap_key("older", b"wrapped", CONTEXT) == TWO
        stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("InvalidCiphertextException", PayloadSealBroken),
        ("NotFoundException", PayloadKeyUnknown),
        ("DisabledException", PayloadKeyUnknown),
        ("AccessDeniedException", StorageMisconfigured),
        ("ThrottlingException", StorageUnavailable),
    ],
)
def test_what_aws_refuses_is_said_in_our_words(
    client: Any, code: str, raised: type[Exception]
) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("decrypt", service_error_code=code)
        with pytest.raises(raised, match="KMS"):
            AwsKeys(client, key=ALIAS).unwrap_key(ALIAS, b"wrapped", CONTEXT)


def test_aws_that_is_not_there_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    keys = open_keys(f"kms+aws://eu-west-1/{ALIAS}?endpoint=http://127.0.0.1:1")
    with pytest.raises(StorageUnavailable, match="EndpointConnectionError"):
        keys.wrap_key(TWO, CONTEXT)
