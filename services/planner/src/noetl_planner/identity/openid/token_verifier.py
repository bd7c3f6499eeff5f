"""Verifies tokens of trusted issuers: algorithm, key, signature, issuer, audience, times.

RFC 8725 says what to watch for. The header of a token chooses a key of its issuer by name, and
nothing else: addresses and keys inside a header (`jku`, `x5u`, `jwk`, `x5c`) are not looked at.
"""

from collections.abc import Mapping
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jws import CompactSignature, JWSRegistry
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_contracts.lru_cache import LruCache
from noetl_planner.identity.openid import token_claims
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused
from noetl_planner.identity.openid.signing_keys import KEY_TYPE_BY_ALGORITHM, SigningKeys
from noetl_planner.identity.openid.token_claims import TokenClaims, VerifiedPerson

TOKEN_BYTES_MAX = 16 * 1024
SKEW_S = 60.0
VERIFIED_MAX = 4096
_KEY_ID_CHARACTERS_MAX = 256
# An ID token names no type, or JWT; an access token at+jwt (RFC 9068). Others are not for us.
_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
_SIGN_IN_AGAIN = "sign in again: noetl login"


class TrustedIssuer(Struct, frozen=True, kw_only=True):
    """An issuer, and whom its tokens must be for.

    `client_ids` are our own programs, whose ID tokens count; `audiences` are our names in access
    tokens, which other programs may have asked for.
    """

    keys: SigningKeys
    client_ids: frozenset[str] = frozenset()
    audiences: frozenset[str] = frozenset()


class _Verified(Struct, frozen=True):
    person: VerifiedPerson
    issuer: TrustedIssuer
    generation: int
    ends_s: float


class _Algorithms(JWSRegistry):
    """The algorithms that are accepted; extensions of a header are none of our business."""

    max_header_length = 4096
    max_payload_length = TOKEN_BYTES_MAX
    max_signature_length = 1024

    def get_alg(self, name: str) -> Any:
        """Return an algorithm; raises a `JoseError` for one that is not on the list."""
        # The older name of Ed25519 warns in the library, and providers use it.
        return super().get_alg(name) if name != "EdDSA" else self.algorithms[name]


_registry = _Algorithms(algorithms=list(KEY_TYPE_BY_ALGORITHM), strict_check_header=False)


class TokenVerifier:
    """Verifies tokens, and remembers the digests of those that it has verified."""

    def __init__(
        self, issuers: Mapping[str, TrustedIssuer], *, groups_claim: str, clock: Clock
    ) -> None:
        self._issuers = issuers
        self._groups_claim = groups_claim
        self._clock = clock
        self._verified_by_digest = LruCache[bytes, _Verified](entries_max=VERIFIED_MAX)

    async def verify_token(self, token: str) -> VerifiedPerson:
        """Return whom a bearer token proves; raises `TokenRefused`."""
        data = _encode_token(token)
        digest = codec.digest_bytes(data)
        remembered = self._verified_by_digest.find_value(digest)
        if remembered is not None and self._is_still_good(remembered):
            return remembered.person
        self._verified_by_digest.drop_value(digest)
        claims, raw_claims, issuer = await self._verify_claims(data)
        _check_bearer_audience(claims, issuer)
        groups = token_claims.find_groups(raw_claims, self._groups_claim) or ()
        person = token_claims.build_person(claims, groups)
        verified = _Verified(person, issuer, issuer.keys.generation, claims.exp + SKEW_S)
        self._verified_by_digest.keep_value(digest, verified)
        return person

    async def verify_id_token(
        self, token: str, *, issuer: str, client_id: str, nonce: str
    ) -> tuple[TokenClaims, dict[str, Any]]:
        """Return the claims of the ID token of one sign-in; raises `TokenRefused`."""
        claims, raw_claims, _ = await self._verify_claims(_encode_token(token))
        if claims.iss != issuer:
            raise _build_issuer_error(claims.iss)
        if client_id not in claims.audiences or claims.azp not in {None, client_id}:
            raise _build_audience_error(claims)
        if claims.nonce != nonce:
            raise TokenRefused(
                RefusalCode.TOKEN_NONCE,
                "the token belongs to another sign-in: its nonce differs",
                hint="sign in again",
            )
        return claims, raw_claims

    def _is_still_good(self, verification: _Verified) -> bool:
        keys = verification.issuer.keys
        is_same_keys = verification.generation == keys.generation and keys.are_fresh()
        return is_same_keys and self._clock.now().timestamp() < verification.ends_s

    async def _verify_claims(
        self, data: bytes
    ) -> tuple[TokenClaims, dict[str, Any], TrustedIssuer]:
        signed = _read_signed(data)
        algorithm, key_id = _check_header(signed.headers())
        assert signed.payload is not None, "a compact token carries what it signs"
        claims, raw_claims = token_claims.parse_claims(signed.payload)
        issuer = self._issuers.get(claims.iss)
        if issuer is None:
            raise _build_issuer_error(claims.iss)
        key = await issuer.keys.get_key(key_id, algorithm)
        try:
            is_signed = jws.validate_compact(signed, key, registry=_registry)
        except (JoseError, ValueError) as failure:
            raise _build_signature_error(str(failure)) from failure
        if not is_signed:
            raise _build_signature_error("the signature does not fit")
        _check_times(claims, now_s=self._clock.now().timestamp())
        if claims.events is not None:
            raise _build_type_error("a notice of events")
        return claims, raw_claims, issuer


def _encode_token(token: str) -> bytes:
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefused(
            RefusalCode.TOKEN_TOO_LARGE,
            f"the token is longer than {TOKEN_BYTES_MAX} characters",
            hint="ask the provider for fewer claims, such as only the groups that NoETL needs",
        )
    if not token.isascii():
        raise token_claims.build_malformed_token_error("it is not ASCII")
    return token.encode()


def _read_signed(data: bytes) -> CompactSignature:
    try:
        return jws.extract_compact(data, registry=_registry)
    except (JoseError, ValueError, RecursionError) as failure:
        raise token_claims.build_malformed_token_error(str(failure)) from failure


def _check_header(header: dict[str, Any]) -> tuple[str, str | None]:
    """Return algorithm and key of a token, before anything else of it is believed."""
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in KEY_TYPE_BY_ALGORITHM:
        raise TokenRefused(
            RefusalCode.TOKEN_ALGORITHM,
            f"the token is signed with {str(algorithm)[:32]!r}",
            hint=f"let the provider sign with one of {', '.join(KEY_TYPE_BY_ALGORITHM)}",
        )
    if "crit" in header or "b64" in header:
        raise token_claims.build_malformed_token_error("its header asks for an extension")
    kind = header.get("typ", "")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise _build_type_error(str(kind)[:64])
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > _KEY_ID_CHARACTERS_MAX):
        raise token_claims.build_malformed_token_error("its key has no name")
    return algorithm, key_id


def _check_bearer_audience(claims: TokenClaims, issuer: TrustedIssuer) -> None:
    """Admit access tokens for our audiences, and ID tokens of our own programs."""
    if claims.audiences & issuer.audiences:
        return
    own = issuer.client_ids
    if not claims.audiences & own or (claims.azp is not None and claims.azp not in own):
        raise _build_audience_error(claims)


def _check_times(claims: TokenClaims, *, now_s: float) -> None:
    if claims.exp + SKEW_S <= now_s:
        raise TokenRefused(
            RefusalCode.TOKEN_EXPIRED,
            f"the token expired {now_s - claims.exp:.0f} s ago",
            hint=_SIGN_IN_AGAIN,
        )
    begins_s = max(claims.nbf or 0, claims.iat or 0)
    if begins_s - SKEW_S > now_s:
        raise TokenRefused(
            RefusalCode.TOKEN_NOT_YET_VALID,
            f"the token is valid in {begins_s - now_s:.0f} s only",
            hint="set the clocks of the provider and of the planner by NTP",
        )


def _build_issuer_error(issuer: str) -> TokenRefused:
    return TokenRefused(
        RefusalCode.TOKEN_ISSUER,
        f"nobody here trusts the issuer {issuer[:200]!r}",
        hint="sign in at the provider of this server: noetl login",
    )


def _build_audience_error(claims: TokenClaims) -> TokenRefused:
    audiences = ", ".join(sorted(claims.audiences))
    return TokenRefused(
        RefusalCode.TOKEN_AUDIENCE,
        f"the token is meant for {audiences[:200]!r}, not for this server",
        hint="name it in NOETL_PLANNER_OIDC_AUDIENCES, or sign in again: noetl login",
    )


def _build_type_error(kind: str) -> TokenRefused:
    return TokenRefused(
        RefusalCode.TOKEN_TYPE,
        f"the token is {kind!r}, which proves no sign-in",
        hint="send an ID token or an access token",
    )


def _build_signature_error(reason: str) -> TokenRefused:
    return TokenRefused(
        RefusalCode.TOKEN_SIGNATURE,
        f"the token was not signed by its issuer: {reason[:200]}",
        hint=_SIGN_IN_AGAIN,
    )
