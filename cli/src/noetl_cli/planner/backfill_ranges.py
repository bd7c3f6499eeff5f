"""The ranges of a backfill: from a value up to before another, cut into equal parts."""

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from noetl_cli.errors import CliError, ExitCode
from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import StateType, StateValue, StateValueError
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_playbook.model import coercion
else:
    # Most calls of a planner read no playbook.
    coercion = LazyModule("noetl_playbook.model.coercion")

RANGES_MAX = 10_000
_DAY_S = 86_400
_NANOSECONDS = 1_000_000_000


class BackfillRange(Struct, frozen=True, kw_only=True):
    """One range: rows from `since` on, up to before `until`."""

    since: int | str
    until: int | str


def list_ranges(since: str, until: str, every: str | None) -> list[BackfillRange]:
    """Cut a range; without `every` it is one. Raises `CliError`."""
    first, last = _parse_bounds(since, until, every)
    if not state_values.is_later(last, first):
        raise _usage_error(
            f"The range from {first.value} to {last.value} is empty.",
            "--to is the value before which rows are read",
        )
    if every is None:
        return [BackfillRange(since=first.value, until=last.value)]
    backfill_ranges: list[BackfillRange] = []
    start = first
    for end in _iterate_ends(first, last, every):
        if len(backfill_ranges) == RANGES_MAX:
            raise _usage_error(
                f"--every {every} makes more than {RANGES_MAX:,} ranges.", "write a longer one"
            )
        backfill_ranges.append(BackfillRange(since=start.value, until=end.value))
        start = end
    return backfill_ranges


def parse_value(option: str, text: str, type_: StateType | None = None) -> StateValue:
    """Read a value as an option has it, of the type that it looks like; raises `CliError`."""
    value: Any = int(text) if text.lstrip("+-").isascii() and text.lstrip("+-").isdigit() else text
    try:
        return state_values.parse_state_value(value, type_ or state_values.guess_state_type(value))
    except StateValueError as problem:
        raise _usage_error(f"{option}: {problem}.", "") from problem


def _parse_bounds(since: str, until: str, every: str | None) -> tuple[StateValue, StateValue]:
    bounds = {"--from": since, "--to": until}
    first, last = (parse_value(option, text) for option, text in bounds.items())
    if StateType.TEXT in {first.type, last.type} or first.type is not last.type:
        raise _usage_error(
            f"--from {since!r:.40} and --to {until!r:.40} bound no range.",
            "write two days, two moments or two whole numbers, as --from 2024-01-01",
        )
    if first.type is StateType.TIMESTAMP:
        is_whole = every is None or _parse_step(first.type, every) % _DAY_S == 0
        # Parts of a day are bounded by moments.
        if _is_day(since) and _is_day(until) and is_whole:
            first, last = (
                parse_value(option, text, StateType.DATE) for option, text in bounds.items()
            )
            return first, last
        if _has_offset(first) is not _has_offset(last):
            raise _usage_error(
                "One of --from and --to has an offset, and the other has none.",
                "write both as the cursor has it, as 2024-01-01T00:00:00Z",
            )
    return first, last


def _iterate_ends(first: StateValue, last: StateValue, every: str) -> Iterator[StateValue]:
    """Yield where each range ends: the last one ends at `last`."""
    step = _parse_step(first.type, every)
    place, end = int(state_values.build_order_key(first)), int(state_values.build_order_key(last))
    unit = {StateType.DATE: _DAY_S, StateType.INTEGER: 1}.get(first.type)
    length = step // unit if unit is not None else step * _NANOSECONDS
    while (place := place + length) < end:
        yield _build_value(place, first)
    yield last


def _parse_step(type_: StateType, every: str) -> int:
    if type_ is StateType.INTEGER:
        if not every.isascii() or not every.isdigit() or int(every) < 1:
            raise _usage_error(f"--every {every!r:.40} is no whole number above 0.", "")
        return int(every)
    seconds = coercion.coerce_duration_s(every)
    if seconds is None or seconds < 1 or seconds != int(seconds):
        raise _usage_error(
            f"--every {every!r:.40} is no length of time in whole seconds.", "write it as 6h, 1d"
        )
    return int(seconds)


def _build_value(place: int, like: StateValue) -> StateValue:
    if like.type is StateType.INTEGER:
        return StateValue(type=like.type, value=place)
    if like.type is StateType.DATE:
        return StateValue(type=like.type, value=date.fromordinal(place).isoformat())
    return state_values.build_timestamp(place, has_offset=_has_offset(like))


def _is_day(text: str) -> bool:
    return len(text.strip()) == len("2024-01-31")


def _has_offset(value: StateValue) -> bool:
    return str(value.value).endswith("+00:00")


def _usage_error(message: str, way_out: str) -> CliError:
    return CliError(message, way_out=way_out, exit_code=ExitCode.USAGE)
