"""What `noetl up` was asked for, handed to the supervisor as one file."""

import re
from collections.abc import Container
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from noetl_cli.errors import ExitCode, StackError
from noetl_cli.stack.home_folder.home import StackHome, write_privately
from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_contracts.commands.worker_pools import POOL_HINT, is_pool_name
from noetl_contracts.subjects import is_subject_token

_WORKERS_MAX = 64
Count = Annotated[int, Meta(ge=0, le=_WORKERS_MAX)]


class StackOptions(Struct, frozen=True, kw_only=True):
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
    # The tenant that the stack serves alone, by roles that open no other database.
    only_tenant: str | None = None
    nats_sync_interval: str | None = None
    # Workers by pool, besides those of the default pool; and pools served over HTTP.
    pools: dict[str, Count] = {}
    http_pools: list[str] = []
    # What http tasks may ask besides public addresses.
    http_allow: list[str] = []
    # Handed to every service as NOETL_<name>.
    settings: dict[str, str] = {}


def list_unapplied(stack_options: StackOptions, running: StackOptions) -> list[str]:
    """Name what was asked for and is not so in the stack that runs; defaults ask for nothing."""
    default = StackOptions()
    names = [
        name
        for name in StackOptions.__struct_fields__
        if name != "settings"
        and getattr(stack_options, name) not in (getattr(default, name), getattr(running, name))
    ]
    settings = stack_options.settings.items() - running.settings.items()
    return names + sorted(name for name, _ in settings)


def write_options(home: StackHome, options: StackOptions) -> None:
    """Leave the options for the supervisor."""
    write_privately(home.options_file, msgspec.json.format(msgspec.json.encode(options)))


def read_options(home: StackHome) -> StackOptions:
    """Take the options that `noetl up` left."""
    try:
        return msgspec.json.decode(home.options_file.read_bytes(), type=StackOptions)
    except (OSError, msgspec.MsgspecError) as error:
        raise StackError(
            f"{home.options_file} is damaged: {error}.", way_out="Run `noetl up` again."
        ) from error


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Read `WORKER_LEASE_S=5` into a name and a value."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.replace("_", "").isalnum():
            raise StackError(
                f"--set {pair!r} is not of the form NAME=VALUE.",
                way_out="For example: --set WORKER_LEASE_S=5",
                exit_code=ExitCode.USAGE,
            )
        setting = f"NOETL_{name.upper().removeprefix('NOETL_')}"
        if setting in settings:
            raise StackError(
                f"--set gives {setting} twice.",
                way_out="Keep one of both.",
                exit_code=ExitCode.USAGE,
            )
        settings[setting] = value
    return settings


def parse_pools(pairs: list[str]) -> dict[str, int]:
    """Read `gpu=2` into a pool and its workers."""
    pools: dict[str, int] = {}
    for pair in pairs:
        name, _, count = pair.partition("=")
        if not count.isdigit() or int(count) > _WORKERS_MAX:
            raise StackError(
                f"--pool {pair!r} is not of the form NAME=N.",
                way_out=f"For example: --pool gpu=2, with at most {_WORKERS_MAX} workers",
                exit_code=ExitCode.USAGE,
            )
        pools[_check_pool_name(name, other_names=pools)] = int(count)
    return pools


def check_allowed_places(places: list[str]) -> list[str]:
    """Read what http tasks may ask: hosts, addresses and networks, each perhaps with a port."""
    for place in places:
        if not re.fullmatch(r"[^\s,]+", place):
            raise StackError(
                f"--allow-http {place!r} is not of the form HOST:PORT.",
                way_out="For example: --allow-http 127.0.0.1:8700",
                exit_code=ExitCode.USAGE,
            )
    return places


def check_only_tenant(tenant: str | None, *, postgres_dsn: str | None) -> str | None:
    """Admit the tenant of a database of its own, which must be named on a server of others."""
    if tenant is None:
        return None
    if not is_subject_token(tenant):
        raise StackError(
            f"--only-tenant {tenant[:80]!r} names no tenant.",
            way_out="Use 1 to 64 letters, digits, '_' or '-'.",
            exit_code=ExitCode.USAGE,
        )
    if postgres_dsn is not None and urlsplit(postgres_dsn).path in {"", "/", "/postgres"}:
        raise StackError(
            "--only-tenant needs the name of the tenant's database in --postgres.",
            way_out=f"For example: --postgres postgresql://postgres@db/noetl_{tenant}",
            exit_code=ExitCode.USAGE,
        )
    return tenant


def check_http_pools(names: list[str], *, besides: list[str]) -> list[str]:
    """Read the pools that are served over HTTP; none of them may be served by workers here."""
    parts = {pair.partition("=")[0] for pair in besides}
    http_pools: list[str] = []
    for name in names:
        http_pools.append(_check_pool_name(name, other_names={*parts, *http_pools}))
    return http_pools


def _check_pool_name(name: str, *, other_names: Container[str]) -> str:
    if not is_pool_name(name) or name == DEFAULT_POOL or name in other_names:
        raise StackError(
            f"{name!r} cannot name one more pool.",
            way_out=f"Use a name of its own: {POOL_HINT}",
            exit_code=ExitCode.USAGE,
        )
    return name
