"""The envelope `output`: how something ended, and the names that reach through it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from noetl_contracts.commands.command_work import Chunk
from noetl_contracts.payloads import PayloadRef
from noetl_playbook.model import language_names
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.lookup import MISSING, Lookup, Record, look_up_member
from noetl_playbook.templates.undefined import HTTP_FIELDS, PG_FIELDS, PY_FIELDS
from noetl_playbook.views import error_view
from noetl_playbook.views.payload_handle import PayloadHandle
from noetl_playbook.views.result_view import CARRIERS, ResultView
from noetl_playbook.views.results import StoredResult

_DATA = frozenset({"data", "result", "response"})
_FIELDS = frozenset({*_DATA, "error", "ref", "http", "pg", "py", "shell"})
_META = frozenset({"attempt", "attempts_total", "duration_ms", "started_at", "worker_id"})


class OutputView(Lookup):
    """The envelope of an attempt, a task or a step."""

    __slots__ = ("_data", "_error", "_kind", "_meta", "_ref")

    def __init__(
        self,
        data: Any = MISSING,
        *,
        kind: str | None = None,
        error: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        ref: Any = MISSING,
    ) -> None:
        self._data = data
        self._kind = kind
        self._error = error_view.show_error_record(error)
        self._meta = meta or {}
        self._ref = ref

    @property
    def status(self) -> language_names.StatusText:
        """`ok` or `error`."""
        return language_names.OK if self._error is None else language_names.FAILED

    def find_member(self, key: Any) -> Any:
        """Find a field of the envelope, else a name of its data."""
        if key in _DATA:
            return self._get_produced_data()
        if key == "status":
            return self.status
        if key == "error":
            return MISSING if self._error is None else self._error
        if key == "meta":
            return Record(self._meta, optional=_META)
        member = self._find_particular(key)
        return member if member is not MISSING else self._find_in_data(key)

    def can_lack_member(self, key: Any) -> bool:
        """Tell whether a field is one of the envelope's own, or nothing was produced."""
        data = self._get_produced_data()
        if key in _FIELDS or data is MISSING:
            return True
        return isinstance(data, Lookup) and data.can_lack_member(key)

    def _find_particular(self, key: Any) -> Any:
        if key == "ref":
            return self._find_reference()
        if key == "http" and self._find_tool_kind() in CARRIERS:
            return self._build_http_record()
        if key == "shell" and self._find_tool_kind() == "shell":
            return self._build_shell_record()
        if self._error is None:
            return MISSING
        if key == "pg" and "pg_code" in self._error:
            details = _choose_details(self._error.get("details"), ("constraint", "table"))
            sqlstate = self._error["pg_code"]
            code = self._error.get("code")
            return Record({"code": code, "sqlstate": sqlstate, **details}, optional=PG_FIELDS)
        if key == "py" and "exception_type" in self._error:
            details = _choose_details(self._error.get("details"), ("traceback",))
            return Record(
                {"exception": self._error["exception_type"], **details}, optional=PY_FIELDS
            )
        return MISSING

    def _get_produced_data(self) -> Any:
        """Give the data; of a failure only what its tool did produce."""
        data = self._data
        has_none = isinstance(data, ResultView) and data.raw is None
        return MISSING if has_none and self._error is not None else data

    def _find_reference(self) -> Any:
        return (
            self._data.find_member("_ref") if isinstance(self._data, PayloadHandle) else self._ref
        )

    def _find_tool_kind(self) -> str:
        """Return the kind of the tool that made the data; what is stored is loaded to tell."""
        if self._kind is not None:
            return self._kind
        view = self._load_view()
        return view.kind if isinstance(view, ResultView) else "python"

    def _load_view(self) -> Any:
        return self._data.load_value() if isinstance(self._data, PayloadHandle) else self._data

    def _build_http_record(self) -> dict[str, Any]:
        front = self._load_view()
        raw = front.raw if isinstance(front, ResultView) else None
        if type(raw) is not dict or "status_code" not in raw:
            return Record({}, optional=HTTP_FIELDS)
        return {"status": raw["status_code"], "headers": raw.get("headers", {})}

    def _build_shell_record(self) -> dict[str, Any]:
        front = self._load_view()
        raw = front.raw if isinstance(front, ResultView) else None
        return {"returncode": raw.get("returncode") if type(raw) is dict else None}

    def _find_in_data(self, key: Any) -> Any:
        return MISSING if self._data is MISSING else look_up_member(self._data, key)

    def to_plain(self) -> Any:
        """Give the envelope as JSON."""
        plain_values: dict[str, Any] = {"status": str(self.status)}
        if self._data is not MISSING:
            plain_values["data"] = output_forms.to_plain(self._data)
        if self._error is not None:
            plain_values["error"] = output_forms.to_plain(self._error)
        if self._ref is not MISSING:
            plain_values["ref"] = output_forms.to_plain(self._ref)
        return {**plain_values, "meta": output_forms.to_plain(self._meta)}

    def known_names(self) -> Iterable[str]:
        """List names for spelling hints."""
        yield from ("status", "data", "error", "ref", "meta", "http")
        if isinstance(self._data, Lookup):
            yield from self._data.known_names()

    def __str__(self) -> str:
        return str(self.to_plain())


def _choose_details(details: Any, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(details, Mapping):
        return {}
    return {name: details[name] for name in names if name in details}


def build_chunk_names(chunk: Chunk, find: Callable[[PayloadRef], Any]) -> dict[str, Any]:
    """Return `chunk` and `output`; the rows are loaded when they are touched."""
    stored = StoredResult(reference=chunk.ref, locator=chunk.ref.uri)
    rows = PayloadHandle(stored, load=lambda one: find(one.reference))
    return {
        "chunk": {
            "index": chunk.index,
            "row_count": chunk.row_count,
            "has_more": chunk.has_more,
            "ref": stored.as_mapping(),
            "rows": rows,
        },
        "output": OutputView({"rows": rows, "row_count": chunk.row_count}),
    }
