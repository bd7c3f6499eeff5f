"""The public keys of a provider, kept between tokens and fetched again when they change."""

import asyncio
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, RSAKey

from noetl_chassis.clock import Clock
from noetl_planner.identity.openid.oidc_provider import FAILURE_PAUSE_S, OidcProvider
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused

FRESH_S = 600.0
# Without an answer of the provider, its keys are trusted so long after they were last fetched.
STALE_S = 3600.0
# Tokens with unknown keys make the planner ask the provider no more often.
REFETCH_PAUSE_S = 30.0
KEYS_MAX = 100
RSA_BITS_MIN = 2048
# Which keys may verify what; a symmetric key is in no list.
KEY_TYPE_BY_ALGORITHM = {
    "RS256": "RSA",
    "PS256": "RSA",
    "ES256": "EC",
    "EdDSA": "OKP",
    "Ed25519": "OKP",
}


class SigningKeys:
    """The keys of one provider; `generation` grows when they change."""

    def __init__(self, provider: OidcProvider, clock: Clock) -> None:
        self.generation = 0
        self._provider = provider
        self._clock = clock
        self._published: list[dict[str, Any]] = []
        self._keys: list[Key] = []
        self._fetched_s: float | None = None
        self._tried_s: float | None = None
        self._failure: TokenRefused | None = None
        self._fetching = asyncio.Lock()

    def are_fresh(self) -> bool:
        """Tell whether the keys were fetched lately."""
        return self._is_within(self._fetched_s, FRESH_S)

    async def get_key(self, key_id: str | None, algorithm: str) -> Key:
        """Return the key of a token; raises `TokenRefused` for one that is not the provider's."""
        if not self.are_fresh():
            await self._fetch_stale()
        key = self._find_key(key_id, algorithm)
        if key is None:
            await self._fetch_unknown()
            key = self._find_key(key_id, algorithm)
        if key is None:
            raise TokenRefused(
                RefusalCode.TOKEN_UNKNOWN_KEY,
                f"the token names a key that {self._provider.issuer} does not publish for its"
                " algorithm",
                hint="sign in again: noetl login",
            )
        return key

    def _find_key(self, key_id: str | None, algorithm: str) -> Key | None:
        fitting = [key for key in self._keys if _fits_algorithm(key, algorithm)]
        if key_id is None:
            # Which of several signed cannot be said, and no key is tried that was not named.
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.get("kid") == key_id), None)

    async def _fetch_stale(self) -> None:
        """Fetch keys that are old; they stay in use for a while when nobody answers."""
        is_usable = self._is_within(self._fetched_s, STALE_S)
        if is_usable and self._fetching.locked():
            # One request waits for the provider; the others go on with what is known.
            return
        async with self._fetching:
            if self.are_fresh():
                return
            if is_usable and self._is_within(self._tried_s, REFETCH_PAUSE_S):
                return
            if self._failure is not None and self._is_within(self._tried_s, FAILURE_PAUSE_S):
                raise self._failure
            try:
                await self._fetch_keys()
            except TokenRefused as failure:
                self._failure = failure
                if not is_usable:
                    raise

    async def _fetch_unknown(self) -> None:
        async with self._fetching:
            if not self._is_within(self._tried_s, REFETCH_PAUSE_S):
                await self._fetch_keys()

    async def _fetch_keys(self) -> None:
        self._tried_s = self._clock.monotonic_s()
        published = await self._provider.fetch_key_set()
        if published != self._published:
            self._published = published
            self._keys = [
                key for jwk in published[:KEYS_MAX] if (key := _import_key(jwk)) is not None
            ]
            self.generation += 1
        self._failure, self._fetched_s = None, self._clock.monotonic_s()

    def _is_within(self, moment_s: float | None, span_s: float) -> bool:
        return moment_s is not None and self._clock.monotonic_s() - moment_s < span_s


def _import_key(jwk: dict[str, Any]) -> Key | None:
    """Read a published key; None for one that is not for signatures, or too weak."""
    if jwk.get("use", "sig") != "sig" or jwk.get("kty") not in {"RSA", "EC", "OKP"}:
        return None
    try:
        key = JWKRegistry.import_key(jwk)
        bits = key.public_key.key_size if isinstance(key, RSAKey) else RSA_BITS_MIN
    except (JoseError, ValueError, TypeError, KeyError):
        # A provider may publish kinds of keys that this release does not know.
        return None
    return key if bits >= RSA_BITS_MIN else None


def _fits_algorithm(key: Key, algorithm: str) -> bool:
    named = key.get("alg")
    is_curve_right = algorithm != "ES256" or key.get("crv") == "P-256"
    is_type_right = key.key_type == KEY_TYPE_BY_ALGORITHM[algorithm]
    return is_type_right and is_curve_right and named in {None, algorithm}
