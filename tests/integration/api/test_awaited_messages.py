"""What a run waits for is told while it waits, and what was decided when it is decided again."""

import threading
from pathlib import Path
from typing import Any

import httpx
from tests.support.asking import http
from tests.support.running_api import Noetl
from tests.support.servers import wait_until
from tests.support.services import free_port

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gate, path: demo/gate}
workflow:
  - step: ask
    tool: {kind: external, mode: approval, title: "Go?", timeout: 60}
    next: hold
  - step: hold
    tool: {kind: external, mode: signal, correlation_key: go on, timeout: 60}
"""


class Person:
    """Somebody who decides the approval, decides it again, and sends the signal."""

    def __init__(self, api: str) -> None:
        self._api = api
        self.answers: list[httpx.Response] = []
        self.asked: list[dict[str, Any]] = []

    def act(self) -> None:
        approval = self._wait_for("ask")
        address = f"/approvals/{approval['approval_id']}"
        for decision in ("reject", "approve"):
            self._send(address, {"decision": decision, "by": "ada"})
        self._wait_for("hold")
        self._send("/signals/go%20on", {})

    def _send(self, address: str, body: dict[str, Any]) -> None:
        self.answers.append(http.post(f"{self._api}{address}", json=body, timeout=60))

    def _wait_for(self, step: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def is_asked() -> bool:
            try:
                (execution,) = http.get(f"{self._api}/executions").json()["executions"]
                address = f"{self._api}/executions/{execution['execution_id']}/status"
                found[:] = http.get(address).json()["messages"]
            except (httpx.TransportError, ValueError):
                return False
            return [message["step"] for message in found] == [step]

        wait_until(is_asked, timeout_s=60, what=f"step {step} waits")
        self.asked += found
        return found[0]


def test_a_run_tells_what_it_waits_for_and_how_to_answer(noetl: Noetl, tmp_path: Path) -> None:
    playbook = tmp_path / "gate.yaml"
    playbook.write_text(PLAYBOOK)
    port = free_port()
    person = Person(f"http://127.0.0.1:{port}/api")
    acting = threading.Thread(target=person.act)
    acting.start()
    outcome = noetl("run", str(playbook), "-r", "local", "--listen", str(port))
    acting.join()
    assert outcome.code == 0, outcome
    approval, signal = person.asked
    assert approval["command"] == f"noetl approve {approval['approval_id']}"
    assert signal["command"] == "noetl signal 'go on' --data '{}'"
    assert approval["since"] < approval["until"]
    at = f" --server http://127.0.0.1:{port}"
    assert "ask: waits for an approval (Go?), until 20" in outcome.out
    assert f": {approval['command']}{at}" in outcome.out
    assert f": {signal['command']}{at}" in outcome.out
    assert [answer.status_code for answer in person.answers] == [202, 409, 202]
    again = person.answers[1].json()
    assert again["code"] == "already_answered"
    assert "was decided already, as 'reject' by ada at 20" in again["detail"]


def test_a_local_run_without_a_port_says_that_nobody_can_answer(
    noetl: Noetl, tmp_path: Path
) -> None:
    playbook = tmp_path / "gate.yaml"
    playbook.write_text(PLAYBOOK.replace("timeout: 60", "timeout: 0.2"))
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 1
    assert "nobody can send it: run it again with --listen PORT" in outcome.out
