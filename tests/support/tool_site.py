"""A site for the playbooks of tools: echoes in parts, pages, and answers that go wrong."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from tests.support.site import JSON, Site, SiteHandler

ITEMS_OF_PAGE = 2
HANG_S_MAX = 30.0
POSTS = [{"id": 1, "title": "one", "tags": ["a"]}, {"id": 2, "title": "two", "tags": []}]
# Bodies as they stand, with the type that the server claims for them.
BODIES = {
    "posts": (json.dumps(POSTS).encode(), JSON),
    "text": (b"plain words", "text/plain"),
    "hidden": (b'{"a": 1}', "application/octet-stream"),
    "bytes": (b"\x00\xff\x01", "application/octet-stream"),
    "broken": (b"{nope", "application/json"),
}


class ToolSite(Site):
    """The site under these answers."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = ToolAnswers


class ToolAnswers(SiteHandler):
    """What each address answers.

    `/echo` the parts of a request; `/status/<n>`; `/after/<s>` a 429 with Retry-After; `/hang/<s>`
    late; `/redirect` to `/echo`; `/flaky/<name>/<n>[/<status>]` fails n times, then answers;
    `/pages?page=&last=`; `/posts`; `/ndjson/<n>`; and the bodies above.
    """

    def _respond(self) -> None:
        address = urlsplit(self.path)
        sent = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        kind, *rest = address.path.strip("/").split("/")
        match kind:
            case "echo":
                self._say(200, self._echo(address, sent))
            case "status":
                self._say(int(rest[0]), {"why": "because", "code": int(rest[0])})
            case "after":
                self._say(429, {"why": "slow down"}, **{"retry-after": rest[0]})
            case "redirect":
                self._say(302, {}, location="/echo")
            case "hang":
                self._hang(float(rest[0]))
            case "flaky":
                tries = self.server.count(rest[0])
                status = int(rest[2]) if len(rest) > 2 else 503
                self._say(status if tries <= int(rest[1]) else 200, {"tries": tries})
            case "pages":
                self._say(200, _page(parse_qs(address.query)))
            case "ndjson":
                lines = "".join(json.dumps({"i": i}) + "\n" for i in range(int(rest[0])))
                self._send(200, lines.encode(), "application/x-ndjson")
            case _ if kind in BODIES:
                self._send(200, *BODIES[kind])
            case _:
                self._say(404, {"why": "no such page"})

    # The names that the library calls.
    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _respond  # noqa: N815 - given by http.server

    def _echo(self, address: SplitResult, sent: str) -> dict[str, Any]:
        try:
            parsed = json.loads(sent)
        except ValueError:
            parsed = None
        return {
            "method": self.command,
            "query": parse_qs(address.query, keep_blank_values=True),
            "text": sent,
            "json": parsed,
            "headers": {key.lower(): value for key, value in self.headers.items()},
        }

    def _hang(self, seconds: float) -> None:
        time.sleep(min(seconds, HANG_S_MAX))
        # Whoever asked may have gone meanwhile: that is what these answers are for.
        with suppress(ConnectionError):
            self._say(200, {"late": True})


def _page(query: dict[str, list[str]]) -> dict[str, Any]:
    page, last = (
        int(query.get(name, [default])[0]) for name, default in (("page", "1"), ("last", "3"))
    )
    first = (page - 1) * ITEMS_OF_PAGE
    return {
        "items": [{"id": first + i} for i in range(ITEMS_OF_PAGE)],
        "page": page,
        "more": page < last,
        "paging": {"hasMore": page < last, "next": page + 1},
    }


@contextmanager
def serving() -> Iterator[ToolSite]:
    """A running site."""
    with ToolSite() as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()
