"""Notifications by e-mail, in a chat and as signed calls, each with a real server on loopback."""

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.services import free_port
from tests.support.stack import Stack, running_stack

# The server is on loopback, without TLS.
pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")

CHANNELS = Path(__file__).parents[2] / "examples" / "notifications"
SECRET, PASSWORD = "a-secret-of-the-hook", "a-password-of-the-mail"
FAILING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: nightly, path: jobs/nightly}
workflow:
  - {step: load, tool: {kind: noop, result: "{{ workload.nothing }}"}}
"""
SLOW = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: slow, path: jobs/slow}
workflow:
  - {step: nap, tool: {kind: python, code: "import time\\ntime.sleep(20)"}}
"""
SIGNED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: release, path: jobs/release}
workflow:
  - {step: sign, tool: {kind: external, mode: approval, title: "Release?", assignees: [ops]}}
"""
DUE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: due, path: jobs/due}
executor: {spec: {deadline: 1s}}
workflow:
  - {step: sign, tool: {kind: external, mode: approval, title: "Go on?"}}
"""


class Receiver:
    """What arrived at the servers of the test."""

    def __init__(self) -> None:
        self.letters: list[Message] = []
        self.calls: list[tuple[str, dict[str, str], bytes]] = []

    async def handle_DATA(self, _server: Any, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name
        """Keep a letter."""
        assert isinstance(envelope.content, bytes)
        self.letters.append(message_from_bytes(envelope.content))
        return "250 kept"


def check_login(*arguments: Any) -> AuthResult:
    given = arguments[-1]
    assert isinstance(given, LoginPassword)
    return AuthResult(success=(given.login, given.password) == (b"us", PASSWORD.encode()))


@contextmanager
def serving_calls(receiver: Receiver, port: int) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.calls.append((self.path, dict(self.headers), body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Receiver]]:
    """A stack whose notifications go to the servers of this module."""
    receiver, mail_port, call_port = Receiver(), free_port(), free_port()
    mail = Controller(
        receiver,
        hostname="127.0.0.1",
        port=mail_port,
        auth_required=True,
        auth_require_tls=False,
        authenticator=check_login,
    )
    mail.start()
    folder = tmp_path_factory.mktemp("channels") / "stack"
    options = ("--no-s3", "--allow-http", f"127.0.0.1:{call_port}")
    try:
        with serving_calls(receiver, call_port), running_stack(folder, *options) as stack:
            prepare(stack, mail_port, call_port)
            yield stack, receiver
    finally:
        mail.stop()


def prepare(stack: Stack, mail_port: int, call_port: int) -> None:
    base = f"http://127.0.0.1:{call_port}"
    mail = {"host": "127.0.0.1", "port": mail_port, "user": "us", "password": PASSWORD}
    credentials = {
        "mail": {**mail, "from": "noetl@example.org", "to": "ops@example.org"},
        "chat": {"url": f"{base}/chat"},
        "hook": {"url": f"{base}/hook", "secret": SECRET},
    }
    for name, data in credentials.items():
        post(stack, "/api/credentials", {"name": name, "type": "generic", "data": data})
    broken = FAILING.replace("nightly", "broken")
    for text in (
        *(file.read_text() for file in CHANNELS.glob("*.yaml")),
        FAILING,
        broken,
        SLOW,
        SIGNED,
        DUE,
    ):
        post(stack, "/api/catalog/register", {"content": text})
    for name in ("email", "slack", "webhook"):
        rule = {
            "pattern": "jobs/nightly",
            "causes": ["failed"],
            "playbook": f"notifications/{name}",
        }
        put_rule(stack, f"by-{name}", rule)


def post(stack: Stack, path: str, body: dict[str, Any]) -> None:
    answer = http.post(f"{stack.url('api')}{path}", json=body, timeout=30)
    assert answer.is_success, answer.text


def put_rule(stack: Stack, name: str, rule: dict[str, Any]) -> None:
    answer = http.put(f"{stack.url('api')}/api/notifications/{name}", json=rule, timeout=30)
    assert answer.is_success, answer.text


def test_a_failure_is_told_once_on_each_channel(told: tuple[Stack, Receiver]) -> None:
    stack, receiver = told
    execution_id = stack.execute("jobs/nightly", key="nightly-1")
    wait_until(
        lambda: len(receiver.letters) == 1 and len(receiver.calls) == 2,
        timeout_s=60,
        what="all three have arrived",
    )
    (letter,) = receiver.letters
    assert (letter["To"], letter["Subject"]) == ("ops@example.org", "jobs/nightly failed")
    assert letter["Message-ID"] == f"<by-email.{execution_id}.failed@noetl>"
    text = str(letter.get_payload())
    assert "workload.nothing" in text
    assert f"noetl status {execution_id}" in text
    calls = {path: (headers, body) for path, headers, body in receiver.calls}
    said = json.loads(calls["/chat"][1])["text"]
    assert said.startswith("*jobs/nightly* failed after")
    assert said.endswith(f"\n`noetl status {execution_id}`")
    headers, body = calls["/hook"]
    signed = f"{headers['X-Noetl-Time']}.".encode() + body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-Noetl-Signature"] == f"sha256={digest}"
    assert headers["X-Noetl-Delivery"] == f"by-webhook/{execution_id}/failed"
    assert json.loads(body)["path"] == "jobs/nightly"


def test_what_is_late_is_told_while_it_still_runs(told: tuple[Stack, Receiver]) -> None:
    stack, receiver = told
    rule = {"pattern": "jobs/slow", "causes": ["late"], "longer_than_s": 1.0}
    put_rule(stack, "late", {**rule, "playbook": "notifications/slack"})
    before = len(receiver.calls)
    execution_id = stack.execute("jobs/slow", key="slow-1")
    wait_until(lambda: len(receiver.calls) > before, timeout_s=60, what="somebody was told")
    found = http.get(f"{stack.url('api')}/api/executions/{execution_id}", timeout=60).json()
    said = json.loads(receiver.calls[-1][2])["text"]
    assert (found["status"], "*jobs/slow* late after" in said) == ("RUNNING", True)
    http.post(f"{stack.url('api')}/api/executions/{execution_id}/cancel", json={}, timeout=60)


def test_a_passed_deadline_is_told_and_shown_while_the_run_goes_on(
    told: tuple[Stack, Receiver],
) -> None:
    stack, receiver = told
    rule = {"pattern": "jobs/due", "causes": ["late"], "playbook": "notifications/slack"}
    put_rule(stack, "due", rule)
    before = len(receiver.calls)
    execution_id = stack.execute("jobs/due", key="due-1")
    wait_until(lambda: len(receiver.calls) > before, timeout_s=60, what="somebody was told")
    assert json.loads(receiver.calls[-1][2])["text"].startswith("*jobs/due* late after")
    url = f"{stack.url('api')}/api/executions/{execution_id}"
    status = http.get(f"{url}/status", timeout=60).json()
    (mark,) = status["late"]
    assert (status["status"], mark["step"], mark["ended_at"]) == ("RUNNING", None, None)
    (approval,) = http.get(f"{stack.url('api')}/api/approvals", timeout=60).json()["approvals"]
    post(stack, f"/api/approvals/{approval['approval_id']}", {"decision": "approve"})
    wait_until(
        lambda: http.get(f"{url}/status", timeout=60).json()["completed"],
        timeout_s=60,
        what="the run has gone on to its end",
    )
    (mark,) = http.get(f"{url}/status", timeout=60).json()["late"]
    assert mark["ended_at"] is not None
    assert len(receiver.calls) == before + 1
    assert_parity(stack, execution_id)


def test_who_may_decide_is_told_what_is_asked_and_where(told: tuple[Stack, Receiver]) -> None:
    stack, receiver = told
    for channel in ("slack", "email"):
        rule = {"pattern": "jobs/release", "causes": ["waiting"]}
        put_rule(stack, f"sign-{channel}", {**rule, "playbook": f"notifications/{channel}"})
    calls, letters = len(receiver.calls), len(receiver.letters)
    execution_id = stack.execute("jobs/release", key="release-1")
    wait_until(
        lambda: len(receiver.calls) > calls and len(receiver.letters) > letters,
        timeout_s=60,
        what="both have arrived",
    )
    said = json.loads(receiver.calls[-1][2])["text"]
    url = stack.url("api")
    (approval,) = http.get(f"{url}/api/approvals", timeout=60).json()["approvals"]
    approval_id = approval["approval_id"]
    assert said.startswith("*jobs/release* waiting after")
    assert f": Release? {url}/approvals\n`noetl approve {approval_id}`" in said
    letter = receiver.letters[-1]
    key = f"sign-email.{execution_id}.waiting.{approval_id}"
    assert letter["Message-ID"] == f"<{key}@noetl>"
    text = str(letter.get_payload())
    assert "approval assignees: ['ops']" in text
    assert "approval until: " in text
    post(stack, f"/api/approvals/{approval_id}", {"decision": "approve"})


def test_what_comes_in_quiet_hours_is_told_together_when_they_end(
    told: tuple[Stack, Receiver],
) -> None:
    stack, receiver = told
    log = f"{stack.url('api')}/api/notifications/log"
    always = {"from": "00:00", "to": "24:00", "zone": "Europe/Berlin"}
    rules = {
        f"calm-{channel}": {
            "pattern": "jobs/broken",
            "causes": ["failed"],
            "playbook": f"notifications/{channel}",
        }
        for channel in ("slack", "email")
    }
    for name, rule in rules.items():
        put_rule(stack, name, {**rule, "quiet": always})
    executions = [stack.execute("jobs/broken", key=f"broken-{number}") for number in range(2)]

    def list_held() -> list[str]:
        sent = http.get(log, timeout=60).json()["notifications"]
        return [one["rule"] for one in sent if one["status"] == "HELD"]

    wait_until(lambda: len(list_held()) == 4, timeout_s=60, what="all are held")
    for name, rule in rules.items():
        put_rule(stack, name, rule)

    def list_calls() -> list[str]:
        return [
            json.loads(body)["text"]
            for path, _, body in receiver.calls
            if path == "/chat" and b"calm-slack" in body
        ]

    def list_letters() -> list[Message]:
        return [letter for letter in receiver.letters if "calm-email" in letter["Message-ID"]]

    wait_until(
        lambda: len(list_calls()) == len(list_letters()) == 1, timeout_s=60, what="both arrived"
    )
    (said,), (letter,) = list_calls(), list_letters()
    assert said.startswith("*calm-slack* after quiet hours:\n")
    assert letter["Subject"] == "jobs/broken held"
    for execution_id in executions:
        line = f"jobs/broken failed: noetl status {execution_id}"
        assert line in str(letter.get_payload())
        assert f"• jobs/broken failed: `noetl status {execution_id}`" in said
    assert list_held() == []


def test_no_secret_of_a_channel_is_in_a_history(told: tuple[Stack, Receiver]) -> None:
    stack, _ = told
    url = stack.url("api")
    sent = http.get(f"{url}/api/notifications/log", timeout=60).json()["notifications"]
    assert sent
    for one in sent:
        assert one["delivered_by"]
        events = http.get(
            f"{url}/api/executions/{one['delivered_by']}/events",
            params={"limit": 1000},
            timeout=60,
        ).text
        assert SECRET not in events
        assert PASSWORD not in events
