"""A small HTTP server that playbooks talk to: echoes, pages, statuses, and failures that pass."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

JSON = "application/json"
PAGE_ITEMS = 3


class Site(ThreadingHTTPServer):
    """The server and what it remembers of its callers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SiteHandler)
        self.calls: Counter[str] = Counter()
        # What `/files/<name>` answers.
        self.files: dict[str, bytes] = {}
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        """Where playbooks find it."""
        return f"http://127.0.0.1:{self.server_port}"

    def count(self, name: str) -> int:
        """Count one more call of a name."""
        with self.guard:
            self.calls[name] += 1
            return self.calls[name]


class SiteHandler(BaseHTTPRequestHandler):
    """What each address answers.

    `/echo` what was sent; `/status/<n>` that status; `/pages?page=&of=` a page of items;
    `/files/<name>` the bytes that a test has put there;
    `/flaky/<name>/<n>?status=` fails n times, then answers; `/text`, `/bytes` and `/rows/<n>` what
    they say (rows as NDJSON); `/count/<name>` how often the name was called.
    """

    protocol_version = "HTTP/1.1"
    server: Site

    def _answer(self) -> None:
        address = urlsplit(self.path)
        query = parse_qs(address.query, keep_blank_values=True)
        sent = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        kind, *rest = address.path.strip("/").split("/")
        match kind:
            case "echo":
                headers = {key.lower(): value for key, value in self.headers.items()}
                body = {"method": self.command, "query": query, "headers": headers, "sent": sent}
                self._say(200, body)
            case "status":
                headers = {name: values[0] for name, values in query.items()}
                self._say(int(rest[0]), {"code": int(rest[0])}, **headers)
            case "pages":
                self._say(200, _page(int(query["page"][0]), int(query["of"][0])))
            case "flaky":
                tries = self.server.count(rest[0])
                status = int(query.get("status", ["503"])[0])
                self._say(status if tries <= int(rest[1]) else 200, {"tries": tries})
            case "count":
                self._say(200, {"calls": self.server.count(rest[0])})
            case "rows":
                lines = "".join(json.dumps({"i": i}) + "\n" for i in range(int(rest[0])))
                self._send(200, lines.encode(), "application/x-ndjson")
            case "files" if (name := "/".join(rest)) in self.server.files:
                self._send(200, self.server.files[name], "application/octet-stream")
            case "text":
                self._send(200, b"plain words", "text/plain; charset=utf-8")
            case "bytes":
                self._send(200, bytes(range(4)), "application/octet-stream")
            case _:
                self._say(404, {"detail": "nothing here"})

    # The names that the library calls.
    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - given by http.server

    def _say(self, status: int, body: Any, **headers: str) -> None:
        self._send(status, json.dumps(body).encode(), JSON, **headers)

    def _send(self, status: int, body: bytes, media_type: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing: the tests read what was called from `calls`."""


def _page(page: int, of: int) -> dict[str, Any]:
    first = (page - 1) * PAGE_ITEMS
    return {
        "items": [{"id": first + i} for i in range(PAGE_ITEMS)],
        "paging": {"hasMore": page < of, "next": page + 1 if page < of else None},
    }


@contextmanager
def serving() -> Iterator[Site]:
    """A running site."""
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()
