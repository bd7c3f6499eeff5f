"""Tokens and keys by server: in the system's keyring, or in a file of this user alone.

A server's record is found by its origin, and is never sent to another one.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from noetl_cli import settings
from noetl_cli.errors import CliError
from noetl_cli.identity.contexts import make_private_folder
from noetl_cli.stack.home_folder.home import write_privately
from noetl_contracts import codec
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    import keyring
    from keyring import errors as keyring_errors
else:
    # It takes longer to load than most verbs, and is not on every machine.
    keyring = LazyModule("keyring")
    keyring_errors = LazyModule("keyring.errors")

FILE = "sign-ins.json"
LOCK_FILE = "sign-ins.lock"
KEYRING_SERVICE = "noetl"
LOCK_S = 60.0
_POLL_S = 0.05
_OTHERS_BITS = 0o077
# What a usable keyring of a system has; those that keep nothing have less.
_PRIORITY_MIN = 1


class SignInRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What proves to one server who calls: an API key, or the tokens of a sign-in.

    `bearer` is sent. The rest is for the next one: where the provider gives it, and for what.
    """

    api_key: str = ""
    bearer: str = ""
    expires_s: float = 0.0
    refresh_token: str = ""
    issuer: str = ""
    client_id: str = ""
    token_kind: str = ""
    audience: str = ""


class _Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record, or that the keyring has it."""

    record: SignInRecord | None = None
    is_in_keyring: bool = False


class TokenStore:
    """The records of one user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE

    def find_record(self, origin: str) -> SignInRecord | None:
        """Return the record of a server, or None; raises `CliError`."""
        stored = self._read_all().get(origin)
        if stored is None or not stored.is_in_keyring:
            return None if stored is None else stored.record
        try:
            text = keyring.get_password(KEYRING_SERVICE, origin)
        except (ImportError, keyring_errors.KeyringError) as error:
            raise CliError(
                f"The system's keyring does not open: {error}.",
                way_out="Unlock it, or sign in again: noetl login",
            ) from error
        try:
            return None if text is None else codec.decode_as(text, SignInRecord)
        except msgspec.MsgspecError:
            # Something else has written there: it proves nothing.
            return None

    def put_record(self, origin: str, record: SignInRecord) -> str:
        """Keep the record of a server; return where, in words. Call it under the lock."""
        records = self._read_all()
        is_in_keyring = _put_into_keyring(origin, codec.encode_text(record))
        records[origin] = _Kept(is_in_keyring=True) if is_in_keyring else _Kept(record=record)
        self._write_all(records)
        return "the system's keyring" if is_in_keyring else str(self._path)

    def remove_record(self, origin: str) -> bool:
        """Forget the record of a server; False when there is none. Call it under the lock."""
        records = self._read_all()
        record = records.pop(origin, None)
        if record is None:
            return False
        if record.is_in_keyring:
            _remove_from_keyring(origin)
        self._write_all(records)
        return True

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Be the only command that changes records; raises `CliError` after a minute."""
        make_private_folder(self._folder)
        deadline = time.monotonic() + LOCK_S
        with (self._folder / LOCK_FILE).open("a+b") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise CliError(
                            f"Another command has held {file.name} for {LOCK_S:g} s.",
                            way_out="End the other `noetl`, and try again.",
                        ) from error
                    time.sleep(_POLL_S)
            yield

    def _read_all(self) -> dict[str, _Kept]:
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CliError(f"{self._path} cannot be read: {error.strerror or error}.") from error
        if mode & _OTHERS_BITS:
            raise CliError(
                f"{self._path} can be read by other users of this machine.",
                way_out=f"chmod 600 {self._path}, and sign in again if they may have read it.",
            )
        try:
            return codec.decode_as(data, dict[str, _Kept])
        except msgspec.MsgspecError as error:
            raise CliError(
                f"{self._path} does not hold sign-ins: {error}.",
                way_out="Remove it, and sign in again: noetl login",
            ) from error

    def _write_all(self, records: dict[str, _Kept]) -> None:
        make_private_folder(self._folder)
        write_privately(self._path, codec.encode_json(records))


def open_token_store(environ: dict[str, str]) -> TokenStore:
    """Open this user's store."""
    return TokenStore(settings.choose_config_folder(environ=environ))


def _put_into_keyring(origin: str, text: str) -> bool:
    """Keep a text in the system's keyring; False where there is none that keeps it."""
    if find_spec("keyring") is None:
        return False
    try:
        if keyring.get_keyring().priority < _PRIORITY_MIN:
            return False
        keyring.set_password(KEYRING_SERVICE, origin, text)
        return keyring.get_password(KEYRING_SERVICE, origin) == text
    except (keyring_errors.KeyringError, RuntimeError):
        # A keyring without a desktop: the file is as private.
        return False


def _remove_from_keyring(origin: str) -> None:
    try:
        keyring.delete_password(KEYRING_SERVICE, origin)
    except (ImportError, keyring_errors.KeyringError) as error:
        raise CliError(
            f"The system's keyring does not give up the sign-in at {origin}: {error}.",
            way_out=f"Unlock it, or remove the entry {KEYRING_SERVICE!r} there by hand.",
        ) from error
