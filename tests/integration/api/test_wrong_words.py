"""Every verb of runs, approvals and plans with wrong words: one line, a way out, no traceback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import ApiWorld
from tests.support.running_api import Noetl, RunningApi

VERBS = ("approve", "approvals", "signal", "pause", "resume", "rerun", "plan", "lint", "schema")
# What each verb needs to be worth sending.
SENT = (
    ("approve", "4711"),
    ("approvals",),
    ("signal", "key-1"),
    ("pause", "4711"),
    ("resume", "4711"),
    ("rerun", "4711", "--detach"),
    ("plan", "demo/none"),
)
NAMED = tuple(words for words in SENT if words[0] not in {"approvals", "signal"})


@pytest.fixture(scope="module")
def running_api() -> Iterator[RunningApi]:
    """One API for all: no wrong word changes it."""
    opened = RunningApi(world=ApiWorld())
    opened.start()
    yield opened
    opened.stop()


@contextmanager
def stranger(content: bytes) -> Iterator[str]:
    """A server that answers everything with the same words, and is no planner."""

    class Same(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the name that the server looks for

        def log_message(self, *_args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Same)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_what_a_verb_does_and_what_it_takes(noetl: Noetl, verb: str) -> None:
    shown = noetl(verb, "--help")
    assert shown.code == 0
    assert f"noetl {verb}" in shown.out or "Usage:" in shown.out
    for line in shown.out.splitlines():
        option = line.strip(" │").split(" ")[0]
        if option.startswith("--") and option != "--help":
            # Every option is explained on its line or the next.
            assert line.rstrip(" │").strip() != option, line


@pytest.mark.parametrize("words", NAMED, ids=lambda words: words[0])
def test_what_is_not_there_is_named(noetl: Noetl, words: tuple[str, ...]) -> None:
    outcome = noetl(*words)
    assert outcome.code == 2, outcome
    assert words[1] in outcome.err


@pytest.mark.parametrize("words", SENT, ids=lambda words: words[0])
@pytest.mark.parametrize("word", ["../../etc", "a b\n", "", "ä", "\udcff", "x" * 5000])
def test_a_strange_word_is_refused_and_not_taken_for_a_path(
    noetl: Noetl, words: tuple[str, ...], word: str
) -> None:
    if len(words) == 1:
        outcome = noetl(*words, word)
    else:
        outcome = noetl(words[0], word, *words[2:])
        if words[0] == "signal" and word not in {"", "\udcff", "x" * 5000}:
            assert outcome.code == 0, outcome
            return
    assert outcome.code in {1, 2}, outcome
    assert outcome.err.strip()


@pytest.mark.parametrize("words", SENT, ids=lambda words: words[0])
@pytest.mark.parametrize("content", [b"<html>hello</html>", b"[]", b"{}", b"7", b'{"model": 7}'])
def test_a_server_that_is_no_planner_is_found_out(
    noetl: Noetl, words: tuple[str, ...], content: bytes
) -> None:
    with stranger(content) as address:
        outcome = noetl(*words, "--server", address)
    assert outcome.code == 1, outcome
    assert "planner" in outcome.err


@pytest.mark.parametrize("words", SENT, ids=lambda words: words[0])
@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nowhere", "http://[", "http://a:b"])
def test_an_address_without_a_planner_is_named(
    noetl: Noetl, words: tuple[str, ...], address: str
) -> None:
    outcome = noetl(*words, "--server", address)
    assert outcome.code == (1 if address == "http://127.0.0.1:1" else 2), outcome
    assert address in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ("approve",),
        ("approve", "1", "2"),
        ("approve", "1", "--data", "{not json"),
        ("approve", "1", "--data", "\udcff"),
        ("approvals", "--limit", "0"),
        ("approvals", "--limit", "many"),
        ("signal",),
        ("signal", "k", "--data", "[1,"),
        ("pause",),
        ("pause", "1", "--why"),
        ("resume", "1", "2"),
        ("rerun", "1", "--set", "novalue"),
        ("rerun", "1", "--set-json", "a={"),
        ("rerun", "1", "--set", "a=1", "--set", "a.b=2"),
        ("rerun", "1", "--timeout", "soon"),
        ("plan",),
        ("plan", "demo/none", "--version", "0"),
        ("plan", "no-such-file.yaml"),
        ("plan", "demo/none", "--format", "poem"),
        ("lint",),
        ("lint", "no-such-file.yaml"),
        ("lint", "--explain", "E9999"),
        ("lint", "x.yaml", "--format", "poem"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_meant_is_wrong_usage(
    noetl: Noetl, words: tuple[str, ...]
) -> None:
    outcome = noetl(*words)
    assert outcome.code == 2, outcome
    assert outcome.err.strip()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"\0" * 10, b"[]", b"7", b"a: [", b"- - -"])
@pytest.mark.parametrize("verb", ["plan", "lint"])
def test_a_file_that_is_no_playbook_is_refused(
    noetl: Noetl, tmp_path: Path, verb: str, content: bytes
) -> None:
    file = tmp_path / "odd.yaml"
    file.write_bytes(content)
    outcome = noetl(verb, str(file))
    assert outcome.code == (1 if verb == "lint" else 2), outcome
    assert "odd.yaml" in outcome.out + outcome.err


def test_for_programs_a_failure_is_one_line_of_json(noetl: Noetl) -> None:
    for words in NAMED:
        outcome = noetl(*words, "--json")
        assert outcome.code == 2
        assert json.loads(outcome.out.strip().splitlines()[-1])
