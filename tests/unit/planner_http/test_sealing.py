"""Credentials at rest open with their key, in their place, and nowhere else."""

import base64
from typing import Any

import pytest
from msgspec import structs
from tests.support.api import SECRET_KEY

from noetl_chassis.seals.credential_seal import CredentialSealer, KeyUnusable, SealBroken
from noetl_contracts.credentials import SealedCredential
from noetl_contracts.ids import OrganizationId, TenantId

FIELDS: dict[str, Any] = {"user": "u", "password": "p4ssw0rd", "port": 5432}
PLACE: dict[str, Any] = {"tenant_id": TenantId("t"), "organization_id": OrganizationId("o")}


def seal(sealer: CredentialSealer) -> SealedCredential:
    return sealer.seal_credential(FIELDS, name="db", version=1, kind="postgres", **PLACE)


def test_what_was_sealed_opens_in_its_place() -> None:
    sealer = CredentialSealer(SECRET_KEY)
    assert sealer.open_credential(seal(sealer), **PLACE) == FIELDS


def test_the_same_fields_never_look_the_same() -> None:
    sealer = CredentialSealer(SECRET_KEY)
    assert seal(sealer).ciphertext != seal(sealer).ciphertext


@pytest.mark.parametrize("change", [{"name": "other"}, {"version": 2}, {"nonce": "AAAA"}])
def test_a_sealed_value_cannot_be_moved(change: dict[str, Any]) -> None:
    sealer = CredentialSealer(SECRET_KEY)
    with pytest.raises(SealBroken, match="put it again"):
        sealer.open_credential(structs.replace(seal(sealer), **change), **PLACE)


def test_a_sealed_value_does_not_open_for_another_tenant_or_key() -> None:
    sealer, other = (
        CredentialSealer(SECRET_KEY),
        CredentialSealer(base64.b64encode(b"x" * 32).decode()),
    )
    with pytest.raises(SealBroken):
        sealer.open_credential(seal(sealer), **{**PLACE, "tenant_id": TenantId("z")})
    with pytest.raises(SealBroken) as error_info:
        other.open_credential(seal(sealer), **PLACE)
    assert sealer.key_id in str(error_info.value)
    assert "p4ssw0rd" not in str(error_info.value)


@pytest.mark.parametrize("key", ["", "short", "!!!", base64.b64encode(b"x" * 31).decode()])
def test_an_unusable_key_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(KeyUnusable) as error_info:
        CredentialSealer(key)
    assert not key or key not in str(error_info.value)
