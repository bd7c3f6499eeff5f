"""A port on this machine to which a browser comes back from the provider (RFC 8252, 7.3)."""

import hmac
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from noetl_cli.errors import CliError

PATH = "/callback"
WAIT_S = 300.0
_POLL_S = 0.5
_PAGE = (
    b"<!doctype html><title>NoETL</title><p>Signed in. Close this page and go back to the terminal."
)


class LoopbackRedirect:
    """Waits for the one answer that carries our state."""

    def __init__(self, server: HTTPServer, state: str) -> None:
        self._server = server
        self._state = state
        self._answer: dict[str, str] | None = None

    @property
    def redirect_uri(self) -> str:
        """Return where the browser comes back to."""
        return f"http://127.0.0.1:{self._server.server_port}{PATH}"

    def await_code(self, issuer: str) -> str:
        """Return the code of the sign-in; raises `CliError` when it ends otherwise."""
        deadline = time.monotonic() + WAIT_S
        self._server.timeout = _POLL_S
        while self._answer is None:
            if time.monotonic() > deadline:
                raise CliError(
                    "Nobody has signed in in time.", way_out="Begin again: noetl login --browser"
                )
            self._server.handle_request()
        if self._answer.get("iss", issuer) != issuer:
            raise CliError(
                "The answer came from another provider.",
                way_out="Begin again, with one sign-in at a time: noetl login --browser",
            )
        code = self._answer.get("code")
        if code is None:
            why = self._answer.get("error_description") or self._answer.get("error") or "no code"
            raise CliError(f"The identity provider refused: {why[:200]}.")
        return code

    def accept_answer(self, query: dict[str, str]) -> bool:
        """Take an answer; False for one of another sign-in."""
        state = query.get("state", "")
        if not state.isascii() or not hmac.compare_digest(state, self._state):
            return False
        self._answer = query
        return True


@contextmanager
def open_redirect(state: str) -> Iterator[LoopbackRedirect]:
    """Listen on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        # One request a connection, and a browser that sends nothing is left.
        timeout = 5

        def do_GET(self) -> None:
            """Take the provider's answer."""
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            is_taken = address.path == PATH and redirect.accept_answer(query)
            self.send_response(200 if is_taken else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(_PAGE if is_taken else b"")

        def log_message(self, *parts: Any) -> None:
            """Write nothing: an address holds a code."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        redirect = LoopbackRedirect(server, state)
        yield redirect
