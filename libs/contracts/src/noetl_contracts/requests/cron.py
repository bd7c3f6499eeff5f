"""When a schedule is due: cron expressions in a time zone, as Debian's cron reads them.

In the spring gap what names a time that does not exist is due right after it; in the autumn what
names a time that comes twice is due at the first. Expressions with `*` in minute or hour follow
real time: none is left out, none repeated.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

FIELDS = 5
EXPRESSION_CHARACTERS_MAX = 200
_PROBE = datetime(2024, 1, 1, tzinfo=UTC)


class CronRefused(ValueError):  # noqa: N818 - it is an answer about an input
    """The expression or the time zone is not one; the message says what is wrong."""


class TimezoneRefused(CronRefused):
    """The name is not that of a time zone."""


def check_cron(expression: str, zone: str) -> None:
    """Refuse what is no cron expression of five fields, no zone, or never due."""
    if next(iterate_due_times(expression, zone, _PROBE), None) is None:
        raise CronRefused(f"cron {expression!r} is never due")


def iterate_due_times(expression: str, zone: str, after: datetime) -> Iterator[datetime]:
    """Yield every due time later than a moment, in UTC and growing; raises `CronRefused`."""
    cron = _parse_cron(expression, after.astimezone(load_time_zone(zone)))
    last = after
    for local in cron:
        due = local.astimezone(UTC)
        # A local time that comes twice, or not at all, may name a moment that has been yielded.
        if due > last:
            last = due
            yield due


def list_due_times(
    expression: str, zone: str, after: datetime, *, times_max: int
) -> list[datetime]:
    """Return the next due times; raises `CronRefused`."""
    return list(islice(iterate_due_times(expression, zone, after), times_max))


def _parse_cron(expression: str, start: datetime) -> CronSim:
    if len(expression) > EXPRESSION_CHARACTERS_MAX or len(expression.split()) != FIELDS:
        raise CronRefused(
            f"cron {expression[:80]!r} has not five fields: minute, hour, day, month, weekday"
        )
    try:
        return CronSim(expression, start)
    except CronSimError as refusal:
        raise CronRefused(f"cron {expression!r}: {str(refusal).lower()}") from refusal


@lru_cache(maxsize=256)
def load_time_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name; raises `TimezoneRefused`."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as failure:
        raise TimezoneRefused(
            f"{name[:80]!r} is not a time zone: use an IANA name such as Europe/Berlin"
        ) from failure
