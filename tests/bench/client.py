"""The front door, and the playbooks that go through it."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import httpx
import msgspec
import pycurl
from tests.support.asking import ENDS
from tests.support.stack import NOTHING, Stack

from noetl_storage.process.curl import create_curl_handle

TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
WAIT_S = 60
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"


class KeptConnection:
    """What is asked where milliseconds count, over one connection that is kept open.

    libcurl sends a request as one piece; httpx was a sixth of W1, and the standard library's client,
    which sends head and body apart, takes 3 to 7 hundredths of it more.
    """

    def __init__(self, url: str, headers: Mapping[str, str] = NOTHING) -> None:
        self._url = url
        self._headers = headers
        self._curl = create_curl_handle()
        self._curl.setopt(pycurl.PROXY, "")

    def ask(self, path: str, asked: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Post a document and return the answer, which must be a good one."""
        curl = self._curl
        curl.setopt(pycurl.URL, self._url + path)
        # A name without a value is not sent: nobody is to be asked whether a body may come.
        lines = [f"{name}: {value}" for name, value in {**self._headers, **headers}.items()]
        curl.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json", "Expect:", *lines])
        curl.setopt(pycurl.POSTFIELDS, msgspec.json.encode(asked))
        said = curl.perform_rb()
        assert curl.getinfo(pycurl.RESPONSE_CODE) < HTTPStatus.BAD_REQUEST, said
        return msgspec.json.decode(said, type=dict[str, Any])


class Client:
    """The API, its connections kept open."""

    def __init__(self, stack: Stack) -> None:
        self.http = httpx.Client(
            base_url=stack.url("api"), headers=stack.owner_headers, timeout=600
        )
        self._api_connection = KeptConnection(stack.url("api"), stack.owner_headers)

    def register(self, text: str) -> None:
        """Register a playbook."""
        answer = self.http.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
        answer.raise_for_status()

    def keep(self, name: str, dsn: str) -> None:
        """Keep a credential of a PostgreSQL database."""
        answer = self.http.post(
            "/api/credentials", json={"name": name, "type": "postgres", "data": {"dsn": dsn}}
        )
        answer.raise_for_status()

    def submit(self, path: str, **workload: Any) -> str:
        """Ask for a run; return the execution's id."""
        execution_id: str = self._execute(path, workload)["execution_id"]
        return execution_id

    def run(self, path: str, **workload: Any) -> float:
        """Run a playbook; return the seconds from submission to the end that the client sees."""
        started = time.perf_counter()
        answer = self._execute(path, workload, Prefer=f"wait={WAIT_S}")
        status = answer["status"]
        if status not in TERMINAL:
            # It takes longer than a request waits, or this is an API that does not wait.
            status = self._followed(answer["execution_id"])
        seconds = time.perf_counter() - started
        assert status == "COMPLETED", (path, status)
        return seconds

    def _execute(self, path: str, workload: dict[str, Any], **headers: str) -> dict[str, Any]:
        return self._api_connection.ask(
            "/api/execute", {"path": path, "workload": workload}, **headers
        )

    def _followed(self, execution_id: str) -> str:
        url = f"/api/executions/{execution_id}/stream"
        with self.http.stream("GET", url, params={"event_type": ENDS}) as stream:
            lines = list(stream.iter_lines())
        return "COMPLETED" if any("playbook.completed" in line for line in lines) else "not over"

    def read_variables(self, execution_id: str) -> dict[str, Any]:
        """Return the variables of an execution."""
        shown = self.http.get(f"/api/executions/{execution_id}/status").raise_for_status()
        variables: dict[str, Any] = shown.json()["variables"]
        return variables

    def wait(self, execution_id: str) -> None:
        """Wait for an execution's end, which must be a good one."""
        while True:
            status = self.http.get(f"/api/executions/{execution_id}/status").json()["status"]
            if status in TERMINAL:
                assert status == "COMPLETED", (execution_id, status)
                return
            time.sleep(0.05)
