"""What a browser keeps between going to the provider and coming back, signed by the deployment."""

import base64
import binascii
import hmac

import msgspec
from msgspec import Struct

from noetl_chassis import identity
from noetl_contracts import codec
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused

PENDING_S = 600
PENDING_CHARACTERS_MAX = 4000
PATH_CHARACTERS_MAX = 1024
_PURPOSE = b"noetl pending sign-in v1"


class PendingSignIn(Struct, frozen=True, kw_only=True):
    """One sign-in that has begun; all three texts are random and used once."""

    state: str
    nonce: str
    verifier: str
    next_path: str
    begun_s: float


class PendingSigner:
    """Signs what a browser keeps, so that no other sign-in can be put into its place."""

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, _PURPOSE, "sha256")

    def sign_pending(self, pending: PendingSignIn) -> str:
        """Write a sign-in as a cookie's value."""
        body = base64.urlsafe_b64encode(codec.encode_json(pending)).rstrip(b"=")
        return f"{body.decode()}.{self._compute_signature(body)}"

    def read_pending(self, cookie: str | None, *, state: str, now_s: float) -> PendingSignIn:
        """Return the sign-in that a provider's answer belongs to; raises `TokenRefused`."""
        pending = None if cookie is None else self._parse_pending(cookie)
        if pending is None or not _is_same_text(pending.state, state):
            raise TokenRefused(
                RefusalCode.SIGN_IN_STATE,
                "this answer of the provider belongs to no sign-in that this browser has begun",
                hint="begin again at /auth/login, in one tab",
            )
        if not 0 <= now_s - pending.begun_s < PENDING_S:
            raise TokenRefused(
                RefusalCode.SIGN_IN_EXPIRED,
                f"the sign-in took longer than {PENDING_S // 60} minutes",
                hint="begin again at /auth/login",
            )
        return pending

    def _parse_pending(self, cookie: str) -> PendingSignIn | None:
        if len(cookie) > PENDING_CHARACTERS_MAX or not cookie.isascii():
            return None
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._compute_signature(body.encode()), signature):
            return None
        try:
            data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            return codec.decode_as(data, PendingSignIn)
        except (binascii.Error, msgspec.MsgspecError):
            return None

    def _compute_signature(self, body: bytes) -> str:
        return hmac.digest(self._key, body, "sha256").hex()


def begin_pending(next_path: str, *, now_s: float) -> PendingSignIn:
    """Make a new sign-in; raises `TokenRefused` for a path that leads elsewhere."""
    check_next_path(next_path)
    return PendingSignIn(
        state=identity.mint_token(),
        nonce=identity.mint_token(),
        verifier=identity.mint_token() + identity.mint_token(),
        next_path=next_path,
        begun_s=now_s,
    )


def check_next_path(path: str) -> None:
    """Admit a path of this server; raises `TokenRefused` for what a browser may read otherwise.

    `//host` names another server, a backslash counts as a slash, and browsers drop tabs and line
    breaks.
    """
    is_path = path.startswith("/") and not path.startswith("//") and "\\" not in path
    is_plain = path.isascii() and path.isprintable() and " " not in path
    if not is_path or not is_plain or len(path) > PATH_CHARACTERS_MAX:
        raise TokenRefused(
            RefusalCode.SIGN_IN_PATH,
            f"next={path[:100]!r} is not a path of this server",
            hint="write it as /console, with other characters as %XX",
        )


def _is_same_text(expected: str, text: str) -> bool:
    return text.isascii() and hmac.compare_digest(expected, text)
