"""Where a folder's ledger and payloads are kept: the same ledger never meets another store."""

from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from noetl_cli.failures import ExitCode, StackError
from noetl_cli.stack.home import Home, write_privately
from noetl_cli.stack.options import Options
from noetl_contracts import codec

OWN = "own"
FILES = "files"


class DataPlaces(Struct, frozen=True, kw_only=True):
    """The ledger's server, a foreign one as a digest of its address, and the payload store."""

    ledger: str
    payloads: str


def find_places(options: Options) -> DataPlaces:
    """Say where a stack with these options keeps its data."""
    own_store = OWN if options.has_s3 else FILES
    return DataPlaces(
        ledger=OWN if options.postgres_dsn is None else _digest(options.postgres_dsn),
        payloads=own_store if options.payload_url is None else _bare(options.payload_url),
    )


def check_places(home: Home, wanted: Options) -> None:
    """Refuse a payload store that lacks what the ledger refers to; raises a `StackError`."""
    try:
        known = msgspec.json.decode(home.data_places.read_bytes(), type=DataPlaces)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        raise StackError(
            f"{home.data_places} cannot be read: {error}.",
            way_out=f"Remove it when the payload store is the former one: rm {home.data_places}",
        ) from error
    places = find_places(wanted)
    if places.ledger != known.ledger or places.payloads == known.payloads:
        return
    raise StackError(
        f"This folder's payloads are in {_describe(known.payloads)}; "
        f"{_describe(places.payloads)} would lack what its executions refer to.",
        way_out=f"Start it with {_option(known.payloads)}, choose another --dir, or delete all of "
        "its data: noetl down --purge",
        exit_code=ExitCode.USAGE,
    )


def write_places(home: Home, options: Options) -> None:
    """Remember where the data of a stack that started is."""
    write_privately(home.data_places, msgspec.json.encode(find_places(options)))


def _digest(address: str) -> str:
    # An address may hold a password, in forms that are no URL.
    return codec.digest(address.encode())


def _bare(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl().rstrip("/")


def _describe(payloads: str) -> str:
    return {OWN: "its own S3 server", FILES: "files (--no-s3)"}.get(payloads, payloads)


def _option(payloads: str) -> str:
    return {OWN: "neither --no-s3 nor --payload", FILES: "--no-s3"}.get(
        payloads, f"--payload {payloads}"
    )
