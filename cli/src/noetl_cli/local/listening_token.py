"""The token of a local run's API: made for the run, found by other commands of the same user."""

from collections.abc import Iterator
from contextlib import contextmanager

from noetl_chassis.settings import AUTH
from noetl_cli.identity import server_origin, token_store
from noetl_cli.identity.token_store import SignInRecord
from noetl_cli.stack.home_folder import stack_secrets
from noetl_cli.stack.processes.loopback import LOOPBACK
from noetl_contracts import codec


@contextmanager
def keep_listening_token(environ: dict[str, str], port: int | None) -> Iterator[dict[str, str]]:
    """Keep a token for the API at a port while the block runs; yield what the API is told of it."""
    if port is None or environ.get(AUTH, "on") != "on":
        yield {}
        return
    token = stack_secrets.make_owner_token()
    origin = server_origin.parse_origin(f"http://{LOOPBACK}:{port}")
    store = token_store.open_token_store(environ)
    with store.hold_lock():
        store.put_record(origin, SignInRecord(api_key=token))
    try:
        yield {"NOETL_PLANNER_OWNER_TOKEN_SHA256": codec.digest_hex(token.encode())}
    finally:
        with store.hold_lock():
            store.remove_record(origin)
