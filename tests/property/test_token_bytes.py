"""Whatever a token is made of, it proves somebody or is refused: nothing else comes of it."""

import asyncio
import base64
import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import Key, RSAKey
from joserfc.jws import JWSRegistry

from noetl_chassis.clock import SystemClock
from noetl_planner.identity.openid.oidc_provider import OidcProvider
from noetl_planner.identity.openid.refusals import TokenRefused
from noetl_planner.identity.openid.signing_keys import SigningKeys
from noetl_planner.identity.openid.token_claims import VerifiedPerson
from noetl_planner.identity.openid.token_verifier import TokenVerifier, TrustedIssuer

ISSUER, CLIENT = "https://id.example.org", "noetl-cli"
KEY = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": "k1"})


class KnownKeys(OidcProvider):
    """A provider that publishes one key, without a network."""

    def __init__(self) -> None:
        self.issuer = ISSUER

    async def fetch_key_set(self) -> list[dict[str, Any]]:
        return [KEY.as_dict(private=False)]


def verify(token: str) -> VerifiedPerson | None:
    """Return whom a token proves, or None when it is refused."""
    clock = SystemClock()
    issuer = TrustedIssuer(keys=SigningKeys(KnownKeys(), clock), client_ids=frozenset({CLIENT}))
    verifier = TokenVerifier({ISSUER: issuer}, groups_claim="a.b", clock=clock)
    try:
        return asyncio.run(verifier.verify_token(token))
    except TokenRefused as refused:
        if not refused.hint:
            raise
        return None


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(header: bytes, payload: bytes, key: Key = KEY) -> str:
    """Sign anything, also what no library signs."""
    text = f"{encode(header)}.{encode(payload)}"
    signature = JWSRegistry.algorithms["RS256"].sign(text.encode(), key)
    return f"{text}.{encode(signature)}"


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    values = {"iss": ISSUER, "sub": "ann", "aud": CLIENT, "exp": now + 600, "iat": now}
    return {**values, **changes}


HEADER = {"alg": "RS256", "kid": "k1"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
NAMES = st.sampled_from(
    [
        *("iss", "sub", "aud", "exp", "nbf", "iat", "azp", "name", "email", "events", "a", "a.b"),
        *("client_id", "preferred_username", "gty", "idtyp", "cid", "nonce"),
    ]
)
HEADER_NAMES = st.sampled_from(
    ["alg", "kid", "typ", "cty", "crit", "b64", "jwk", "jku", "x5c", "x5u", "x5t", "zip", "enc"]
)


def test_an_honest_token_proves_somebody() -> None:
    person = verify(sign(json.dumps(HEADER).encode(), json.dumps(claims()).encode()))
    assert person is not None
    assert person.subject == "ann"


@given(changes=st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
def test_claims_of_any_kind_prove_somebody_or_are_refused(changes: dict[str, Any]) -> None:
    said = claims(**changes)
    person = verify(sign(json.dumps(HEADER).encode(), json.dumps(said).encode()))
    if person is not None:
        assert (person.issuer, person.subject) == (ISSUER, said["sub"])
        audience = said["aud"]
        assert CLIENT in ([audience] if isinstance(audience, str) else audience)
        assert said["exp"] + 60 > time.time()


@given(changes=st.dictionaries(HEADER_NAMES, VALUES, min_size=1, max_size=3))
def test_headers_of_any_kind_choose_no_other_key(changes: dict[str, Any]) -> None:
    header = {**HEADER, **changes}
    person = verify(sign(json.dumps(header).encode(), json.dumps(claims()).encode()))
    if person is not None:
        assert header["alg"] == "RS256"
        assert header.get("kid") in {"k1", None}
        assert not {"crit", "b64"} & set(header)


@given(header=st.binary(max_size=60), payload=st.binary(max_size=60), end=st.binary(max_size=60))
def test_bytes_of_any_kind_are_refused(header: bytes, payload: bytes, end: bytes) -> None:
    assert verify(f"{encode(header)}.{encode(payload)}.{encode(end)}") is None
    assert verify(sign(header, payload)) is None


@given(text=st.text(max_size=200))
def test_texts_of_any_kind_are_refused(text: str) -> None:
    assert verify(text) is None


@given(data=st.data())
def test_a_token_with_one_other_character_proves_nobody_else(data: st.DataObject) -> None:
    said = claims()
    token = sign(json.dumps(HEADER).encode(), json.dumps(said).encode())
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(codec="ascii"))
    person = verify(token[:place] + other + token[place + 1 :])
    # The last character of a part has bits that mean nothing.
    assert person is None or (person.subject, person.groups) == (said["sub"], ())
