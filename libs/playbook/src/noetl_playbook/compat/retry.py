"""The short form `retry`: its entries, and the policy rule that an error retry becomes."""

from typing import Any

from msgspec import Struct

from noetl_playbook.compat import template_renames
from noetl_playbook.compat.template_renames import NotAnExpressionError
from noetl_playbook.model import coercion
from noetl_playbook.sections.policies import rename_older_when
from noetl_playbook.source.document_reader import DocumentReader, describe_value
from noetl_playbook.source.problems import Path

ATTEMPTS_DEFAULT = 3
REPEATS_DEFAULT = 10_000

_KINDS = {"connection_error": "connection", "http_5xx": "server_error"}
_ANY_KIND = frozenset({"exception", "any", "all"})
_BACKOFFS = frozenset({"none", "fixed", "linear", "exponential"})
_IN_ERROR_RULES = {
    "error": "output.error",
    "response": "output.data",
    "result": "output.data",
    "attempt": "_attempt",
}
# What is tried again where nothing is said: a request that was refused will be refused again.
WORTH_A_RETRY = (
    "(output.error.status | default(0)) // 100 != 4 or output.error.status in [408, 425, 429]"
)
_ERROR_PATHS = ("output.error", "output.status")
_RETRY_KEYS = (
    *("when", "then", "max_attempts", "backoff", "backoff_seconds", "backoff_multiplier"),
    *("initial_delay", "delay_seconds", "delay", "max_delay", "retry_on", "retry_on_status"),
    *("next_call", "collect", "sink", "save", "max_pages", "on_bound", "jitter"),
)
_PAGINATION = {
    "continue_while": "when",
    "next_page": "next_call",
    "max_iterations": "max_attempts",
}
_PAGINATION_SAME = ("delay", "max_pages", "on_bound")
_COLLECTED = {"merge_path": "path", "merge_strategy": "strategy"}
_PAGINATION_KEYS = (*_PAGINATION, *_COLLECTED, *_PAGINATION_SAME, "into", "max_bytes")


class RetryEntry(Struct, frozen=True, kw_only=True):
    """One entry of `retry`; `path` is where it can be read, `then` where its actions are.

    `is_error` settles whether it retries errors where its condition alone does not tell.
    """

    raw: dict[str, Any]
    path: Path
    then: Path
    is_error: bool | None = None

    def build_key_path(self, key: str) -> Path:
        """Tell where a key of the entry stands."""
        return (*(self.path if key == "when" else self.then), key)

    @property
    def when_condition(self) -> Any:
        """The entry's condition, absent if it has none."""
        return self.raw.get("when")

    @property
    def is_repeat(self) -> bool:
        """Tell whether the entry runs the task again after a success."""
        if self.is_error is not None:
            return not self.is_error
        if self.raw.get("next_call") is not None or "collect" in self.raw:
            return True
        if self.when_condition is None or is_about_errors(self.when_condition):
            return False
        return bool(template_renames.list_reads(self.when_condition)[0] & {"response", "result"})


def is_about_errors(when: Any) -> bool:
    """Tell whether a condition asks how an attempt failed."""
    names, paths = template_renames.list_reads(when)
    return (
        "error" in names
        or any(path.startswith(_ERROR_PATHS) for path in paths)
        or any("status_code" in path.split(".") for path in paths)
    )


def read_retry_entries(reading: DocumentReader, value: Any, path: Path) -> list[RetryEntry]:
    """Read every entry of a `retry`; `true` and a number are short forms."""
    if value is None or value is False:
        return []
    if isinstance(value, list):
        optional_entries = (
            _read_retry_entry(reading, item, (*path, index)) for index, item in enumerate(value)
        )
        return [entry for entry in optional_entries if entry is not None]
    entry = _read_retry_entry(reading, value, path)
    return [] if entry is None else [entry]


def _read_retry_entry(reading: DocumentReader, value: Any, path: Path) -> RetryEntry | None:
    if value is True:
        return RetryEntry(raw={"max_attempts": ATTEMPTS_DEFAULT}, path=path, then=path)
    if not isinstance(value, dict):
        attempts = coercion.coerce_integer(value)
        if attempts is None:
            reading.report_wrong_type(
                path, "how often to retry, a mapping or a list of mappings", value
            )
            return None
        return RetryEntry(raw={"max_attempts": attempts}, path=path, then=path)
    raw = rename_older_when(reading, value, path)
    then = path
    if isinstance(raw.get("then"), dict):
        then = (*path, "then")
        raw = {**{key: item for key, item in raw.items() if key != "then"}, **raw["then"]}
    for key in raw:
        if key not in _RETRY_KEYS:
            reading.report_unknown((*then, key), _RETRY_KEYS)
    return RetryEntry(raw=raw, path=path, then=then)


def read_pagination(reading: DocumentReader, value: Any, path: Path) -> list[RetryEntry]:
    """Read `read_pagination` as a repeat that collects every page."""
    raw = reading.read_mapping(value, path)
    if raw is None:
        return []
    pagination: dict[str, Any] = {"collect": {}}
    for key, item in raw.items():
        if key not in _PAGINATION_KEYS:
            reading.report_unknown((*path, key), _PAGINATION_KEYS)
        elif key in _PAGINATION:
            pagination[_PAGINATION[key]] = item
            reading.record_move((*path, key), (*path, _PAGINATION[key]))
        elif key in _PAGINATION_SAME:
            pagination[key] = item
        else:
            inner = _COLLECTED.get(key, key)
            pagination["collect"][inner] = item
            reading.record_move((*path, key), (*path, "collect", inner))
    return [RetryEntry(raw=pagination, path=path, then=path)]


def build_error_rule(reading: DocumentReader, entry: RetryEntry) -> dict[str, Any]:
    """Write the rule that tries a failed task again."""
    try:
        condition = _write_error_condition(entry)
    except NotAnExpressionError as problem:
        refuse_condition(reading, entry, problem)
        condition = "true"
    then = {"do": "retry", "attempts": entry.raw.get("max_attempts") or ATTEMPTS_DEFAULT}
    return {
        "when": "{{ output.status == 'error' and (" + condition + ") }}",
        "then": {**then, **read_waits(reading, entry)},
    }


def refuse_condition(
    reading: DocumentReader, entry: RetryEntry, problem: NotAnExpressionError
) -> None:
    """Report a condition that cannot be joined with others."""
    reading.report_problem(
        "E104",
        entry.build_key_path("when"),
        f"the condition cannot be joined with others: {problem}",
        hint="write it as one {{ … }}",
    )


def _write_error_condition(entry: RetryEntry) -> str:
    parts: list[str] = []
    if entry.when_condition is not None:
        when = entry.when_condition
        if isinstance(when, str):
            when = template_renames.rename_in_condition(when, _IN_ERROR_RULES)
        parts.append(template_renames.extract_condition(when))
    which = _write_error_kinds(entry.raw)
    if which:
        parts.append(which)
    if len(parts) > 1:
        return " and ".join(f"({part})" for part in parts)
    is_any_asked_for = entry.raw.get("retry_on") is not None
    return parts[0] if parts else "true" if is_any_asked_for else WORTH_A_RETRY


def _write_error_kinds(raw: dict[str, Any]) -> str:
    """Write which kinds and statuses are meant; empty when any error is."""
    kinds: list[str] = []
    statuses = [int(item) for item in _as_list(raw.get("retry_on_status")) if _is_status(item)]
    for item in _as_list(raw.get("retry_on")):
        if str(item) in _ANY_KIND:
            return ""
        if _is_status(item):
            statuses.append(int(item))
        else:
            kinds.append(_KINDS.get(str(item), str(item)))
    parts: list[str] = []
    if kinds:
        quoted = ", ".join(template_renames.quote_word(kind) for kind in kinds)
        parts.append(f"output.error.kind in [{quoted}]")
    if statuses:
        parts.append(f"output.http.status in {statuses}")
    return " or ".join(parts)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _is_status(value: Any) -> bool:
    return coercion.coerce_integer(value) is not None


def read_waits(reading: DocumentReader, entry: RetryEntry) -> dict[str, Any]:
    """Write how long to wait between tries, from any of the spellings."""
    raw = entry.raw
    waits: dict[str, Any] = {}
    fixed = raw.get("backoff_seconds")
    backoff = raw.get("backoff")
    if isinstance(backoff, str) and backoff in _BACKOFFS:
        waits["backoff"] = backoff
    elif backoff is not None and coercion.coerce_duration_s(backoff) is None:
        reading.report_problem(
            "E104",
            entry.build_key_path("backoff"),
            "expected one of none, fixed, linear, exponential or seconds, "
            f"found {describe_value(backoff)}",
        )
    elif fixed is None:
        fixed = backoff
    if fixed is not None:
        waits.update(backoff="fixed", delay=fixed)
    multiplier = coercion.coerce_number(raw.get("backoff_multiplier"))
    if multiplier is not None and multiplier > 1:
        waits["backoff"] = "exponential"
    for key in ("initial_delay", "delay_seconds", "delay"):
        if raw.get(key) is not None:
            waits["delay"] = raw[key]
            reading.record_move(entry.build_key_path(key), (*entry.then, "delay"))
    for key in ("max_delay", "jitter"):
        if raw.get(key) is not None:
            waits[key] = raw[key]
    return waits
