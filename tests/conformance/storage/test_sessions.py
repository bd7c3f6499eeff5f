"""Sessions of people over every adapter."""

from datetime import timedelta

from msgspec import structs
from tests.support.storage import NOON, Stores

from noetl_contracts.identity.role_bindings import Session

ANN = Session(
    session_hash="a" * 64,
    issuer="https://id.example.org",
    subject="ann",
    name="Ann",
    email="ann@example.org",
    groups=("operators", "west coast"),
    created_at=NOON,
    expires_at=NOON + timedelta(hours=12),
)
LATER = NOON + timedelta(hours=1)


async def test_a_session_is_found_as_it_was_kept(stores: Stores) -> None:
    assert await stores.sessions.find_session(ANN.session_hash, now=LATER) is None
    await stores.sessions.put_session(ANN)
    assert await stores.sessions.find_session(ANN.session_hash, now=LATER) == ANN
    assert await stores.sessions.find_session("b" * 64, now=LATER) is None


async def test_a_session_is_over_at_its_end(stores: Stores) -> None:
    await stores.sessions.put_session(ANN)
    assert await stores.sessions.find_session(ANN.session_hash, now=ANN.expires_at) is None


async def test_a_revoked_session_is_not_found_and_is_revoked_once(stores: Stores) -> None:
    await stores.sessions.put_session(ANN)
    assert await stores.sessions.revoke_session(ANN.session_hash, now=LATER)
    assert not await stores.sessions.revoke_session(ANN.session_hash, now=LATER)
    assert await stores.sessions.find_session(ANN.session_hash, now=LATER) is None


async def test_all_sessions_of_a_person_end_and_no_others(stores: Stores) -> None:
    other_issuer = structs.replace(ANN, session_hash="c" * 64, issuer="https://other.example.org")
    other_person = structs.replace(ANN, session_hash="d" * 64, subject="bob")
    second = structs.replace(ANN, session_hash="b" * 64)
    for session in (ANN, second, other_issuer, other_person):
        await stores.sessions.put_session(session)
    assert await stores.sessions.revoke_person_sessions(ANN.issuer, "ann", now=LATER) == 2
    assert await stores.sessions.revoke_person_sessions(ANN.issuer, "ann", now=LATER) == 0
    for session in (other_issuer, other_person):
        assert await stores.sessions.find_session(session.session_hash, now=LATER) == session


async def test_sessions_that_are_over_are_removed_the_oldest_first(stores: Stores) -> None:
    second = structs.replace(
        ANN, session_hash="b" * 64, expires_at=ANN.expires_at + timedelta(hours=1)
    )
    for session in (second, ANN):
        await stores.sessions.put_session(session)
    assert await stores.sessions.forget_sessions(before=LATER, sessions_max=9) == 0
    assert await stores.sessions.forget_sessions(before=second.expires_at, sessions_max=1) == 1
    assert await stores.sessions.find_session(second.session_hash, now=LATER) == second
    assert await stores.sessions.find_session(ANN.session_hash, now=LATER) is None
