"""What is expected of the rows of a dataset, and what becomes of rows that break it."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from noetl_contracts import spelling
from noetl_playbook.model import coercion

# What they find is told in one event.
CHECKS_MAX = 200
ON_FAIL = ("fail", "warn", "divert")
# What becomes of a dataset that has other columns; with `evolve` it may have more of them.
DRIFT = ("fail", "warn", "evolve")
_KEYS = (
    *("schema", "not_null", "unique", "range", "regex", "in", "predicate"),
    *("row_count", "freshness", "foreign_key", "on_fail"),
)


class ExpectationInvalid(ValueError):  # noqa: N818 - it is told as the task's own error
    """An `expect` block says what cannot be expected."""


class Check(Struct, frozen=True, kw_only=True):
    """One expectation: `kind` of `columns`, with the values that it compares with.

    Of the kind `schema`, `types` are the columns as DDL.
    """

    kind: str
    columns: tuple[str, ...] = ()
    least: Any = None
    most: Any = None
    pattern: str | None = None
    values: tuple[Any, ...] = ()
    predicate: str | None = None
    within_s: float | None = None
    other: str | None = None
    other_key: str | None = None
    types: str = ""
    drift: str = "fail"

    @property
    def label(self) -> str:
        """Write the check as errors name it."""
        return f"{self.kind} {self.predicate or ', '.join(self.columns)}".strip()


class Expectations(Struct, frozen=True, kw_only=True):
    """The checks of one dataset."""

    checks: tuple[Check, ...]
    on_fail: str = "fail"

    @property
    def schema(self) -> Check | None:
        """Return the check of columns, which stands before those of rows."""
        return next((check for check in self.checks if check.kind == "schema"), None)


def parse_expectations(value: Any) -> Expectations | None:
    """Read an `expect` block, None where there is none; raises `ExpectationInvalid`."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ExpectationInvalid("expect is a mapping, as {not_null: [id], unique: [id]}")
    unknown = sorted(str(key) for key in value if key not in _KEYS)
    if unknown:
        hint = spelling.suggest_word(unknown[0], _KEYS) or f"use {', '.join(_KEYS)}"
        raise ExpectationInvalid(f"expect has an unknown key '{unknown[0]}': {hint}")
    on_fail = value.get("on_fail", "fail")
    if on_fail not in ON_FAIL:
        raise ExpectationInvalid(f"on_fail is {on_fail!r:.40}: use {', '.join(ON_FAIL)}")
    checks = tuple(check for key in _KEYS if key in value for check in _READERS[key](value[key]))
    if not checks:
        raise ExpectationInvalid(f"expect names no check: use {', '.join(_KEYS[:-1])}")
    if len(checks) > CHECKS_MAX:
        text = f"expect names {len(checks)} checks, and at most {CHECKS_MAX} are made"
        raise ExpectationInvalid(f"{text}: join them in a predicate")
    return Expectations(checks=checks, on_fail=on_fail)


def keep_written_out(value: Any) -> Any:
    """Return an `expect` block without the checks in which the run fills in a value."""
    if not isinstance(value, Mapping):
        return None if coercion.is_template(value) else value
    written_out = {
        key: item for key, item in value.items() if key not in _KEYS or not _holds_template(item)
    }
    if written_out.keys() == value.keys():
        return value
    # One check at least may come of the others.
    return {"row_count": {"min": 0}, **written_out}


def _holds_template(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_template, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple):
        return any(map(_holds_template, value))
    return coercion.is_template(value)


def _read_schema(value: Any) -> list[Check]:
    block = value if isinstance(value, Mapping) else {"columns": value}
    types, drift = block.get("columns"), block.get("drift", "fail")
    if block.keys() - {"columns", "drift"} or not isinstance(types, str) or not types.strip():
        raise ExpectationInvalid(
            "schema is 'id BIGINT, day DATE', or {columns: 'id BIGINT', drift: warn}"
        )
    if drift not in DRIFT:
        raise ExpectationInvalid(f"schema.drift is {drift!r:.40}: use {', '.join(DRIFT)}")
    return [Check(kind="schema", types=types, drift=drift)]


def _read_not_null(value: Any) -> list[Check]:
    return [Check(kind="not_null", columns=(name,)) for name in _read_names(value, "not_null")]


def _read_unique(value: Any) -> list[Check]:
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return [Check(kind="unique", columns=_read_names(item, "unique")) for item in value]
    return [Check(kind="unique", columns=_read_names(value, "unique"))]


def _read_range(value: Any) -> list[Check]:
    checks = []
    for name, bounds in _read_mapping(value, "range").items():
        if not isinstance(bounds, Mapping) or not bounds or bounds.keys() - {"min", "max"}:
            raise ExpectationInvalid(f"range of '{name}' is {{min: 0, max: 10}}, or one of them")
        minimum, maximum = bounds.get("min"), bounds.get("max")
        if minimum is None and maximum is None:
            raise ExpectationInvalid(f"range of '{name}' has no bound")
        checks.append(Check(kind="range", columns=(name,), least=minimum, most=maximum))
    return checks


def _read_regex(value: Any) -> list[Check]:
    checks = []
    for name, pattern in _read_mapping(value, "regex").items():
        if pattern is None:
            raise ExpectationInvalid(f"regex of '{name}' is a pattern, and not null")
        checks.append(Check(kind="regex", columns=(name,), pattern=str(pattern)))
    return checks


def _read_in(value: Any) -> list[Check]:
    checks = []
    for name, values in _read_mapping(value, "in").items():
        if not isinstance(values, list) or not values:
            raise ExpectationInvalid(f"in of '{name}' is a list of values")
        checks.append(Check(kind="in", columns=(name,), values=tuple(values)))
    return checks


def _read_predicate(value: Any) -> list[Check]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ExpectationInvalid("predicate is a condition in SQL, or a list of them")
    return [Check(kind="predicate", predicate=text) for text in texts]


def _read_row_count(value: Any) -> list[Check]:
    if not isinstance(value, Mapping) or not value or value.keys() - {"min", "max"}:
        raise ExpectationInvalid("row_count is {min: 1, max: 10}, or one of them")
    bounds = {key: coercion.coerce_integer(value[key]) for key in value}
    if any(bound is None or bound < 0 for bound in bounds.values()):
        raise ExpectationInvalid("row_count has whole numbers")
    return [Check(kind="row_count", least=bounds.get("min"), most=bounds.get("max"))]


def _read_freshness(value: Any) -> list[Check]:
    if not isinstance(value, Mapping) or value.keys() != {"column", "within"}:
        raise ExpectationInvalid("freshness is {column: updated_at, within: 2h}")
    within = coercion.coerce_duration_s(value["within"])
    if within is None:
        raise ExpectationInvalid("freshness.within is a duration, as 2h")
    return [Check(kind="freshness", columns=(str(value["column"]),), within_s=float(within))]


def _read_foreign_key(value: Any) -> list[Check]:
    blocks = value if isinstance(value, list) else [value]
    checks = []
    for block in blocks:
        if not isinstance(block, Mapping) or block.keys() != {"column", "of", "key"}:
            raise ExpectationInvalid("foreign_key is {column: person, of: people, key: id}")
        checks.append(
            Check(
                kind="foreign_key",
                columns=(str(block["column"]),),
                other=str(block["of"]),
                other_key=str(block["key"]),
            )
        )
    return checks


def _read_nothing(_: Any) -> list[Check]:
    return []


def _read_names(value: Any, field: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ExpectationInvalid(f"{field} is a column's name, or a list of them")
    return tuple(names)


def _read_mapping(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise ExpectationInvalid(f"{field} maps columns to what is expected of them")
    return {str(name): item for name, item in value.items()}


_READERS: dict[str, Any] = {
    "schema": _read_schema,
    "not_null": _read_not_null,
    "unique": _read_unique,
    "range": _read_range,
    "regex": _read_regex,
    "in": _read_in,
    "predicate": _read_predicate,
    "row_count": _read_row_count,
    "freshness": _read_freshness,
    "foreign_key": _read_foreign_key,
    "on_fail": _read_nothing,
}
