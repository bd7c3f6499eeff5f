"""What the command line says of who calls, and to which server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from noetl_cli.errors import CliError
from noetl_cli.identity import authorization, contexts, server_origin, token_store
from noetl_cli.identity.authorization import ServerAuthorization
from noetl_cli.identity.contexts import Context, Contexts, SignInMethod
from noetl_cli.identity.token_store import SignInRecord
from noetl_cli.planner import client
from noetl_cli.stack.home_folder import state
from noetl_cli.stack.home_folder.home import StackHome, hold_supervisor_lock, make_home
from noetl_cli.stack.home_folder.state import StackPhase, StackState

SERVER = "https://noetl.example.org"
ELSEWHERE = (
    "https://evil.example.org",
    "https://noetl.example.org.evil.example.org",
    "https://noetl.example.org:8443",
    "http://noetl.example.org",
    "https://noetl.example.org@evil.example.org",
    "https://evil.example.org/https://noetl.example.org",
    "https://evil.example.org#noetl.example.org",
)
FOREVER_S = 32_000_000_000.0


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"NOETL_CONFIG": str(tmp_path / "config"), "NOETL_HOME": str(tmp_path / "home")}


def find_header(environ: dict[str, str], server: str) -> str | None:
    return ServerAuthorization(environ, server).find_header()


def keep(environ: dict[str, str], record: SignInRecord, server: str = SERVER) -> None:
    store = token_store.open_token_store(environ)
    with store.hold_lock():
        store.put_record(server_origin.parse_origin(server), record)


def run_stack(environ: dict[str, str], api: str) -> StackHome:
    """Play a stack that runs here and has written its token."""
    home = make_home(Path(environ["NOETL_HOME"]))
    (home.root / authorization.LAPTOP_TOKEN_FILE).write_text("laptop\n")
    write_stack_state(home, api, StackPhase.READY)
    return home


def write_stack_state(home: StackHome, api: str, phase: StackPhase) -> None:
    state.write_state(
        home,
        StackState(
            phase=phase,
            home=str(home.root),
            supervisor_pid=1,
            supervisor_created=0.0,
            started_at="2026-01-01T00:00:00Z",
            urls={"api": api},
        ),
    )


def test_nobody_is_named_where_nothing_is_kept(environ: dict[str, str]) -> None:
    assert find_header(environ, SERVER) is None


def test_a_sign_in_goes_to_its_server_alone(environ: dict[str, str]) -> None:
    keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S))
    for same in (SERVER, f"{SERVER}/", f"{SERVER}:443", "https://NoETL.example.org"):
        assert find_header(environ, same) == "Bearer token"
    for other in ELSEWHERE:
        assert find_header(environ, other) is None


def test_a_key_of_the_environment_goes_to_the_server_that_is_named_beside_it(
    environ: dict[str, str],
) -> None:
    keyed = {**environ, "NOETL_API_KEY": "key"}
    assert find_header(keyed, SERVER) == "Bearer key"
    beside = {**keyed, "NOETL_SERVER": SERVER}
    assert find_header(beside, SERVER) == "Bearer key"
    for other in ELSEWHERE:
        assert find_header(beside, other) is None
    context = Context(name="prod", server=SERVER)
    contexts.write_contexts(Contexts(current="prod", contexts=[context]), environ)
    for other in ELSEWHERE:
        assert find_header(keyed, other) is None


def test_a_key_of_the_environment_counts_before_a_sign_in(environ: dict[str, str]) -> None:
    keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S))
    assert find_header({**environ, "NOETL_API_KEY": "key"}, SERVER) == "Bearer key"


def test_the_token_of_the_stack_goes_to_the_running_stack_alone(environ: dict[str, str]) -> None:
    api = "http://127.0.0.1:8700"
    home = run_stack(environ, api)
    with hold_supervisor_lock(home):
        assert find_header(environ, api) == "Bearer laptop"
        for other in ("http://127.0.0.1:8701", "http://127.0.0.2:8700", SERVER):
            assert find_header(environ, other) is None
        for phase in (StackPhase.STOPPING, StackPhase.STOPPED):
            write_stack_state(home, api, phase)
            assert find_header(environ, api) is None
    # Its supervisor was killed, and wrote nothing any more.
    write_stack_state(home, api, StackPhase.READY)
    assert find_header(environ, api) is None


def test_a_missing_or_empty_token_of_the_stack_names_its_file_and_the_way_out(
    environ: dict[str, str],
) -> None:
    api = "http://127.0.0.1:8700"
    home = run_stack(environ, api)
    says = f"The token belongs in {home.token_file}; this writes it anew: noetl down && noetl up"
    with hold_supervisor_lock(home):
        assert authorization.find_token_hint(environ, api) is None
        home.token_file.write_text("")
        with pytest.raises(CliError) as refused:
            find_header(environ, api)
        assert refused.value.way_out == says
        home.token_file.unlink()
        assert authorization.find_token_hint(environ, api) == says
        assert authorization.find_token_hint(environ, SERVER) is None


def test_a_context_may_say_that_nobody_signs_in(environ: dict[str, str]) -> None:
    keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S))
    quiet = Context(name="open", server=SERVER, sign_in=SignInMethod.NONE)
    contexts.write_contexts(Contexts(contexts=[quiet]), environ)
    assert find_header(environ, SERVER) is None


def test_a_sign_in_that_cannot_be_renewed_is_told_as_such(environ: dict[str, str]) -> None:
    keep(environ, SignInRecord(bearer="token", expires_s=1.0))
    with pytest.raises(CliError) as refused:
        find_header(environ, SERVER)
    assert refused.value.way_out == "Sign in again: noetl login"


@pytest.mark.parametrize("key", ["two words", "new\r\nX-Other: line", "é", "tab\t"])
def test_what_would_be_another_header_is_no_token(environ: dict[str, str], key: str) -> None:
    with pytest.raises(CliError) as refused:
        find_header({**environ, "NOETL_API_KEY": key}, SERVER)
    assert key not in refused.value.message


def test_a_file_that_others_can_read_is_not_used(environ: dict[str, str]) -> None:
    keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S))
    file = Path(environ["NOETL_CONFIG"]) / token_store.FILE
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(CliError, match="other users"):
        find_header(environ, SERVER)


def test_a_file_that_is_none_is_told_with_its_way_out(environ: dict[str, str]) -> None:
    keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S))
    (Path(environ["NOETL_CONFIG"]) / token_store.FILE).write_text("[]")
    with pytest.raises(CliError) as refused:
        find_header(environ, SERVER)
    assert "noetl login" in refused.value.way_out


def test_a_proof_is_asked_for_again_when_it_ends(environ: dict[str, str]) -> None:
    keep(environ, SignInRecord(bearer="first", expires_s=FOREVER_S))
    server_authorization = ServerAuthorization(environ, SERVER)
    assert server_authorization.find_header() == "Bearer first"
    keep(environ, SignInRecord(bearer="second", expires_s=FOREVER_S))
    assert server_authorization.find_header() == "Bearer first"
    server_authorization._good_until_s = 0.0
    assert server_authorization.find_header() == "Bearer second"


class Memory:
    """A keyring of a system, in memory."""

    priority = 5

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], str] = {}


@pytest.fixture
def a_keyring(monkeypatch: pytest.MonkeyPatch) -> Any:
    keyring = pytest.importorskip("keyring", reason="the extra `keyring` is not installed")
    memory = Memory()

    class Backend(keyring.backend.KeyringBackend):  # type: ignore[misc, name-defined]  # its type is not known here
        priority = 5

        def get_password(self, service: str, username: str) -> str | None:
            return memory.texts.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            memory.texts[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            del memory.texts[service, username]

    before = keyring.get_keyring()
    keyring.set_keyring(Backend())
    yield memory
    keyring.set_keyring(before)


def test_a_keyring_keeps_tokens_where_there_is_one(
    environ: dict[str, str], a_keyring: Memory
) -> None:
    keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S))
    text = (Path(environ["NOETL_CONFIG"]) / token_store.FILE).read_text()
    assert "token" not in text
    assert "token" in a_keyring.texts["noetl", f"{SERVER}:443"]
    assert find_header(environ, SERVER) == "Bearer token"
    store = token_store.open_token_store(environ)
    with store.hold_lock():
        assert store.remove_record(f"{SERVER}:443")
    assert not a_keyring.texts
    assert find_header(environ, SERVER) is None


@contextmanager
def a_listener(redirect_to: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that remembers the headers that it got, and may send callers on."""
    heard: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append({name.lower(): value for name, value in self.headers.items()})
            body = json.dumps({"pools": []}).encode()
            self.send_response(302 if redirect_to else 200)
            if redirect_to:
                self.send_header("Location", redirect_to)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *parts: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", heard
        server.shutdown()
        thread.join()


def test_a_client_says_who_calls_and_follows_nobody(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with a_listener() as (thief, stolen), a_listener(f"{thief}/api/pools") as (own, heard):
        keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S), own)
        context = Context(name="prod", server=own, tenant="acme", organization="west")
        contexts.write_contexts(Contexts(current="prod", contexts=[context]), environ)
        with client.open_client(None) as planner, pytest.raises(CliError):
            planner.get("/api/pools")
        with client.open_client(thief) as planner:
            planner.get("/api/pools")
    assert heard[0]["authorization"] == "Bearer token"
    assert (heard[0]["x-noetl-tenant"], heard[0]["x-noetl-organization"]) == ("acme", "west")
    assert len(stolen) == 1
    assert not {"authorization", "x-noetl-tenant"} & set(stolen[0])


def test_a_user_in_the_address_is_said_instead(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with a_listener() as (own, heard):
        keep(environ, SignInRecord(bearer="token", expires_s=FOREVER_S), own)
        with client.open_client(own.replace("//", "//ann:secret@")) as planner:
            planner.get("/api/pools")
    assert heard[0]["authorization"] == "Basic YW5uOnNlY3JldA=="
