"""The HTTP API of Docker, over its socket: requests, answers and what it refuses.

https://docs.docker.com/reference/api/engine/
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.api_refusal import ERROR_STATUS, ApiRefusal, read_message
from noetl_worker.tools.container.names import SOURCE
from noetl_worker.tools.container.runtime import build_unreachable_failure

HOST_SETTING = "NOETL_WORKER_DOCKER_HOST"
RUNTIME_SETTING = "NOETL_WORKER_CONTAINERS"
# Of Docker 20.10 and later, and of Podman. Docker 29 serves from 1.44 on.
_VERSION_MIN = (1, 41)
_VERSION_PATH = "/version"
_ANSWER_S = 60.0
_UNIX = "unix"
NOT_MODIFIED = 304


class DockerRefusal(ApiRefusal):
    """Docker answered that it did not do what was asked."""

    def build_failure(self, operation: str) -> ToolFailure:
        """Say what was refused."""
        text = f"Docker refused {operation}: {self.message}"
        return ToolFailure(build_error("container_start", text, source=SOURCE))


class DockerApi:
    """Sends requests; they raise `DockerRefusal`, and `ToolFailure` where nobody answers."""

    def __init__(self, host: str) -> None:
        """Take an address; raises `ValueError` for one that is neither of a socket nor of HTTP."""
        self._host = host
        place = urlsplit(host)
        if place.scheme not in (_UNIX, "tcp", "http"):
            raise ValueError(
                f"{HOST_SETTING}: {host!r} is neither unix:///path nor tcp://host:port"
            )
        self._path = place.path if place.scheme == _UNIX else ""
        self._base = f"http://{'docker' if self._path else place.netloc}"
        self._version = ""
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    async def send_request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        seconds: float | None = _ANSWER_S,
    ) -> Any:
        """Send a request, and return its answer as JSON; None where it has no body."""
        if not self._version and path != _VERSION_PATH:
            self._version = await self._choose_version()
        async with self.stream_response(
            method, path, query=query, body=body, seconds=seconds
        ) as response:
            data = await response.read()
            return codec.decode_json(data) if data.strip() else None

    @asynccontextmanager
    async def stream_response(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and hold its answer; without `seconds` it may take any time.

        A body that is no file is sent as JSON.
        """
        is_file = hasattr(body, "read")
        media_type = "application/x-tar" if is_file else "application/json"
        data = body if is_file or body is None else codec.encode_json(body)
        try:
            async with self._open_session().request(
                method,
                f"{self._base}{self._version}{path}",
                params=query,
                data=data,
                headers={"Content-Type": media_type, **(headers or {})},
                timeout=aiohttp.ClientTimeout(total=seconds, connect=_ANSWER_S),
            ) as response:
                if response.status >= ERROR_STATUS:
                    raise DockerRefusal(response.status, await read_message(response))
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            if isinstance(problem, TimeoutError) and seconds is None:
                raise
            raise self._build_failure(problem) from problem

    async def _choose_version(self) -> str:
        """Return the oldest version of the API that has what is needed and that Docker serves."""
        about = await self.send_request("GET", _VERSION_PATH) or {}
        served_from = str(about.get("MinAPIVersion") or "1.0").split(".")
        oldest_version = tuple(int(part) for part in served_from if part.isdecimal())
        return "/v" + ".".join(map(str, max(_VERSION_MIN, oldest_version)))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.UnixConnector(path=self._path, limit=0) if self._path else None
            self._session = aiohttp.ClientSession(
                connector=connector or aiohttp.TCPConnector(limit=0), trust_env=False
            )
        return self._session

    def _build_failure(self, problem: Exception) -> ToolFailure:
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        text = f"container tasks run on Docker, which does not answer at {self._host}: {reason}"
        if isinstance(problem, aiohttp.ClientConnectorError):
            way_out = (
                f"; install and start Docker, name its socket in {HOST_SETTING}, or choose "
                f"another runtime by {RUNTIME_SETTING}=kubernetes"
            )
            return ToolFailure(build_error("config", text + way_out, source=SOURCE))
        return build_unreachable_failure(text)
