"""The HTTP client of the tests.

A client of its own for each question would load the certificates of the world each time: forty
times what asking costs, taken from the services whose answer is waited for. No connection is kept,
since whoever was asked may have been killed and started again by the next time.
"""

from collections.abc import Generator
from pathlib import Path

import httpx
import msgspec


def read_owner_headers(home: Path) -> dict[str, str]:
    """Return what proves to a stack that its owner asks; nothing where a stack has no token."""
    try:
        token = (home / "token").read_text("ascii").strip()
    except FileNotFoundError:
        return {}
    return {"Authorization": f"Bearer {token}"}


class OwnerAuth(httpx.Auth):
    """Sends each stack of this process its owner's token, and nothing to other servers."""

    def __init__(self) -> None:
        self._homes: set[Path] = set()

    def add_home(self, home: Path) -> None:
        """Note a stack's folder, which may still be empty."""
        self._homes.add(home)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the token of the stack that is asked."""
        if "Authorization" not in request.headers:
            for home in self._homes:
                if request.url.port in _list_api_ports(home):
                    request.headers.update(read_owner_headers(home))
        yield request


def _list_api_ports(home: Path) -> list[int]:
    try:
        state = msgspec.json.decode((home / "state.json").read_bytes())
    except FileNotFoundError:
        return []
    return [port for name, port in state["ports"].items() if name.endswith(".http")]


owner_auth = OwnerAuth()
http = httpx.Client(
    limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, auth=owner_auth
)
# A client that waits for the end of an execution asks for nothing else.
ENDS = ["playbook.completed", "playbook.failed", "execution.cancelled"]
