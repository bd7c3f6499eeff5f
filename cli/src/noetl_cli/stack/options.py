"""What `noetl up` was asked for, handed to the supervisor as one file."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from noetl_cli.failures import ExitCode, StackError
from noetl_cli.stack.home import Home, write_privately

Count = Annotated[int, Meta(ge=0, le=64)]


class Options(Struct, frozen=True, kw_only=True):
    """How many of what, and which servers are somebody else's."""

    workers: Count = 1
    planners: Count = 1
    projectors: Count = 1
    outboxes: Count = 1
    reapers: Count = 1
    has_s3: bool = True
    # Servers only: what developers of one service want beside it.
    has_services: bool = True
    postgres_dsn: str | None = None
    nats_url: str | None = None
    payload_url: str | None = None
    nats_sync_interval: str | None = None
    # Handed to every service as NOETL_<name>.
    settings: dict[str, str] = {}


def write(home: Home, options: Options) -> None:
    """Leave the options for the supervisor."""
    write_privately(home.options, msgspec.json.format(msgspec.json.encode(options)))


def read(home: Home) -> Options:
    """Take the options that `noetl up` left."""
    try:
        return msgspec.json.decode(home.options.read_bytes(), type=Options)
    except (OSError, msgspec.MsgspecError) as error:
        raise StackError(
            f"{home.options} is damaged: {error}.", way_out="Run `noetl up` again."
        ) from error


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Read `WORKER_LEASE_S=5` into a name and a value."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.replace("_", "").isalnum():
            raise StackError(
                f"--set {pair!r} is not of the form NAME=VALUE.",
                way_out="For example: --set WORKER_LEASE_S=5",
                exit_code=ExitCode.USAGE,
            )
        found[f"NOETL_{name.removeprefix('NOETL_').upper()}"] = value
    return found
