"""Command line options that several verbs share."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noetl_cli.errors import CliError, ExitCode
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_playbook.model import coercion
else:
    # Most calls of a planner read no playbook.
    coercion = LazyModule("noetl_playbook.model.coercion")

_DURATION_S_MAX = 100 * 365 * 86_400

Server = Annotated[
    str | None,
    typer.Option(
        "--server", help="The planner's address (default: NOETL_SERVER, context, `up`'s)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ExecutionArgument = Annotated[str, typer.Argument(metavar="ID", help="The execution.")]
LastStepArgument = Annotated[
    str | None,
    typer.Argument(metavar="[STEP]", help="The step (default: the last one with a result)."),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Whose (default: NOETL_TENANT, else `default`).")
]
Organization = Annotated[
    str | None,
    typer.Option("--organization", help="Whose (default: NOETL_ORGANIZATION, else `default`)."),
]
Directory = Annotated[
    Path | None, typer.Option("--dir", help="The stack's folder (default: NOETL_HOME).")
]


def parse_moment(option: str, text: str, now: datetime) -> datetime:
    """Read an option's length of time before now, day or moment (UTC); raises `CliError`."""
    seconds = _find_duration_s(text)
    if seconds is not None:
        return now - timedelta(seconds=seconds)
    try:
        moment = _parse_day_or_moment(text)
    except ValueError as problem:
        raise CliError(
            f"{option} {text!r:.40} is no length of time, no day and no moment.",
            way_out=f"Write it as 12h, 7d, {now:%Y-%m-%d} or {now:%Y-%m-%dT%H:%M}Z; days and times "
            "without a zone are of UTC.",
            exit_code=ExitCode.USAGE,
        ) from problem
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_duration(option: str, text: str) -> timedelta:
    """Read an option's length of time; raises `CliError`."""
    seconds = _find_duration_s(text)
    if seconds is None:
        raise CliError(
            f"{option} {text!r:.40} is no length of time.",
            way_out="Write it with its unit, as 90s, 30m, 12h or 7d.",
            exit_code=ExitCode.USAGE,
        )
    return timedelta(seconds=seconds)


def _find_duration_s(text: str) -> float | None:
    """Return the seconds of a number and its unit, None for anything else.

    A plain number could be a year or a day as well.
    """
    seconds = coercion.coerce_duration_s(text)
    if seconds is None or coercion.coerce_number(text) is not None:
        return None
    return seconds if 0 < seconds <= _DURATION_S_MAX else None


def _parse_day_or_moment(text: str) -> datetime:
    """Read a day or a moment with its hyphens; raises `ValueError`."""
    if coercion.coerce_number(text) is not None:
        raise ValueError(text)
    return datetime.fromisoformat(text)
