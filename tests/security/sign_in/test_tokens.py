"""Tokens prove whom a trusted issuer names to this server, and nothing else does."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc.jwk import OctKey, RSAKey
from msgspec import structs
from tests.support.identity_provider import (
    AUDIENCE,
    CLI,
    ROBOT,
    WEB,
    IdentityProvider,
    a_key,
    identity_provider,
)
from tests.support.polling import PATIENCE_S
from tests.support.signing_in import Site, a_silent_site
from tests.support.site import Site as WebSite
from tests.support.site import serving

from noetl_planner.identity.openid import token_verifier
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused
from noetl_planner.identity.openid.token_claims import PrincipalKind


@pytest.fixture
async def site(provider: IdentityProvider, planner_url: str) -> AsyncIterator[Site]:
    async with a_silent_site(provider, planner_url) as opened:
        yield opened


async def refuse(site: Site, token: str) -> RefusalCode:
    """Verify a token that must be refused."""
    with pytest.raises(TokenRefused) as refused:
        await site.sign_in.verifier.verify_token(token)
    assert refused.value.hint
    assert token not in refused.value.detail
    return refused.value.code


def encode(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign_by_hand(header: Any, payload: Any, signature: bytes = b"") -> str:
    return f"{encode(header)}.{encode(payload)}.{encode(signature)}"


async def test_a_token_of_our_command_line_proves_a_person(
    site: Site, provider: IdentityProvider
) -> None:
    person = await site.sign_in.verifier.verify_token(provider.forge(groups=["a", "b", "a"]))
    assert person.kind is PrincipalKind.PERSON
    assert (person.issuer, person.subject, person.name) == (provider.issuer, "ann", "Ann")
    assert person.groups == ("a", "b")


async def test_a_program_signs_in_by_itself(site: Site, provider: IdentityProvider) -> None:
    token = provider.ask_client_token()
    person = await site.sign_in.verifier.verify_token(token)
    assert person.kind is PrincipalKind.SERVICE_ACCOUNT
    assert (person.subject, person.client_id, person.groups) == (ROBOT, ROBOT, ())


async def test_a_program_with_a_token_for_another_api_is_refused(
    site: Site, provider: IdentityProvider
) -> None:
    token = provider.ask_client_token("https://other.example.org/api")
    assert await refuse(site, token) is RefusalCode.TOKEN_AUDIENCE


@pytest.mark.parametrize(
    ("claims", "kind"),
    [
        ({"sub": "robot", "client_id": "robot"}, PrincipalKind.SERVICE_ACCOUNT),
        ({"sub": "robot", "cid": "robot"}, PrincipalKind.SERVICE_ACCOUNT),
        (
            {"sub": "7", "azp": "robot", "preferred_username": "service-account-robot"},
            PrincipalKind.SERVICE_ACCOUNT,
        ),
        ({"sub": "robot@clients", "gty": "client-credentials"}, PrincipalKind.SERVICE_ACCOUNT),
        ({"sub": "7", "idtyp": "app"}, PrincipalKind.SERVICE_ACCOUNT),
        ({"sub": "system:serviceaccount:etl:loader"}, PrincipalKind.SERVICE_ACCOUNT),
        ({"sub": "ann", "client_id": "robot"}, PrincipalKind.PERSON),
        ({"sub": "7", "azp": "a", "preferred_username": "service-account-b"}, PrincipalKind.PERSON),
    ],
)
async def test_a_program_is_told_from_a_person(
    site: Site, provider: IdentityProvider, claims: dict[str, Any], kind: PrincipalKind
) -> None:
    token = provider.forge({"typ": "at+jwt"}, aud=AUDIENCE, **claims)
    assert (await site.sign_in.verifier.verify_token(token)).kind is kind


SOON = 2_000_000_000
CLAIMS: list[tuple[dict[str, Any], RefusalCode]] = [
    ({"iss": "https://evil.example.org"}, RefusalCode.TOKEN_ISSUER),
    ({"iss": "HTTP://127.0.0.1"}, RefusalCode.TOKEN_ISSUER),
    ({"aud": "somebody"}, RefusalCode.TOKEN_AUDIENCE),
    ({"aud": ["somebody", "else"]}, RefusalCode.TOKEN_AUDIENCE),
    ({"aud": f"{AUDIENCE}/"}, RefusalCode.TOKEN_AUDIENCE),
    # An ID token of ours that was given to another program.
    ({"aud": [CLI, "other"], "azp": "other"}, RefusalCode.TOKEN_AUDIENCE),
    ({"aud": []}, RefusalCode.TOKEN_AUDIENCE),
    ({"aud": None}, RefusalCode.TOKEN_MALFORMED),
    ({"aud": {CLI: True}}, RefusalCode.TOKEN_MALFORMED),
    ({"exp": 1}, RefusalCode.TOKEN_EXPIRED),
    ({"exp": None}, RefusalCode.TOKEN_MALFORMED),
    ({"exp": "2000000000"}, RefusalCode.TOKEN_MALFORMED),
    ({"exp": True}, RefusalCode.TOKEN_MALFORMED),
    ({"exp": 1e300}, RefusalCode.TOKEN_MALFORMED),
    ({"exp": -1}, RefusalCode.TOKEN_MALFORMED),
    ({"nbf": SOON, "exp": SOON}, RefusalCode.TOKEN_NOT_YET_VALID),
    ({"iat": SOON, "exp": SOON}, RefusalCode.TOKEN_NOT_YET_VALID),
    ({"sub": None}, RefusalCode.TOKEN_MALFORMED),
    ({"sub": ""}, RefusalCode.TOKEN_MALFORMED),
    ({"sub": 7}, RefusalCode.TOKEN_MALFORMED),
    ({"sub": "a" * 2000}, RefusalCode.TOKEN_MALFORMED),
    ({"groups": [{"name": "admins"}]}, RefusalCode.TOKEN_MALFORMED),
    ({"groups": {"admins": True}}, RefusalCode.TOKEN_MALFORMED),
    # A notice that somebody signed out names a person and our program too.
    (
        {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
        RefusalCode.TOKEN_TYPE,
    ),
]


@pytest.mark.parametrize(("changes", "code"), CLAIMS)
async def test_claims_that_prove_nothing_here(
    site: Site, provider: IdentityProvider, changes: dict[str, Any], code: RefusalCode
) -> None:
    assert await refuse(site, provider.forge(**changes)) is code


async def test_a_minute_of_skew_is_forgiven_and_no_more(
    site: Site, provider: IdentityProvider
) -> None:
    now = site.clock.now().timestamp()
    for forgiven in ({"exp": now - 50}, {"nbf": now + 50}, {"iat": now + 50}):
        await site.sign_in.verifier.verify_token(provider.forge(**forgiven))
    assert await refuse(site, provider.forge(exp=now - 61)) is RefusalCode.TOKEN_EXPIRED
    assert await refuse(site, provider.forge(nbf=now + 70)) is RefusalCode.TOKEN_NOT_YET_VALID


async def test_a_token_ends_though_it_was_verified_before(
    site: Site, provider: IdentityProvider
) -> None:
    token = provider.forge()
    await site.sign_in.verifier.verify_token(token)
    site.clock.ahead_s = 361
    assert await refuse(site, token) is RefusalCode.TOKEN_EXPIRED


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", "HS256", "RS1", "RS384"])
async def test_an_algorithm_that_is_not_on_the_list_is_refused(
    site: Site, provider: IdentityProvider, name: str
) -> None:
    header = {"alg": name, "kid": provider.key.kid}
    for signature in (b"", b"x" * 256):
        token = sign_by_hand(header, provider.claims(), signature)
        assert await refuse(site, token) is RefusalCode.TOKEN_ALGORITHM
    for algorithm in (None, 7, ["RS256"]):
        token = sign_by_hand({**header, "alg": algorithm}, provider.claims())
        assert await refuse(site, token) in {
            RefusalCode.TOKEN_ALGORITHM,
            RefusalCode.TOKEN_MALFORMED,
        }


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_public_key_is_no_shared_secret(
    site: Site, provider: IdentityProvider, algorithm: str
) -> None:
    """Key confusion: the attacker signs by HMAC with what everybody may know."""
    public = provider.key.public_key  # type: ignore[union-attr]  # an RSA key
    spellings = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(provider.key.as_dict(private=False)).encode(),
    ]
    for secret in spellings:
        # The library refuses to take a public key for a secret; the attacker's does not.
        key = OctKey.import_key(base64.urlsafe_b64encode(secret).decode())
        token = provider.forge({"alg": algorithm}, key=key)
        assert await refuse(site, token) is RefusalCode.TOKEN_ALGORITHM


async def test_a_key_verifies_its_own_algorithm_alone(
    site: Site, provider: IdentityProvider
) -> None:
    await site.sign_in.verifier.verify_token(provider.forge())
    curve = a_key("k1", "ES256")
    token = provider.forge({"alg": "ES256"}, key=curve)
    assert await refuse(site, token) is RefusalCode.TOKEN_UNKNOWN_KEY
    # The key is published for RS256.
    token = sign_by_hand({"alg": "PS256", "kid": "k1"}, provider.claims(), b"x" * 256)
    assert await refuse(site, token) is RefusalCode.TOKEN_UNKNOWN_KEY


@pytest.mark.parametrize("kind", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_each_allowed_algorithm_signs(
    site: Site, provider: IdentityProvider, kind: str
) -> None:
    # The provider itself needs a key for RS256.
    provider.replace_keys(a_key("k2", kind), a_key("k3"))
    person = await site.sign_in.verifier.verify_token(provider.forge({"alg": kind}))
    assert person.subject == "ann"


@pytest.mark.parametrize(
    "key_id",
    [
        "../../../../dev/null",
        "/dev/null",
        "k1' or '1'='1",
        "k1\x00",
        "K1",
        " k1",
        "http://127.0.0.1/key",
        "",
        "0",
    ],
)
async def test_a_key_that_nobody_published_is_refused(
    site: Site, provider: IdentityProvider, key_id: str
) -> None:
    for key in (provider.key, a_key("k1")):
        token = provider.forge({"kid": key_id}, key=key)
        assert await refuse(site, token) is RefusalCode.TOKEN_UNKNOWN_KEY


@pytest.mark.parametrize("key_id", [["k1"], {"k1": 1}, 1, "k" * 300, True])
async def test_a_key_without_a_name_is_refused(
    site: Site, provider: IdentityProvider, key_id: Any
) -> None:
    token = sign_by_hand({"alg": "RS256", "kid": key_id}, provider.claims(), b"x" * 256)
    assert await refuse(site, token) is RefusalCode.TOKEN_MALFORMED


async def test_a_token_without_a_key_id_needs_a_single_key(
    site: Site, provider: IdentityProvider
) -> None:
    token = provider.forge({"kid": None})
    assert (await site.sign_in.verifier.verify_token(token)).subject == "ann"
    provider.replace_keys(provider.key, a_key("k2"))
    site.clock.ahead_s = 601
    token = provider.forge({"kid": None}, exp=int(site.clock.now().timestamp()) + 60)
    assert await refuse(site, token) is RefusalCode.TOKEN_UNKNOWN_KEY


@pytest.fixture
def attackers_site() -> Any:
    with serving() as opened:
        yield opened


@pytest.mark.parametrize("name", ["jku", "x5u", "jwk", "x5c", "x5t", "cty"])
async def test_what_a_header_brings_along_is_not_looked_at(
    site: Site, provider: IdentityProvider, attackers_site: WebSite, name: str
) -> None:
    evil = a_key("k1")
    brought: dict[str, Any] = {
        "jku": f"{attackers_site.url}/count/jku",
        "x5u": f"{attackers_site.url}/count/x5u",
        "jwk": evil.as_dict(private=False),
        "x5c": [encode(b"no certificate")],
        "x5t": "digest",
        "cty": "JWT",
    }
    forged = provider.forge({name: brought[name]}, key=evil)
    assert await refuse(site, forged) is RefusalCode.TOKEN_SIGNATURE
    assert not attackers_site.calls
    # The same header over an honest signature does no harm.
    honest = provider.forge({name: brought[name]})
    assert (await site.sign_in.verifier.verify_token(honest)).subject == "ann"
    assert not attackers_site.calls


@pytest.mark.parametrize("extension", [{"crit": ["exp"], "exp": 1}, {"b64": False}, {"crit": []}])
async def test_an_extension_that_changes_the_form_is_refused(
    site: Site, provider: IdentityProvider, extension: dict[str, Any]
) -> None:
    token = sign_by_hand({"alg": "RS256", "kid": "k1", **extension}, provider.claims(), b"x" * 256)
    assert await refuse(site, token) is RefusalCode.TOKEN_MALFORMED


@pytest.mark.parametrize("kind", ["logout+jwt", "secevent+jwt", "dpop+jwt", "JWE", "at+jwt "])
async def test_another_kind_of_token_is_refused(
    site: Site, provider: IdentityProvider, kind: str
) -> None:
    assert await refuse(site, provider.forge({"typ": kind})) is RefusalCode.TOKEN_TYPE


async def test_a_changed_token_is_refused(site: Site, provider: IdentityProvider) -> None:
    head, _, signature = provider.forge().split(".")
    payload = encode(provider.claims(sub="bob"))
    for token in (f"{head}.{payload}.{signature}", f"{head}.{payload}.", f"{head}.{payload}.AAAA"):
        assert await refuse(site, token) is RefusalCode.TOKEN_SIGNATURE
    other = provider.forge(key=a_key("k1"))
    assert await refuse(site, other) is RefusalCode.TOKEN_SIGNATURE


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "a.b.c.d.e",
        "é.é.é",
        sign_by_hand([], {}),
        sign_by_hand({}, {}),
        sign_by_hand({"alg": "RS256"}, []),
        sign_by_hand({"alg": "RS256"}, b"[" * 9000),
        sign_by_hand({"alg": "RS256"}, b'{"iss":' + b"[" * 9000),
        sign_by_hand({"alg": "RS256"}, b"\xff\xfe"),
        sign_by_hand(b"[" * 3000, {}),
        sign_by_hand(b"\xff", {}),
    ],
)
async def test_what_is_no_token_is_refused(site: Site, token: str) -> None:
    assert await refuse(site, token or "x") is RefusalCode.TOKEN_MALFORMED


async def test_a_token_that_is_too_large_is_refused(site: Site, provider: IdentityProvider) -> None:
    fits = provider.forge(groups=[f"group-{place}" for place in range(700)])
    assert len(fits) < token_verifier.TOKEN_BYTES_MAX
    assert len((await site.sign_in.verifier.verify_token(fits)).groups) == 700
    large = provider.forge(padding="a" * 20_000)
    assert await refuse(site, large) is RefusalCode.TOKEN_TOO_LARGE


async def test_rotated_keys_are_fetched_and_old_ones_end(
    site: Site, provider: IdentityProvider
) -> None:
    old = provider.forge()
    verifier = site.sign_in.verifier
    await verifier.verify_token(old)
    provider.replace_keys(a_key("k2"))
    new = provider.forge()
    # The keys were fetched less than 30 s ago.
    assert await refuse(site, new) is RefusalCode.TOKEN_UNKNOWN_KEY
    assert (await verifier.verify_token(old)).subject == "ann"
    site.clock.ahead_s = 31
    assert (await verifier.verify_token(new)).subject == "ann"
    assert await refuse(site, old) is RefusalCode.TOKEN_UNKNOWN_KEY


async def test_a_key_that_was_withdrawn_ends_within_ten_minutes(
    site: Site, provider: IdentityProvider
) -> None:
    far = int(site.clock.now().timestamp()) + 3600
    stolen = provider.forge(exp=far)
    await site.sign_in.verifier.verify_token(stolen)
    provider.replace_keys(a_key("k2"))
    site.clock.ahead_s = 601
    assert await refuse(site, stolen) is RefusalCode.TOKEN_UNKNOWN_KEY


async def test_unknown_keys_make_nobody_ask_the_provider_without_end(
    site: Site, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    fetch_key_set = site.sign_in.provider.fetch_key_set

    async def count() -> list[dict[str, Any]]:
        nonlocal asked
        asked += 1
        return await fetch_key_set()

    monkeypatch.setattr(site.sign_in.provider, "fetch_key_set", count)
    for place in range(50):
        await refuse(site, provider.forge({"kid": f"unknown {place}"}))
    assert asked == 1
    site.clock.ahead_s = 31
    for place in range(50):
        await refuse(site, provider.forge({"kid": f"unknown {place}"}))
    assert asked == 2


async def test_keys_outlive_a_provider_that_is_away_for_an_hour(planner_url: str) -> None:
    with identity_provider(planner_url) as short_lived:
        async with a_silent_site(short_lived, planner_url) as site:
            far = int(site.clock.now().timestamp()) + 7200
            tokens = [short_lived.forge(exp=far, jti=str(place)) for place in range(3)]
            await site.sign_in.verifier.verify_token(tokens[0])
            short_lived.stop()
            site.clock.ahead_s = 1200
            assert (await site.sign_in.verifier.verify_token(tokens[1])).subject == "ann"
            site.clock.ahead_s = 3700
            assert await refuse(site, tokens[2]) is RefusalCode.PROVIDER_UNREACHABLE
            assert await refuse(site, tokens[0]) is RefusalCode.PROVIDER_UNREACHABLE


async def test_a_slow_provider_holds_up_one_request_alone(
    site: Site, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = int(site.clock.now().timestamp()) + 3600
    first, second = (provider.forge(exp=far, jti=str(place)) for place in range(2))
    verifier, is_asked = site.sign_in.verifier, asyncio.Event()
    await verifier.verify_token(first)

    async def never() -> list[dict[str, Any]]:
        is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(site.sign_in.provider, "fetch_key_set", never)
    site.clock.ahead_s = 601
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(verifier.verify_token(first))
        await is_asked.wait()
        assert (await verifier.verify_token(second)).subject == "ann"
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.parametrize(
    "name",
    [
        *("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"),
        *("end_session_endpoint", "device_authorization_endpoint"),
    ],
)
@pytest.mark.parametrize("address", ["http://evil.example.org/x", "javascript:alert(1)", ""])
async def test_an_endpoint_that_others_read_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, address: str
) -> None:
    provider = site.sign_in.provider
    read_json = provider._read_json

    async def read_changed(place: str, kind: Any, **options: Any) -> Any:
        return structs.replace(await read_json(place, kind, **options), **{name: address})

    monkeypatch.setattr(provider, "_read_json", read_changed)
    with pytest.raises(TokenRefused) as refused:
        await provider.get_metadata()
    assert refused.value.code is RefusalCode.PROVIDER_MALFORMED


@pytest.mark.filterwarnings("ignore:Key size should be")
async def test_a_weak_key_verifies_nothing(site: Site, provider: IdentityProvider) -> None:
    weak = RSAKey.generate_key(1024, {"use": "sig", "alg": "RS256", "kid": "weak"})
    provider.replace_keys(weak, a_key("k2"))
    assert await refuse(site, provider.forge()) is RefusalCode.TOKEN_UNKNOWN_KEY
    strong = provider.forge({"kid": "k2"}, key=provider.keys[1])
    assert (await site.sign_in.verifier.verify_token(strong)).subject == "ann"


async def test_an_issuer_for_programs_signs_in_nobody_else(
    provider: IdentityProvider, planner_url: str
) -> None:
    with identity_provider(planner_url) as cluster:
        async with a_silent_site(
            provider, planner_url, oidc_token_issuers=(cluster.issuer,)
        ) as site:
            person = await site.sign_in.verifier.verify_token(cluster.ask_client_token())
            assert (person.issuer, person.kind) == (
                cluster.issuer,
                PrincipalKind.SERVICE_ACCOUNT,
            )
            for client in (CLI, WEB):
                token = cluster.forge(aud=client)
                assert await refuse(site, token) is RefusalCode.TOKEN_AUDIENCE
            # Its keys are its own: it signs for no other issuer.
            crossed = cluster.forge(iss=provider.issuer)
            assert await refuse(site, crossed) is RefusalCode.TOKEN_SIGNATURE


async def test_groups_are_found_below_a_path(provider: IdentityProvider, planner_url: str) -> None:
    async with a_silent_site(provider, planner_url, oidc_groups_claim="realm_access.roles") as site:
        token = provider.forge(realm_access={"roles": ["author"]})
        assert (await site.sign_in.verifier.verify_token(token)).groups == ("author",)
        token = provider.forge(**{"realm_access.roles": "viewer"})
        assert (await site.sign_in.verifier.verify_token(token)).groups == ("viewer",)
        assert (await site.sign_in.verifier.verify_token(provider.forge())).groups == ()


async def test_verified_tokens_are_remembered_up_to_a_number(
    site: Site, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = site.sign_in.verifier
    monkeypatch.setattr(verifier._verified_by_digest, "_entries_max", 2)
    for place in range(5):
        await verifier.verify_token(provider.forge(jti=str(place)))
    assert len(verifier._verified_by_digest) == 2
