"""What proves to a server who calls: an API key, a sign-in, or the token of the stack here.

A proof is sent to the server that it was made for, and to no other.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from noetl_chassis.clock import SystemClock
from noetl_cli import settings
from noetl_cli.errors import CliError
from noetl_cli.identity import contexts, server_origin, token_store
from noetl_cli.identity.contexts import SignInMethod
from noetl_cli.identity.token_store import SignInRecord, TokenStore
from noetl_cli.stack.home_folder import state
from noetl_cli.stack.home_folder.home import StackHome, is_supervised
from noetl_cli.stack.home_folder.state import StackPhase
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_cli.identity import provider_client
else:
    # Only a token that ends soon needs the provider.
    provider_client = LazyModule("noetl_cli.identity.provider_client")

# A token is replaced so long before its end, so that it does not end on its way.
REFRESH_BEFORE_S = 60.0
LAPTOP_TOKEN_FILE = "token"  # noqa: S105 - the name of a file
_ENDED = frozenset({StackPhase.STOPPED, StackPhase.STOPPING})
_FOREVER_S = float("inf")
_SIGN_IN = "Copy it again, or sign in: noetl login"
_clock = SystemClock()


class ServerAuthorization:
    """The proof for one server, made anew when it ends: a watch may last longer than a token."""

    def __init__(self, environ: dict[str, str], server: str) -> None:
        self._environ = environ
        self._server = server
        self._header: str | None = None
        self._good_until_s = 0.0

    def find_header(self) -> str | None:
        """Return the value of the header `Authorization`, or None; raises `CliError`."""
        if _clock.now().timestamp() >= self._good_until_s:
            self._header, self._good_until_s = _find_proof(self._environ, self._server)
        return self._header


def find_token_hint(environ: dict[str, str], server: str) -> str | None:
    """Say how to get the token of the stack here, if it is the server and its token is missing."""
    if _locate_laptop_token(environ).exists():
        return None
    is_here = _is_stack_here(environ, server_origin.parse_origin(server))
    return _explain_laptop_token(environ) if is_here else None


def find_context_headers(environ: dict[str, str], server: str) -> dict[str, str]:
    """Say whose things are meant, where the context of a server names them."""
    context = contexts.find_server_context(environ, server)
    if context is None:
        return {}
    named = {"X-NoETL-Tenant": context.tenant, "X-NoETL-Organization": context.organization}
    return {name: value for name, value in named.items() if value}


def _find_proof(environ: dict[str, str], server: str) -> tuple[str | None, float]:
    """Return the header and until when it is good."""
    origin = server_origin.parse_origin(server)
    key = settings.find_api_key(environ=environ)
    if key is not None and _is_key_for(environ, origin):
        return _write_bearer(key, "NOETL_API_KEY"), _FOREVER_S
    context = contexts.find_server_context(environ, server)
    if context is not None and context.sign_in is SignInMethod.NONE:
        return None, _FOREVER_S
    store = token_store.open_token_store(environ)
    record = store.find_record(origin)
    if record is not None:
        record = _refresh_record(store, origin, record)
        bearer = record.api_key or record.bearer
        until_s = _FOREVER_S if record.api_key else record.expires_s - REFRESH_BEFORE_S
        return _write_bearer(bearer, f"The sign-in at {origin}"), until_s
    token = _find_laptop_token(environ, origin)
    if token is None:
        return None, _FOREVER_S
    way_out = _explain_laptop_token(environ)
    return _write_bearer(token, "The stack's token", way_out), _FOREVER_S


def _is_key_for(environ: dict[str, str], origin: str) -> bool:
    """Tell whether the environment's key is for a server: the one that is named beside it."""
    named = settings.find_api_url(environ=environ)
    if named is None:
        context = contexts.find_current_context(environ)
        named = None if context is None else context.server
    return named is None or server_origin.parse_origin(named) == origin


def _refresh_record(store: TokenStore, origin: str, record: SignInRecord) -> SignInRecord:
    """Replace tokens that end soon, by one command at a time; raises `CliError`."""
    if not _ends_soon(record):
        return record
    with store.hold_lock():
        # Another command may have done it meanwhile: a refresh token is good once.
        sign_in_record = store.find_record(origin)
        if sign_in_record is None:
            raise _build_signed_out_error(origin)
        if not _ends_soon(sign_in_record):
            return sign_in_record
        if not sign_in_record.refresh_token:
            raise _build_signed_out_error(origin)
        with provider_client.open_provider(
            sign_in_record.issuer, sign_in_record.client_id
        ) as provider:
            answer = provider.refresh_tokens(
                sign_in_record.refresh_token, audience=sign_in_record.audience
            )
        fresh = provider_client.build_record(answer, sign_in_record)
        store.put_record(origin, fresh)
        return fresh


def _ends_soon(record: SignInRecord) -> bool:
    left_s = record.expires_s - _clock.now().timestamp()
    return not record.api_key and left_s < REFRESH_BEFORE_S


def _find_laptop_token(environ: dict[str, str], origin: str) -> str | None:
    """Return the token of the stack that runs here, if it is the server that is meant."""
    path = _locate_laptop_token(environ)
    if not path.exists() or not _is_stack_here(environ, origin):
        return None
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(
            f"{path} cannot be read: {error}.",
            way_out="It belongs to the user who called `noetl up`.",
        ) from error


def _locate_laptop_token(environ: dict[str, str]) -> Path:
    home: Path = settings.choose_home(None, environ=environ)
    return home / LAPTOP_TOKEN_FILE


def _explain_laptop_token(environ: dict[str, str]) -> str:
    path = _locate_laptop_token(environ)
    return f"The token belongs in {path}; this writes it anew: noetl down && noetl up"


def _is_stack_here(environ: dict[str, str], origin: str) -> bool:
    """Tell whether a server is the stack that runs here."""
    stack = StackHome(root=settings.choose_home(None, environ=environ))
    running = state.find_state(stack)
    # Behind a stack that has ended, anybody may listen on its port.
    is_running = running is not None and running.phase not in _ENDED and is_supervised(stack)
    address = running.urls.get("api") if running is not None and is_running else None
    return address is not None and server_origin.parse_origin(address) == origin


def _write_bearer(token: str, label: str, way_out: str = _SIGN_IN) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CliError(
            f"{label} is no token: it is empty, or has spaces or other characters than ASCII.",
            way_out=way_out,
        )
    return f"Bearer {token}"


def _build_signed_out_error(origin: str) -> CliError:
    return CliError(f"The sign-in at {origin} has ended.", way_out="Sign in again: noetl login")
