"""The cookies of a sign-in: what they are called, and how they are set and ended.

A name that begins with `__Host-` is taken by browsers only from this host, by https, for all its
paths (RFC 6265bis, 4.1.3): neither another host of the domain nor a plain connection can set it.
"""

from typing import Any

from litestar import Request
from litestar.datastructures import Cookie
from msgspec import Struct

_SECURE_PREFIX = "__Host-"
_SESSION = "noetl_session"
_PENDING = "noetl_sign_in"


class CookieJar(Struct, frozen=True, kw_only=True):
    """Reads and writes the cookies; on plain http, which only this machine has, without prefix."""

    is_secure: bool

    def read_session(self, request: Request[Any, Any, Any]) -> str | None:
        """Return the secret of a session that a browser sent."""
        return request.cookies.get(self._name_cookie(_SESSION))

    def read_pending(self, request: Request[Any, Any, Any]) -> str | None:
        """Return the sign-in that a browser has begun."""
        return request.cookies.get(self._name_cookie(_PENDING))

    def set_session(self, secret: str, *, age_s: int) -> Cookie:
        """Give a browser its session."""
        return self._write_cookie(_SESSION, secret, age_s)

    def set_pending(self, text: str, *, age_s: int) -> Cookie:
        """Give a browser the sign-in that it begins."""
        return self._write_cookie(_PENDING, text, age_s)

    def end_session(self) -> Cookie:
        """Take a browser's session away."""
        return self._write_cookie(_SESSION, "", 0)

    def end_pending(self) -> Cookie:
        """Take a begun sign-in away."""
        return self._write_cookie(_PENDING, "", 0)

    def _name_cookie(self, name: str) -> str:
        return f"{_SECURE_PREFIX}{name}" if self.is_secure else name

    def _write_cookie(self, name: str, value: str, age_s: int) -> Cookie:
        return Cookie(
            key=self._name_cookie(name),
            value=value,
            max_age=age_s,
            path="/",
            secure=self.is_secure,
            httponly=True,
            # The provider's redirection back is a navigation from another site.
            samesite="lax",
        )
