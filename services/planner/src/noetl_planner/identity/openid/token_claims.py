"""What a token says, after its form was checked."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_contracts.identity.actors import NAME_CHARACTERS_MAX
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused

GROUPS_MAX = 1000
_TEXT_CHARACTERS_MAX = 1024
# The last second of the year 2999: later ends are mistakes.
_EPOCH_S_MAX = 32_503_679_999

Text = Annotated[str, Meta(max_length=_TEXT_CHARACTERS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=_TEXT_CHARACTERS_MAX)]
Moment = Annotated[float, Meta(ge=0, le=_EPOCH_S_MAX)]
Groups = Annotated[list[Name], Meta(max_length=GROUPS_MAX)]


class PrincipalKind(StrEnum):
    """Who a token of an identity provider speaks for."""

    PERSON = "person"
    SERVICE_ACCOUNT = "service_account"


class VerifiedPerson(Struct, frozen=True, kw_only=True):
    """Somebody whom a token of a trusted issuer has proven.

    `subject` is unique within `issuer`, and nothing else is: names and addresses of mail may be
    chosen. `client_id` is the program that the token was given to.
    """

    kind: PrincipalKind
    issuer: str
    subject: str
    name: str
    email: str
    groups: tuple[str, ...]
    client_id: str
    expires_at: datetime
    issued_at: datetime | None = None


class TokenClaims(Struct, frozen=True, kw_only=True):
    """The claims that are looked at (OpenID Connect Core 1.0, 2; RFC 9068, 2.2)."""

    iss: Name
    sub: Name
    aud: Name | list[Name]
    exp: Moment
    nbf: Moment | None = None
    iat: Moment | None = None
    nonce: str | None = None
    azp: Text | None = None
    client_id: Text | None = None
    # Okta's name of the same.
    cid: Text | None = None
    name: Text | None = None
    preferred_username: Text | None = None
    email: Text | None = None
    # Auth0's and Entra's marks of a program that signed in by itself.
    gty: Text | None = None
    idtyp: Text | None = None
    # Of a logout token, which proves no sign-in.
    events: Any = None

    @property
    def audiences(self) -> frozenset[str]:
        """Return whom the token is for."""
        return frozenset([self.aud] if isinstance(self.aud, str) else self.aud)

    @property
    def program(self) -> str:
        """Return the program that the token was given to; empty where it is not named."""
        return self.azp or self.client_id or self.cid or ""


def build_malformed_token_error(reason: str) -> TokenRefused:
    """Say that something is no token."""
    return TokenRefused(
        RefusalCode.TOKEN_MALFORMED,
        f"the token is not a signed JWT of OpenID Connect: {reason}",
        hint="send the token of `noetl login`, or an API key",
    )


def parse_claims(data: bytes) -> tuple[TokenClaims, dict[str, Any]]:
    """Read the claims, as values and as they are; raises `TokenRefused`."""
    try:
        raw_claims = codec.decode_as(data, dict[str, Any])
        return codec.convert_value(raw_claims, TokenClaims), raw_claims
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as failure:
        raise build_malformed_token_error(str(failure)) from failure


def find_groups(claims: dict[str, Any], claim: str) -> tuple[str, ...] | None:
    """Return the groups under a claim, or None where it is absent; raises `TokenRefused`.

    A claim is first taken as it is written, then as a path: `realm_access.roles`.
    """
    if not claim:
        return ()
    claim_value: Any = claims.get(claim)
    if claim_value is None:
        claim_value = claims
        for part in claim.split("."):
            claim_value = claim_value.get(part) if isinstance(claim_value, dict) else None
    if claim_value is None:
        return None
    try:
        groups: list[str] = codec.convert_value(
            [claim_value] if isinstance(claim_value, str) else claim_value, Groups
        )
    except msgspec.MsgspecError as failure:
        raise build_malformed_token_error(
            f"the claim {claim!r} holds no groups: {failure}"
        ) from failure
    return tuple(dict.fromkeys(groups))


def build_person(claims: TokenClaims, groups: tuple[str, ...]) -> VerifiedPerson:
    """Say whom verified claims prove; raises `TokenRefused` for a subject that no log can show."""
    if not claims.sub.isprintable():
        raise build_malformed_token_error("its subject has characters that cannot be shown")
    return VerifiedPerson(
        kind=_tell_kind(claims),
        issuer=claims.iss,
        subject=claims.sub,
        name=_clean_text(claims.name or claims.preferred_username or claims.email or claims.sub),
        email=_clean_text(claims.email or ""),
        # Nobody can bind a role to one of the others.
        groups=tuple(group for group in groups if group.isprintable()),
        client_id=claims.program,
        expires_at=datetime.fromtimestamp(claims.exp, UTC),
        issued_at=None if claims.iat is None else datetime.fromtimestamp(claims.iat, UTC),
    )


def _clean_text(text: str) -> str:
    """Return what people chose for themselves as one line that changes no other text around it."""
    line = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    return line[:NAME_CHARACTERS_MAX]


def _tell_kind(claims: TokenClaims) -> PrincipalKind:
    """Tell a program that signed in by itself: it is its own subject (RFC 9068, 2.2).

    Keycloak, Auth0, Entra and Kubernetes say it otherwise.
    """
    is_program = (
        claims.sub == claims.program
        or claims.preferred_username == f"service-account-{claims.program}"
        or claims.gty == "client-credentials"
        or claims.idtyp == "app"
        or claims.sub.startswith("system:serviceaccount:")
    )
    return PrincipalKind.SERVICE_ACCOUNT if is_program else PrincipalKind.PERSON
