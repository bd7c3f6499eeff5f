"""Passwords and keys of one stack: made once, kept in one file that only its owner reads."""

import base64
import secrets
from collections.abc import Iterable

import msgspec
from msgspec import Struct, structs

from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder.home import StackHome, write_privately
from noetl_cli.stack.servers import nats, roles

SECRET_KEY_BYTES = 32
OWNER_TOKEN_BYTES = 32
# Unlike the scheme of API keys, by which a key is told from it.
OWNER_SCHEME = "owner_"


class Keyring(Struct, frozen=True, kw_only=True):
    """Every secret that the stack itself makes."""

    postgres_superuser: str
    postgres_by_role: dict[str, str]
    nats_by_user: dict[str, str]
    s3_access_key: str
    s3_secret_key: str
    # Seals stored credentials: losing it loses them.
    secret_key: str
    # Opens the API with all roles; commands find it in the folder's file `token`.
    owner_token: str = ""
    # Of the bucket for the user's own data, and of nothing else.
    target_access_key: str = ""
    target_secret_key: str = ""


def load_or_make_keyring(home: StackHome) -> Keyring:
    """Read the secrets; make them on the first start."""
    try:
        content = home.secrets_file.read_bytes()
    except FileNotFoundError:
        made = _make_keyring()
        write_privately(home.secrets_file, msgspec.json.format(msgspec.json.encode(made)))
        return made
    except OSError as error:
        raise StackError(
            f"{home.secrets_file} cannot be read: {error.strerror}.",
            way_out="Run noetl as the user who started the stack, or choose another --dir.",
        ) from error
    try:
        return _add_missing_secrets(home, msgspec.json.decode(content, type=Keyring))
    except msgspec.MsgspecError as error:
        raise StackError(
            f"{home.secrets_file} is damaged: {error}.",
            way_out="Restore it from a backup; without it the data cannot be opened. "
            "To start afresh: noetl down --purge",
        ) from error


def add_workers(home: StackHome, keyring: Keyring, names: Iterable[str]) -> Keyring:
    """Add the users of the broker that workers lack."""
    users = {name: _make_password() for name in names if name not in keyring.nats_by_user}
    return _write_added(home, keyring, users=users, roles_added={}) if users else keyring


def find_keyring(home: StackHome) -> Keyring | None:
    """Read the secrets; None where there are none that can be read."""
    try:
        return msgspec.json.decode(home.secrets_file.read_bytes(), type=Keyring)
    except (OSError, msgspec.MsgspecError):
        return None


def _add_missing_secrets(home: StackHome, keyring: Keyring) -> Keyring:
    """Add the users and roles that an earlier release did not know."""
    users = {user: _make_password() for user in nats.USERS if user not in keyring.nats_by_user}
    names = {role: _make_password() for role in roles.ROLES if role not in keyring.postgres_by_role}
    has_all_keys = bool(keyring.owner_token and keyring.target_access_key)
    if not users and not names and has_all_keys:
        return keyring
    return _write_added(home, keyring, users=users, roles_added=names)


def _write_added(
    home: StackHome, keyring: Keyring, *, users: dict[str, str], roles_added: dict[str, str]
) -> Keyring:
    made = structs.replace(
        keyring,
        nats_by_user={**keyring.nats_by_user, **users},
        postgres_by_role={**keyring.postgres_by_role, **roles_added},
        owner_token=keyring.owner_token or make_owner_token(),
        target_access_key=keyring.target_access_key or secrets.token_hex(10),
        target_secret_key=keyring.target_secret_key or secrets.token_hex(20),
    )
    write_privately(home.secrets_file, msgspec.json.format(msgspec.json.encode(made)))
    return made


def _make_keyring() -> Keyring:
    return Keyring(
        postgres_superuser=_make_password(),
        postgres_by_role={role: _make_password() for role in roles.ROLES},
        nats_by_user={user: _make_password() for user in nats.USERS},
        s3_access_key=secrets.token_hex(10),
        s3_secret_key=secrets.token_hex(20),
        secret_key=base64.b64encode(secrets.token_bytes(SECRET_KEY_BYTES)).decode(),
        owner_token=make_owner_token(),
        target_access_key=secrets.token_hex(10),
        target_secret_key=secrets.token_hex(20),
    )


def make_owner_token() -> str:
    """Make a token of 256 random bits for the owner of an installation."""
    return f"{OWNER_SCHEME}{secrets.token_urlsafe(OWNER_TOKEN_BYTES)}"


def write_owner_token(home: StackHome, keyring: Keyring) -> None:
    """Write the token where commands find it, readable by its owner alone."""
    write_privately(home.token_file, keyring.owner_token.encode())


def _make_password() -> str:
    # Letters and digits only: it stands in addresses and configuration files unquoted.
    return secrets.token_hex(16)
