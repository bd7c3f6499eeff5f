"""Values of `state`: how far a playbook has read a source, typed so that they compare exactly.

An integer has 64 bits. A timestamp is ISO 8601 text with up to nine digits of a second;
one without an offset counts as UTC. A date is `2024-01-31`. Text compares by code points, as
`COLLATE "C"` does.
"""

import re
from datetime import UTC, date, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts.ids import ExecutionId

STATE_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
TEXT_CHARACTERS_MAX = 1_000
_INTEGER_MAX = 2**63
_INTEGER_DIGITS_MAX = 30
_NANOSECONDS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - both sides of the difference are without offset
_NAME = re.compile(rf"{STATE_NAME_PATTERN}\Z")
_INTEGER = re.compile(r"[-+]?\d+\Z")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)\Z")
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?)?"
    r"\s?(Z|z|[-+]\d\d(?::?\d\d)?(?::?\d\d)?)?\Z"
)
_DAY_S = 86_400


class StateType(StrEnum):
    """What a value of `state` is."""

    INTEGER = "integer"
    TIMESTAMP = "timestamp"
    DATE = "date"
    TEXT = "text"


class StateValue(Struct, frozen=True, kw_only=True):
    """A value in its one spelling: a whole number, or text."""

    type: StateType
    value: int | str


class StateRecord(Struct, frozen=True, kw_only=True):
    """A value of `state` as the store has it; `revision` counts its changes from 1."""

    name: str
    value: StateValue
    revision: int


class StateChange(Struct, frozen=True, kw_only=True):
    """A change of a value: it follows `revision - 1`, and no other change does.

    A step of `execution_id` made it, or, without one, `changed_by` for a `reason`.
    """

    path: str
    name: str
    value: StateValue
    revision: int
    execution_id: ExecutionId | None = None
    step: str | None = None
    changed_by: str | None = None
    reason: str | None = None
    changed_at: datetime | None = None


class IncrementRange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The range of a backfill, as its caller wrote it: from `since` up to before `until`."""

    since: int | str
    until: int | str


class Increment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run of a step reads of its source: from `since` on, up to before `until` if set.

    `value` is the state that `since` was computed from, at `revision`; 0 when there was none. A
    run that is a backfill's does not move the state.
    """

    name: str
    type: StateType
    since: int | str
    value: int | str
    revision: int = 0
    until: int | str | None = None
    is_backfill: bool = False


class ProposedState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a task has read: its greatest cursor, None where no row had one."""

    name: str
    value: StateValue | None = None
    rows: int = 0


class StateValueError(ValueError):
    """A value is not of its type; the message says what is accepted."""


def is_state_name(text: str) -> bool:
    """Tell whether text may name a value."""
    return _NAME.match(text) is not None


def guess_state_type(value: Any) -> StateType:
    """Return the type of a value that declares none: a whole number, an ISO moment, or text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return StateType.INTEGER
    if isinstance(value, str) and _TIMESTAMP.match(value.strip()):
        return StateType.TIMESTAMP
    return StateType.TEXT


def parse_state_value(value: Any, type_: StateType) -> StateValue:
    """Read a value in any of its spellings; raises `StateValueError`."""
    try:
        match type_:
            case StateType.INTEGER:
                return StateValue(type=type_, value=_parse_integer(value))
            case StateType.TIMESTAMP:
                return StateValue(type=type_, value=_parse_timestamp(value))
            case StateType.DATE:
                return StateValue(type=type_, value=_parse_date(value))
            case _:
                return StateValue(type=type_, value=_parse_text(value))
    except (ValueError, OverflowError) as problem:
        if isinstance(problem, StateValueError):
            raise
        raise _build_invalid(value, type_) from problem


def build_order_key(value: StateValue) -> int | str:
    """Return what orders values of one type exactly: a number, nanoseconds, days, or the text."""
    match value.type:
        case StateType.TIMESTAMP:
            return _count_nanoseconds(str(value.value))
        case StateType.DATE:
            return date.fromisoformat(str(value.value)).toordinal()
        case _:
            return value.value


def is_later(value: StateValue, other: StateValue) -> bool:
    """Tell whether an increment's state moves forward to a value from another.

    Raises `StateValueError` for two types.
    """
    if value.type is not other.type:
        raise StateValueError(
            f"the {value.type} {value.value!r:.80} does not compare with the {other.type} "
            f"{other.value!r:.80}: set the state anew with one type"
        )
    return build_order_key(value) > build_order_key(other)  # type: ignore[operator]  # one type


def subtract_lag(value: StateValue, lag: float) -> StateValue:
    """Return a value that lies `lag` before: seconds of a moment, whole days of a date, a number.

    Raises `StateValueError` where the type has no such distance.
    """
    if not lag:
        return value
    if lag < 0:
        raise StateValueError(f"lag is {lag:g}: it must not be negative")
    match value.type:
        case StateType.TIMESTAMP:
            shifted = _shift_timestamp(str(value.value), -round(lag * _NANOSECONDS))
            return StateValue(type=value.type, value=shifted)
        case StateType.DATE if lag % _DAY_S == 0:
            day = date.fromisoformat(str(value.value)) - timedelta(days=int(lag // _DAY_S))
            return StateValue(type=value.type, value=day.isoformat())
        case StateType.INTEGER if lag == int(lag):
            return parse_state_value(int(value.value) - int(lag), value.type)
        case StateType.DATE:
            raise StateValueError(f"lag is {lag:g} s: of dates it is whole days, as 2d")
        case StateType.INTEGER:
            raise StateValueError(f"lag is {lag:g}: of integers it is a whole number")
        case _:
            raise StateValueError("text has no lag: leave it out, or use another cursor")


def _build_invalid(value: Any, type_: StateType) -> StateValueError:
    accepted = {
        StateType.INTEGER: "a whole number of at most 64 bits",
        StateType.TIMESTAMP: "a moment such as 2024-01-31T10:00:00Z",
        StateType.DATE: "a day such as 2024-01-31",
        StateType.TEXT: f"text of up to {TEXT_CHARACTERS_MAX} characters",
    }
    return StateValueError(f"{value!r:.80} is not of type {type_}: write {accepted[type_]}")


def _parse_integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        # A float may stand for another whole number than the one that was written.
        raise _build_invalid(value, StateType.INTEGER)
    text = str(value).strip() if isinstance(value, str) else None
    if text is not None and (not _INTEGER.match(text) or len(text) > _INTEGER_DIGITS_MAX):
        raise _build_invalid(value, StateType.INTEGER)
    number = int(value)
    if not -_INTEGER_MAX <= number < _INTEGER_MAX:
        raise _build_invalid(value, StateType.INTEGER)
    return number


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT_CHARACTERS_MAX or "\0" in value:
        raise _build_invalid(value, StateType.TEXT)
    return value


def _parse_date(value: Any) -> str:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, str) or not _DATE.match(value.strip()):
        raise _build_invalid(value, StateType.DATE)
    return date.fromisoformat(value.strip()).isoformat()


def _parse_timestamp(value: Any) -> str:
    if isinstance(value, datetime | date):
        value = value.isoformat()
    matched = _TIMESTAMP.match(value.strip()) if isinstance(value, str) else None
    if matched is None:
        raise _build_invalid(value, StateType.TIMESTAMP)
    day, time, fraction, offset = matched.groups()
    if offset is not None and time is None:
        raise _build_invalid(value, StateType.TIMESTAMP)
    moment = datetime.fromisoformat(f"{day}T{time or '00:00:00'}")
    if offset is not None:
        moment = moment.replace(tzinfo=_parse_offset(offset)).astimezone(UTC)
    return _spell_timestamp(moment.replace(tzinfo=None), fraction, has_offset=offset is not None)


def _parse_offset(text: str) -> timezone:
    if text in ("Z", "z"):
        return timezone(timedelta())
    digits = text[1:].replace(":", "").ljust(6, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:])
    return timezone(timedelta(seconds=-seconds if text[0] == "-" else seconds))


def _spell_timestamp(moment: datetime, fraction: str | None, *, has_offset: bool) -> str:
    digits = (fraction or "").rstrip("0")
    text = moment.isoformat(timespec="seconds") + (f".{digits}" if digits else "")
    return f"{text}+00:00" if has_offset else text


def _split_timestamp(text: str) -> tuple[datetime, int, bool]:
    """Return the whole second, the nanoseconds above it, and whether the text has an offset."""
    naive_text = text.removesuffix("+00:00")
    whole_second, _, fraction = naive_text.partition(".")
    return datetime.fromisoformat(whole_second), int(fraction.ljust(9, "0")), naive_text != text


def _count_nanoseconds(text: str) -> int:
    moment, nanoseconds, _ = _split_timestamp(text)
    since = moment - _EPOCH
    return (since.days * _DAY_S + since.seconds) * _NANOSECONDS + nanoseconds


def _shift_timestamp(text: str, nanoseconds: int) -> str:
    _, _, has_offset = _split_timestamp(text)
    shifted = build_timestamp(_count_nanoseconds(text) + nanoseconds, has_offset=has_offset)
    return str(shifted.value)


def build_timestamp(since_epoch_ns: int, *, has_offset: bool) -> StateValue:
    """Build a moment from nanoseconds since 1970; raises `StateValueError` beyond the calendar."""
    seconds, fraction = divmod(since_epoch_ns, _NANOSECONDS)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError as problem:
        raise StateValueError("the moment is not within the years 1 to 9999") from problem
    digits = f"{fraction:09d}" if fraction else None
    text = _spell_timestamp(moment, digits, has_offset=has_offset)
    return StateValue(type=StateType.TIMESTAMP, value=text)
