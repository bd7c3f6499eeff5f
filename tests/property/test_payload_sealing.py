import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl_chassis.seals.credential_seal import KeyUnusable
from noetl_chassis.seals.payload_seal import (
    MAGIC,
    PIECE_BYTES,
    KeyRing,
    PayloadSeals,
    read_payload_keys,
)
from noetl_contracts.errors import PayloadKeyUnknown, PayloadSealBroken
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.ports.payload_ports import SEAL_MAGIC, ObjectSeals, Owner

ACME = Owner(tenant_id=TenantId("acme"), organization_id=OrganizationId("west"))
OTHER = Owner(tenant_id=TenantId("other"), organization_id=OrganizationId("west"))
OLD, NEW = os.urandom(32), os.urandom(32)
SEALS = PayloadSeals(KeyRing({"old": OLD}))
TURNED = PayloadSeals(KeyRing({"new": NEW, "old": OLD}))

# Around the bounds of one piece and of two.
LENGTHS = st.one_of(
    st.integers(0, 200),
    *(st.integers(n * PIECE_BYTES - 20, n * PIECE_BYTES + 20) for n in (1, 2)),
)


def sealed(seals: ObjectSeals, data: bytes, *, owner: Owner = ACME, name: str = "") -> bytes:
    sealing = seals.start_sealing(owner, name)
    return sealing.seal_bytes(data) + sealing.finish_sealing()


def opened(seals: ObjectSeals, data: bytes, *, owner: Owner = ACME, name: str = "") -> bytes:
    opening = seals.start_unsealing(owner, name)
    return opening.unseal_bytes(data) + opening.finish_unsealing()


@settings(max_examples=60)
@given(length=LENGTHS, cuts=st.lists(st.integers(7, 70_000), min_size=1, max_size=4))
def test_what_is_sealed_in_any_pieces_opens_in_any_pieces(length: int, cuts: list[int]) -> None:
    data = os.urandom(length)
    sealing, opening = SEALS.start_sealing(ACME, ""), SEALS.start_unsealing(ACME, "")
    written, place = b"", 0
    while place < len(data):
        cut = cuts[place % len(cuts)]
        written += sealing.seal_bytes(data[place : place + cut])
        place += cut
    written += sealing.finish_sealing()
    assert len(data) < 16 or data[:16] not in written

    read, place = b"", 0
    while place < len(written):
        cut = cuts[-1]
        read += opening.unseal_bytes(written[place : place + cut])
        place += cut
    assert read + opening.finish_unsealing() == data


@settings(max_examples=150)
@given(data=st.data(), length=LENGTHS)
def test_a_changed_cut_or_lengthened_object_never_opens(data: st.DataObject, length: int) -> None:
    written = bytearray(sealed(SEALS, os.urandom(length)))
    place = data.draw(st.integers(len(MAGIC), len(written) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "add", "cut a piece"])):
        case "flip":
            written[place] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del written[place:]
        case "add":
            written += b"x" * data.draw(st.sampled_from([1, PIECE_BYTES, PIECE_BYTES + 16]))
        case _:
            del written[place : place + PIECE_BYTES + 16]
    with pytest.raises((PayloadSealBroken, PayloadKeyUnknown)):
        opened(SEALS, bytes(written))


def test_pieces_do_not_change_their_order() -> None:
    written = sealed(SEALS, os.urandom(3 * PIECE_BYTES))
    whole = PIECE_BYTES + 16
    start = len(written) - 3 * whole
    swapped = (
        written[:start]
        + written[start + whole : start + 2 * whole]
        + written[start : start + whole]
        + written[start + 2 * whole :]
    )
    with pytest.raises(PayloadSealBroken, match="piece 0"):
        opened(SEALS, swapped)


@pytest.mark.parametrize(("owner", "name"), [(OTHER, "n"), (ACME, "m"), (ACME, "")])
def test_an_object_opens_only_at_its_place(owner: Owner, name: str) -> None:
    written = sealed(SEALS, b"secret", name="n")
    assert opened(SEALS, written, name="n") == b"secret"
    with pytest.raises(PayloadSealBroken):
        opened(SEALS, written, owner=owner, name=name)


def test_the_same_content_is_never_sealed_alike() -> None:
    assert sealed(SEALS, b"same") != sealed(SEALS, b"same")


def test_turning_a_key_rewrites_the_head_alone() -> None:
    data = os.urandom(PIECE_BYTES + 5)
    written = sealed(SEALS, data)
    length, head = TURNED.reseal_head(ACME, "", written)
    assert head is not None
    turned = head + written[length:]

    assert opened(TURNED, turned) == data
    assert TURNED.reseal_head(ACME, "", turned) == (len(head), None)
    with pytest.raises(PayloadKeyUnknown, match=r"'new'.*'old'.*rotate"):
        opened(SEALS, turned)


def test_keys_are_read_newest_first_and_never_shown() -> None:
    text = "n-2:" + "A" * 43 + "=,n-1:" + "B" * 42 + "A="
    seals = read_payload_keys(text, file="")
    assert seals is not None
    assert seals.start_sealing(ACME, "").key_id == "n-2"
    assert "AAAA" not in repr(seals) + repr(vars(seals))
    assert read_payload_keys("", file="") is None


@pytest.mark.parametrize(
    "text", ["k", ":" + "A" * 43 + "=", "k:short", "a b:" + "A" * 43 + "=", "é:" + "A" * 43 + "=",
             "k:" + "A" * 43 + "=,k:" + "B" * 42 + "A=", "k:%%%"]
)  # fmt: skip
def test_a_key_that_is_none_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(KeyUnusable) as refused:
        read_payload_keys(text, file="")
    assert "AAAA" not in str(refused.value)


def test_both_sides_know_a_sealed_object_by_the_same_word() -> None:
    assert MAGIC == SEAL_MAGIC
