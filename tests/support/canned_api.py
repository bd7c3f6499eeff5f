"""A planner's API that gives prepared answers on loopback, for tests of the command line."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# A status and a body by "METHOD /path"; queries are not compared.
Answers = dict[str, tuple[int, Any]]


class CannedApi:
    """Where it listens, what it was asked, and what was posted to it, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.bodies: list[bytes] = []


@contextmanager
def serve_answers(answers: Answers) -> Iterator[CannedApi]:
    """Answer requests until the block ends; what is not prepared is 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            api.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            self._answer("POST")

        def do_DELETE(self) -> None:
            self._answer("DELETE")

        def _answer(self, method: str) -> None:
            asked = f"{method} {self.path}"
            api.asked.append(asked)
            status, body = answers.get(asked.partition("?")[0], (404, {"detail": "no such thing"}))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api = CannedApi(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
