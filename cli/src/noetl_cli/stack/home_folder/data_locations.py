"""Where a folder's ledger and payloads are kept: the same ledger never meets another store."""

from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from noetl_cli.errors import ExitCode, StackError
from noetl_cli.stack.home_folder.home import StackHome, write_privately
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_contracts import codec

OWN = "own"
FILES = "files"


class DataLocations(Struct, frozen=True, kw_only=True):
    """The ledger's server, a foreign one as a digest of its address, and the payload store."""

    ledger: str
    payloads: str


def locate_data(options: StackOptions) -> DataLocations:
    """Say where a stack with these options keeps its data."""
    own_store = OWN if options.has_s3 else FILES
    return DataLocations(
        ledger=OWN if options.postgres_dsn is None else _digest_address(options.postgres_dsn),
        payloads=own_store if options.payload_url is None else _strip_login(options.payload_url),
    )


def check_data_locations(home: StackHome, stack_options: StackOptions) -> None:
    """Refuse a payload store that lacks what the ledger refers to; raises a `StackError`."""
    try:
        recorded = msgspec.json.decode(home.data_locations_file.read_bytes(), type=DataLocations)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        raise StackError(
            f"{home.data_locations_file} cannot be read: {error}.",
            way_out="Remove it when the payload store is the former one: "
            f"rm {home.data_locations_file}",
        ) from error
    places = locate_data(stack_options)
    if places.ledger != recorded.ledger or places.payloads == recorded.payloads:
        return
    raise StackError(
        f"This folder's payloads are in {_describe_store(recorded.payloads)}; "
        f"{_describe_store(places.payloads)} would lack what its executions refer to.",
        way_out=f"Start it with {_store_option(recorded.payloads)}, choose another --dir, "
        "or delete all of "
        "its data: noetl down --purge",
        exit_code=ExitCode.USAGE,
    )


def write_data_locations(home: StackHome, options: StackOptions) -> None:
    """Remember where the data of a stack that started is."""
    write_privately(home.data_locations_file, msgspec.json.encode(locate_data(options)))


def _digest_address(address: str) -> str:
    # An address may hold a password, in forms that are no URL.
    return codec.digest_hex(address.encode())


def _strip_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl().rstrip("/")


def _describe_store(payloads: str) -> str:
    return {OWN: "its own S3 server", FILES: "files (--no-s3)"}.get(payloads, payloads)


def _store_option(payloads: str) -> str:
    return {OWN: "neither --no-s3 nor --payload", FILES: "--no-s3"}.get(
        payloads, f"--payload {payloads}"
    )
