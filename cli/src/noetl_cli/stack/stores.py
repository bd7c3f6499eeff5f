"""The ledger's database and the payload store, for verbs that work on both without a planner."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from noetl_chassis.seals.credential_seal import KeyUnusable
from noetl_chassis.seals.payload_seal import is_managed_address, read_payload_keys
from noetl_cli import settings
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.stack.home_folder import stack_secrets, state
from noetl_cli.stack.home_folder.home import StackHome
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.postgres.database import Database, open_database

CONNECT_S = 5.0
SEAL_KEY = "NOETL_PAYLOAD_SEAL_KEY"

Dsn = Annotated[
    str | None, typer.Option("--postgres", help="The ledger's address (default: `up`'s).")
]
Url = Annotated[
    str | None, typer.Option("--payloads", help="The payload store's address (default: `up`'s).")
]
KeyFile = Annotated[
    str,
    typer.Option("--keys", help=f"A file of <id>:<base64> keys, newest first; else ${SEAL_KEY}."),
]


class StoreAccess(Struct, frozen=True, kw_only=True):
    """Where the ledger and the payloads are, and what opens them."""

    dsn: str
    url: str
    access_key: str | None
    secret_key: str | None
    key_file: str
    environ: Mapping[str, str]


@asynccontextmanager
async def open_stores(
    place: StoreAccess, *, statement_s: float
) -> AsyncIterator[tuple[Database, PayloadStore]]:
    """Open both; raises what the stores and the keys raise."""
    async with (
        open_database(
            place.dsn,
            application_name="noetl-cli",
            connections_max=2,
            connect_deadline_s=CONNECT_S,
            statement_timeout_s=statement_s,
            must_be_durable=False,
        ) as database,
        open_payload_store(place) as payloads,
    ):
        yield database, payloads


@asynccontextmanager
async def open_payload_store(place: StoreAccess) -> AsyncIterator[PayloadStore]:
    """Open the payload store alone."""
    named = place.environ.get(SEAL_KEY, "")
    seals = read_payload_keys(
        # Beside who holds the keys now, a file holds those from before.
        "" if place.key_file and not is_managed_address(named) else named,
        file=place.key_file,
        managed=master_keys.open_managed_keys,
    )
    async with open_payloads(
        place.url,
        access_key=place.access_key,
        secret_key=place.secret_key,
        connect_s=CONNECT_S,
        seals=seals,
    ) as payloads:
        yield payloads


def find_stores(
    directory: Path | None, *, dsn: str | None, url: str | None, key_file: str
) -> StoreAccess:
    """Find both: as named, else those of the stack that runs; raises a `StackError`."""
    environ = settings.copy_environment()
    home = StackHome(root=settings.choose_home(directory, environ=environ))
    urls: Mapping[str, str] = {}
    if dsn is None or url is None:
        current = state.find_state(home)
        if current is None or not {"postgres", "payloads"} <= current.urls.keys():
            raise StackError(
                f"No stack runs in {home.root}.",
                way_out="Start it with `noetl up`, or name both: --postgres and --payloads. "
                f"{settings.OTHER_HOME_OR_DIR}.",
            )
        urls = current.urls
    access_key = environ.get("AWS_ACCESS_KEY_ID")
    secret_key = environ.get("AWS_SECRET_ACCESS_KEY")
    if url is None and "s3" in urls:
        keyring = stack_secrets.load_or_make_keyring(home)
        access_key, secret_key = keyring.s3_access_key, keyring.s3_secret_key
    return StoreAccess(
        dsn=dsn or urls["postgres"],
        url=url or urls["payloads"],
        access_key=access_key,
        secret_key=secret_key,
        key_file=key_file,
        environ=environ,
    )


def build_unusable_keys_error(failure: KeyUnusable) -> CliError:
    """Say that the keys of payloads cannot be used, and where to give others."""
    return CliError(
        f"The keys cannot be used: {failure}",
        way_out=f"Give a file with --keys, or set {SEAL_KEY}.",
        exit_code=ExitCode.USAGE,
    )
