"""A local run that listens has a token, which other commands of the same user find meanwhile."""

from pathlib import Path

from noetl_cli.identity.authorization import ServerAuthorization
from noetl_cli.local.runner import keep_listening_token
from noetl_contracts import codec


def test_the_token_is_found_while_the_run_listens_and_sent_to_it_alone(tmp_path: Path) -> None:
    environ = {"NOETL_CONFIG": str(tmp_path), "NOETL_HOME": str(tmp_path / "home")}
    address = "http://127.0.0.1:8899"
    with keep_listening_token(environ, 8899) as listening_token:
        header = ServerAuthorization(environ, address).find_header()
        assert header is not None
        digest = codec.digest_hex(header.removeprefix("Bearer ").encode())
        assert listening_token == {"NOETL_PLANNER_OWNER_TOKEN_SHA256": digest}
        assert ServerAuthorization(environ, "http://127.0.0.1:8898").find_header() is None
    assert ServerAuthorization(environ, address).find_header() is None


def test_nothing_is_kept_where_nobody_is_asked_who_calls(tmp_path: Path) -> None:
    environ = {"NOETL_CONFIG": str(tmp_path), "NOETL_AUTH": "off-on-loopback"}
    with keep_listening_token(environ, 8899) as listening_token:
        assert listening_token == {}
    assert list(tmp_path.iterdir()) == []
