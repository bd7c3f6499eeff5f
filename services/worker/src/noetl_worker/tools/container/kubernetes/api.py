"""The HTTP API of Kubernetes, as a worker uses it with the account of its pod."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.api_refusal import ERROR_STATUS, ApiRefusal, read_message
from noetl_worker.tools.container.names import SOURCE
from noetl_worker.tools.container.runtime import WorkerPodGone, build_unreachable_failure

API_SETTING = "NOETL_WORKER_KUBERNETES_API"
ACCOUNT_SETTING = "NOETL_WORKER_KUBERNETES_ACCOUNT_FOLDER"
_UNKNOWN, _FORBIDDEN = 401, 403
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_ANSWER_S = 60.0
_PATCH = "application/merge-patch+json"


class KubernetesRefusal(ApiRefusal):
    """The API server answered that it did not do what was asked."""

    # Whether it took the token of the worker's account before.
    had_access = False

    def build_failure(self, operation: str) -> ToolFailure:
        """Say what was refused, and whether it may be asked again."""
        text = f"Kubernetes refused {operation}: {self.message}"
        if self.status == _UNKNOWN:
            # The token of a pod ends when the pod is deleted, before its process does.
            text += (
                "; the token of the worker's account is not taken: it ended, or its pod was deleted"
            )
            if self.had_access:
                return WorkerPodGone(text, is_certain=False)
            return build_unreachable_failure(text)
        if self.status == _FORBIDDEN:
            text += "; the worker's chart gives its account the right with containers.onKubernetes"
            return ToolFailure(build_error("config", text, source=SOURCE))
        retryable = self.status in _PASSING
        return ToolFailure(build_error("container_start", text, source=SOURCE, retryable=retryable))


class KubernetesApi:
    """Sends requests; they raise `KubernetesRefusal`, and `ToolFailure` where nobody answers."""

    def __init__(self, base: str, *, account_folder: Path) -> None:
        self._base = base
        self._folder = account_folder
        self._session: aiohttp.ClientSession | None = None
        self._had_access = False
        # Its certificates are read in a thread: requests that come meanwhile wait.
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    async def read_namespace(self) -> str:
        """Return the namespace of the account; raises `ToolFailure`."""
        return await self._read_account_file("namespace")

    async def send_request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        """Send a request, and return its answer as JSON."""
        async with self.stream_response(
            method, path, query=query, body=body, seconds=_ANSWER_S
        ) as response:
            return codec.decode_json(await response.read())

    @asynccontextmanager
    async def stream_response(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and hold its answer; without `seconds` it may take any time."""
        # The token is another one after a while.
        headers = {"Authorization": f"Bearer {await self._read_account_file('token')}"}
        if body is not None:
            headers["Content-Type"] = _PATCH if method == "PATCH" else "application/json"
        session = await self._open_session()
        try:
            async with session.request(
                method,
                self._base + path,
                params=query,
                data=None if body is None else codec.encode_json(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds, connect=_ANSWER_S),
                allow_redirects=False,
            ) as response:
                if response.status >= ERROR_STATUS:
                    refusal = KubernetesRefusal(response.status, await read_message(response))
                    refusal.had_access = self._had_access
                    raise refusal
                self._had_access = True
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            if isinstance(problem, TimeoutError) and seconds is None:
                raise
            reason = str(problem) or type(problem).__name__
            text = (
                f"container tasks are Jobs of Kubernetes, whose API does not answer at "
                f"{self._base}: {reason}; {API_SETTING} says where it is"
            )
            raise build_unreachable_failure(text) from problem

    async def _open_session(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                trust: ssl.SSLContext | bool = True
                if self._base.startswith("https:"):
                    trust = await run_in_thread(_load_authority, self._folder / "ca.crt")
                connector = aiohttp.TCPConnector(ssl=trust, limit=0)
                self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
            return self._session

    async def _read_account_file(self, name: str) -> str:
        try:
            return (await run_in_thread((self._folder / name).read_text)).strip()
        except OSError as problem:
            raise _build_account_failure(self._folder / name, problem) from problem


def _load_authority(path: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(path))
    except OSError as problem:
        raise _build_account_failure(path, problem) from problem


def _build_account_failure(path: Path, problem: OSError) -> ToolFailure:
    text = (
        f"container tasks are Jobs of Kubernetes, and this worker has no account there: {path}: "
        f"{problem.strerror or problem}; give the pod one, or name its folder in {ACCOUNT_SETTING}"
    )
    return ToolFailure(build_error("config", text, source=SOURCE))
