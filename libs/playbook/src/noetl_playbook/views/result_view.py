"""What templates see of results: one lookup order over raw results of every kind."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl_playbook.model import language_names
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.lookup import MISSING, Lookup, look_up_member
from noetl_playbook.views import error_view
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult

# Kinds whose result carries a body, and the keys that may hold it.
_BODY_NAMES = {"http": ("body",), "artifact": ("data",), "nats": ("value", "data")}
CARRIERS = frozenset(_BODY_NAMES)
SQL_KINDS = frozenset({"postgres", "duckdb", "spark"})

_STATEMENT = re.compile(r"(?:command|statement)_(\d+)\Z")
_SELF = frozenset({"data", "context", "result"})
# What only some results have: those of failures, and those that are stored.
OPTIONAL = frozenset({"error", "_ref", "_store", "_bytes", "_preview"})


def find_body(kind: str, raw: Any, absent: Any = None) -> Any:
    """Return the body that a raw result carries, or `absent`."""
    if not isinstance(raw, dict):
        return absent
    return next((raw[name] for name in _BODY_NAMES.get(kind, ()) if name in raw), absent)


class ResultView(Lookup, Mapping[str, Any]):
    """A result of one task or of a whole pipeline, under the names that templates use."""

    __slots__ = ("_kind", "_names", "_raw", "_tasks", "error")

    def __init__(
        self,
        raw: Any,
        *,
        kind: str = "python",
        names: Mapping[str, Any] | None = None,
        tasks: Mapping[str, "ResultView"] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        self._raw = raw
        self._kind = kind
        self._names = names
        self._tasks = tasks
        self.error = error_view.show_error_record(error)

    @property
    def raw(self) -> Any:
        """The raw result of the last successful task."""
        return self._raw

    @property
    def kind(self) -> str:
        """The tool kind that made it."""
        return self._kind

    @property
    def names(self) -> Mapping[str, Any]:
        """The names that `select` and `accumulate` gave to parts of it."""
        return self._names or {}

    @property
    def is_tabular(self) -> bool:
        """Whether the view indexes and iterates as rows."""
        raw = self._raw
        if type(raw) is not dict or not isinstance(raw.get("rows"), list):
            return False
        return self._kind in SQL_KINDS or "columns" in raw

    def find_member(self, key: Any) -> Any:
        """Find a name; the first rule that knows it wins."""
        if self._names and key in self._names:
            return self._names[key]
        raw = self._raw
        if type(raw) is dict:
            member = raw.get(key, MISSING)
            if member is not MISSING:
                return member
        if not isinstance(key, str):
            return self._find_row(key)
        for rule in (
            self._find_by_kind,
            self._find_task,
            self._find_in_body,
            self._find_in_earlier,
        ):
            member = rule(key)
            if member is not MISSING:
                return member
        return self._find_in_envelope(key)

    def _find_row(self, key: Any) -> Any:
        raw = self._raw
        if type(raw) is not dict:
            return look_up_member(raw, key)
        return look_up_member(raw["rows"], key) if self.is_tabular else look_up_member(raw, key)

    def _find_by_kind(self, key: str) -> Any:
        raw = self._raw
        if type(raw) is not dict:
            return MISSING
        if self._kind in CARRIERS:
            return find_body(self._kind, raw, MISSING) if key == "data" else MISSING
        return self._find_in_rows(key, raw) if self.is_tabular else MISSING

    def _find_in_rows(self, key: str, raw: dict[str, Any]) -> Any:
        if key == "result":
            return raw["rows"]
        if key == "row_count":
            return len(raw["rows"])
        if self._kind not in SQL_KINDS:
            return MISSING
        if key == "commands":
            return list_statements(raw)
        match = _STATEMENT.match(key)
        if match is None:
            return MISSING
        statements = list_statements(raw)
        index = int(match[1])
        return statements[index] if index < len(statements) else MISSING

    def _find_task(self, key: str) -> Any:
        if self._tasks is None:
            return MISSING
        if key in self._tasks:
            return self._tasks[key]
        return ViewNamespace(self._tasks) if key == "results" else MISSING

    def _find_in_body(self, key: str) -> Any:
        if type(self._raw) is dict:
            body = find_body(self._kind, self._raw)
            if type(body) is dict:
                return body.get(key, MISSING)
        return MISSING

    def _find_in_earlier(self, key: str) -> Any:
        for task in reversed(list((self._tasks or {}).values())):
            field = task.find_own_field(key)
            if field is not MISSING:
                return field
        return MISSING

    def find_own_field(self, key: str) -> Any:
        """Find a field of this task's own raw result or body."""
        if type(self._raw) is dict and key in self._raw:
            return self._raw[key]
        return self._find_in_body(key)

    def _find_in_envelope(self, key: str) -> Any:
        if key in _SELF:
            return self
        if key == "status":
            if self.error is None and self._kind == "http" and type(self._raw) is dict:
                return self._raw.get("status_code", MISSING)
            return language_names.OK if self.error is None else language_names.FAILED
        if key == "error" and self.error is not None:
            return self.error
        return look_up_member(self._raw, key) if type(self._raw) is not dict else MISSING

    def can_lack_member(self, key: Any) -> bool:
        """Tell whether a name is one that only some results have."""
        return key in OPTIONAL

    def settle_view(self) -> Any:
        """Give a scalar or a list itself; mappings stay views."""
        return self if type(self._raw) is dict or self.error is not None else self._raw

    def to_plain(self) -> Any:
        """Give the finite mapping of every name, or the raw scalar or list."""
        raw = self._raw
        if type(raw) is not dict and self.error is None:
            return raw
        plain_values: dict[str, Any] = {}
        if self._has_named_tasks():
            for task in (self._tasks or {}).values():
                plain_values.update(task.raw if type(task.raw) is dict else {})
            parts = {name: task.to_plain() for name, task in (self._tasks or {}).items()}
            plain_values.update(results=parts, **parts)
        plain_values.update(self._build_kind_names())
        if type(raw) is dict:
            plain_values.update(raw)
        if self.error is not None:
            plain_values = {**plain_values, "status": "error", "error": dict(self.error)}
        plain_values.update(self._names or {})
        plain: Any = output_forms.to_plain(plain_values)
        return plain

    def _has_named_tasks(self) -> bool:
        """Tell whether tasks have names of their own in the plain form.

        What a step of one task returned leaves as it is: it becomes a request's body, a row, a
        loop's collection, and with further names it would grow with every step that hands it on.
        """
        return self._tasks is not None and len(self._tasks) > 1

    def _build_kind_names(self) -> dict[str, Any]:
        raw = self._raw
        if type(raw) is not dict:
            return {}
        if self._kind == "http" and "body" in raw:
            return {"data": raw["body"]}
        if self._kind in SQL_KINDS and self.is_tabular:
            statements = list_statements(raw)
            return {
                "commands": statements,
                **{f"command_{i}": item for i, item in enumerate(statements)},
            }
        return {}

    def known_names(self) -> Iterable[str]:
        """List names for spelling hints."""
        yield from self._names or ()
        yield from self._raw if type(self._raw) is dict else ()
        yield from self._tasks or ()
        body = find_body(self._kind, self._raw)
        yield from body if type(body) is dict else ()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._get_rows()[key]
        member = self.find_member(key)
        if member is MISSING:
            raise KeyError(key)
        return member

    def _get_rows(self) -> list[Any]:
        rows = self._raw["rows"] if self.is_tabular else self._raw
        if not isinstance(rows, list):
            raise TypeError("this result is not a list of rows")
        return rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._raw["rows"] if self.is_tabular else self.to_plain())

    def __len__(self) -> int:
        return len(self._raw["rows"] if self.is_tabular else self.to_plain())

    def __contains__(self, key: object) -> bool:
        if self.is_tabular and not isinstance(key, str):
            return key in self._raw["rows"]
        return self.find_member(key) is not MISSING

    def __bool__(self) -> bool:
        return bool(self._raw) or self.error is not None

    def __eq__(self, other: object) -> bool:
        return bool(self.to_plain() == output_forms.to_plain(other))

    __hash__ = None  # type: ignore[assignment]  # mappings are not hashable

    def __str__(self) -> str:
        return str(self.to_plain())

    def items(self) -> Any:
        """List the pairs of the plain form."""
        return self.to_plain().items()

    def keys(self) -> Any:
        """List the names of the plain form."""
        return self.to_plain().keys()

    def values(self) -> Any:
        """List the values of the plain form."""
        return self.to_plain().values()


def list_statements(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """List the results of a SQL task's statements."""
    listed = raw.get("commands")
    if isinstance(listed, list):
        return listed
    names = ("rows", "row_count", "columns", "types", "status", "message")
    return [{name: raw[name] for name in names if name in raw}]


class ViewNamespace(Lookup):
    """A namespace of views, as `results` and `steps` are."""

    __slots__ = ("_views",)

    def __init__(self, views: Mapping[str, Any]) -> None:
        self._views = views

    def find_member(self, key: Any) -> Any:
        """Find a view by name."""
        return self._views.get(key, MISSING)

    def to_plain(self) -> Any:
        """Give every view in its plain form."""
        return {name: output_forms.to_plain(view) for name, view in self._views.items()}

    def known_names(self) -> Iterable[str]:
        """List the names."""
        return self._views.keys()

    def __contains__(self, key: object) -> bool:
        return key in self._views

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __str__(self) -> str:
        return str(self.to_plain())


def view_task(result: TaskResult) -> ResultView:
    """View the result of one task."""
    return ResultView(result.raw, kind=result.kind, names=result.names or None, error=result.error)


def view_pipeline(
    result: PipelineResult,
    *,
    names: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> ResultView:
    """View the result of a pipeline: its last successful task in front of the others.

    With the `error` of its step it is the failure record: what failed is in front.
    """
    tasks = {name: view_task(task) for name, task in result.tasks.items()}
    name = _choose_shown_task(result, error)
    if name is None:
        return ResultView({}, kind="noop", names=names, tasks=tasks, error=error)
    shown_task = result.tasks[name]
    gathered = {key: item for entry in result.tasks.values() for key, item in entry.names.items()}
    return ResultView(
        shown_task.raw,
        kind=shown_task.kind,
        names={**gathered, **shown_task.names, **(names or {})} or None,
        tasks=tasks,
        error=shown_task.error if error is None else error,
    )


def _choose_shown_task(result: PipelineResult, error: Mapping[str, Any] | None) -> str | None:
    failed = None if error is None else error.get("task")
    if isinstance(failed, str) and failed in result.tasks:
        return failed
    return result.last if result.last in result.tasks else next(reversed(result.tasks), None)


def view_loop(
    result: LoopResult, *, error: Mapping[str, Any] | None = None, fanin: Any = None
) -> ResultView:
    """View the result of a loop step; `data` is its list of results."""
    raw: dict[str, Any] = {"results": result.results, "stats": result.stats}
    if fanin is not None or result.fanin is not None:
        raw["fanin"] = result.fanin if fanin is None else fanin
    return ResultView(raw, kind="loop", names={"data": result.results}, error=error)
