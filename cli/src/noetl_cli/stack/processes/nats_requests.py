"""One question to a NATS server about itself, without a client that stays."""

import secrets
import socket
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

HEALTH = "$SYS.REQ.SERVER.PING.HEALTHZ"
VARIABLES = "$SYS.REQ.SERVER.PING.VARZ"
_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says: `data`, or of a question that it cannot answer an error."""

    data: Any = None
    error: Any = None


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a server and every stream of it work, and what does not."""

    status: str = ""
    error: str = ""
    errors: list[Any] = []

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return self.status == "ok"

    @property
    def reason(self) -> str:
        """What is wrong, as the server says it."""
        return self.error or msgspec.json.encode(self.errors).decode()


def request_health(url: str) -> ServerHealth | None:
    """Ask how a server is; None when there is no answer that can be read."""
    report = request_report(url, HEALTH)
    try:
        return None if report is None else msgspec.convert(report.data, ServerHealth)
    except msgspec.ValidationError:
        return None


def request_report(url: str, subject: str) -> ServerReport | None:
    """Ask as a user of the server's own account; None when no answer can be read."""
    parts = urlsplit(url)
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    login = msgspec.json.encode(
        {
            "verbose": False,
            "pedantic": False,
            "user": unquote(parts.username or ""),
            "pass": unquote(parts.password or ""),
        }
    )
    request = f"SUB {inbox} 1\r\nPUB {subject} {inbox} 0\r\n\r\n".encode()
    try:
        with socket.create_connection(
            (parts.hostname or "", parts.port or 0), timeout=_TIMEOUT_S
        ) as opened:
            opened.sendall(b"CONNECT " + login + b"\r\n" + request)
            with opened.makefile("rb") as lines:
                return _read_answer(lines)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def _read_answer(lines: Any) -> ServerReport | None:
    """Read up to the first message; raises `ValueError` for a server that refuses."""
    while line := lines.readline(_ANSWER_BYTES_MAX):
        if line.startswith(b"MSG "):
            size = int(line.split()[-1])
            return msgspec.json.decode(lines.read(min(size, _ANSWER_BYTES_MAX)), type=ServerReport)
        if line.startswith(b"-ERR"):
            raise ValueError(line.decode(errors="replace").strip())
    return None
