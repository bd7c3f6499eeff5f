"""Why somebody is not signed in, as a code for programs and two sentences for people."""

from enum import StrEnum

from noetl_contracts.errors import Permanent


class RefusalCode(StrEnum):
    """What was wrong with a token or a sign-in."""

    TOKEN_MALFORMED = "token_malformed"  # noqa: S105 - a code of an error
    TOKEN_TOO_LARGE = "token_too_large"  # noqa: S105 - a code of an error
    TOKEN_ALGORITHM = "token_algorithm"  # noqa: S105 - a code of an error
    TOKEN_TYPE = "token_type"  # noqa: S105 - a code of an error
    TOKEN_ISSUER = "token_issuer"  # noqa: S105 - a code of an error
    TOKEN_AUDIENCE = "token_audience"  # noqa: S105 - a code of an error
    TOKEN_UNKNOWN_KEY = "token_unknown_key"  # noqa: S105 - a code of an error
    TOKEN_SIGNATURE = "token_signature"  # noqa: S105 - a code of an error
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - a code of an error
    TOKEN_NOT_YET_VALID = "token_not_yet_valid"  # noqa: S105 - a code of an error
    TOKEN_NONCE = "token_nonce"  # noqa: S105 - a code of an error
    PROVIDER_UNREACHABLE = "provider_unreachable"
    PROVIDER_MALFORMED = "provider_malformed"
    PROVIDER_REFUSED = "provider_refused"
    SIGN_IN_STATE = "sign_in_state"
    SIGN_IN_EXPIRED = "sign_in_expired"
    SIGN_IN_PATH = "sign_in_path"


# The provider is at fault: the same request may succeed later.
PROVIDER_FAULTS = frozenset({RefusalCode.PROVIDER_UNREACHABLE, RefusalCode.PROVIDER_MALFORMED})


class TokenRefused(Permanent):
    """A token, or a sign-in, that proves nobody; `hint` says what to do instead."""

    def __init__(self, code: RefusalCode, detail: str, *, hint: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint


def build_provider_unreachable_error(issuer: str, reason: str) -> TokenRefused:
    """Say that the identity provider did not answer."""
    return TokenRefused(
        RefusalCode.PROVIDER_UNREACHABLE,
        f"the identity provider {issuer} does not answer: {reason}",
        hint="try again; check that the planner reaches NOETL_PLANNER_OIDC_ISSUER",
    )


def build_provider_malformed_error(issuer: str, reason: str) -> TokenRefused:
    """Say that the identity provider answered something else than OpenID Connect."""
    return TokenRefused(
        RefusalCode.PROVIDER_MALFORMED,
        f"the identity provider {issuer} {reason}",
        hint="check NOETL_PLANNER_OIDC_ISSUER: the issuer is the address before "
        "/.well-known/openid-configuration",
    )
