"""The envelope `output`: how something ended, and the names that reach through it."""

from collections.abc import Iterable, Mapping
from typing import Any

from noetl_playbook import aliases, error_view, forms
from noetl_playbook.handles import Handle
from noetl_playbook.lookup import MISSING, Lookup, Record, member
from noetl_playbook.undefined import HTTP_FIELDS, PG_FIELDS, PY_FIELDS
from noetl_playbook.views import CARRIERS, ResultView

_DATA = frozenset({"data", "result", "response"})
_FIELDS = frozenset({*_DATA, "error", "ref", "http", "pg", "py", "shell"})
_META = frozenset({"attempt", "attempts_total", "duration_ms", "started_at", "worker_id"})


class Output(Lookup):
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
        self._error = error_view.found(error)
        self._meta = meta or {}
        self._ref = ref

    @property
    def status(self) -> aliases.Status:
        """`ok` or `error`."""
        return aliases.OK if self._error is None else aliases.FAILED

    def find(self, key: Any) -> Any:
        """Find a field of the envelope, else a name of its data."""
        if key in _DATA:
            return self._produced()
        if key == "status":
            return self.status
        if key == "error":
            return MISSING if self._error is None else self._error
        if key == "meta":
            return Record(self._meta, optional=_META)
        found = self._particular(key)
        return found if found is not MISSING else self._below(key)

    def may_lack(self, key: Any) -> bool:
        """Tell whether a field is one of the envelope's own, or nothing was produced."""
        data = self._produced()
        if key in _FIELDS or data is MISSING:
            return True
        return isinstance(data, Lookup) and data.may_lack(key)

    def _particular(self, key: Any) -> Any:
        if key == "ref":
            return self._reference()
        if key == "http" and self._made_by() in CARRIERS:
            return self._http()
        if key == "shell" and self._made_by() == "shell":
            return self._shell()
        if self._error is None:
            return MISSING
        if key == "pg" and "pg_code" in self._error:
            told = _chosen(self._error.get("details"), ("constraint", "table"))
            sqlstate = self._error["pg_code"]
            code = self._error.get("code")
            return Record({"code": code, "sqlstate": sqlstate, **told}, optional=PG_FIELDS)
        if key == "py" and "exception_type" in self._error:
            told = _chosen(self._error.get("details"), ("traceback",))
            return Record({"exception": self._error["exception_type"], **told}, optional=PY_FIELDS)
        return MISSING

    def _produced(self) -> Any:
        """Give the data; of a failure only what its tool did produce."""
        data = self._data
        has_none = isinstance(data, ResultView) and data.raw is None
        return MISSING if has_none and self._error is not None else data

    def _reference(self) -> Any:
        return self._data.find("_ref") if isinstance(self._data, Handle) else self._ref

    def _made_by(self) -> str:
        """Return the kind of the tool that made the data; what is stored is loaded to tell."""
        if self._kind is not None:
            return self._kind
        view = self._front()
        return view.kind if isinstance(view, ResultView) else "python"

    def _front(self) -> Any:
        return self._data.loaded() if isinstance(self._data, Handle) else self._data

    def _http(self) -> dict[str, Any]:
        front = self._front()
        raw = front.raw if isinstance(front, ResultView) else None
        if type(raw) is not dict or "status_code" not in raw:
            return Record({}, optional=HTTP_FIELDS)
        return {"status": raw["status_code"], "headers": raw.get("headers", {})}

    def _shell(self) -> dict[str, Any]:
        front = self._front()
        raw = front.raw if isinstance(front, ResultView) else None
        return {"returncode": raw.get("returncode") if type(raw) is dict else None}

    def _below(self, key: Any) -> Any:
        return MISSING if self._data is MISSING else member(self._data, key)

    def plain(self) -> Any:
        """Give the envelope as JSON."""
        found: dict[str, Any] = {"status": str(self.status)}
        if self._data is not MISSING:
            found["data"] = forms.plain(self._data)
        if self._error is not None:
            found["error"] = forms.plain(self._error)
        if self._ref is not MISSING:
            found["ref"] = forms.plain(self._ref)
        return {**found, "meta": forms.plain(self._meta)}

    def known_names(self) -> Iterable[str]:
        """List names for spelling hints."""
        yield from ("status", "data", "error", "ref", "meta", "http")
        if isinstance(self._data, Lookup):
            yield from self._data.known_names()

    def __str__(self) -> str:
        return str(self.plain())


def _chosen(details: Any, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(details, Mapping):
        return {}
    return {name: details[name] for name in names if name in details}
