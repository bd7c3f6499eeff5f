"""The fields of an `http` task, turned into a request."""

import re
from base64 import b64encode
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

from msgspec import Struct, structs
from urllib3 import encode_multipart_formdata
from yarl import URL

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.texts import as_text
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.tools.http_parts import Part

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_CLEAN_URL = re.compile(r"https?://[A-Za-z0-9\[][A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")
# Nothing of such a URL is written in another way: only whom it asks is to be found.
_PLAIN_URL = re.compile(
    r"(https?://[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/)[A-Za-z0-9._~:/\[\]@!$&'()*+,;=%-]*(?:\?[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+)?"
)
_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z0-9_.~-]*")
# What may go along when a redirect leads to another host; anything else may be a secret.
_HARMLESS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_DATA_PARTS = frozenset({"query", "params", "body", "json", "form"})
_USERINFO = re.compile(r"//[^/?#@]*@")


class Address(Struct, frozen=True):
    """Where a request goes: its URL as it is sent, and the host and port that it asks."""

    url: str
    host: str
    port: int


class Request(Struct, frozen=True, kw_only=True):
    """A request that can be sent as often as needed."""

    method: str
    address: Address
    headers: dict[str, str]
    body: bytes | None


def build(fields: dict[str, Any], *, parts: tuple[Part, ...] = (), idempotency_key: str) -> Request:
    """Build a request; raises `ToolFailure` for fields that make none."""
    fields = _with_data_parts(fields)
    headers = _headers(fields.get("headers"))
    if parts:
        body: bytes | None = _multipart(parts, fields.get("form"), headers)
    else:
        body = _body(fields, headers)
    headers.setdefault("Idempotency-Key", idempotency_key)
    return Request(
        method=str(fields.get("method") or "GET").upper(),
        address=_address(fields.get("url"), fields.get("params"), headers),
        headers=headers,
        body=body,
    )


def sign(request: Request, credential: Credential) -> Request:
    """Add a credential to a request; raises `ToolFailure` for a type that HTTP cannot use."""
    fields = credential.fields
    match credential.kind:
        case "bearer" | "httpBearerAuth":
            name, value = "Authorization", f"Bearer {_field(credential, 'token')}"
        case "basic":
            user = _field(credential, "username", "user")
            name, value = "Authorization", _basic(user, str(fields.get("password", "")))
        case "api_key":
            name, value = str(fields.get("header", "X-API-Key")), _field(credential, "value")
        case _:
            raise ToolFailure(
                failure(
                    "config",
                    f"credential '{credential.name}' is of type '{credential.kind}', "
                    "which an http task cannot use: use bearer, basic, api_key or oauth2",
                )
            )
    return structs.replace(request, headers={**request.headers, name: value})


def _field(credential: Credential, *names: str) -> str:
    """Return the first field that is there; raises `ToolFailure` for none, or no text."""
    found = credential.text(*names)
    if found is None:
        raise credential.unusable(f"of type '{credential.kind}' has no '{names[0]}'")
    return found


def redirected(request: Request, *, status: int, location: str) -> Request:
    """Return the request that follows a redirect; to another host only harmless headers go.

    Raises `ToolFailure` for a redirect to what is no http or https URL.
    """
    try:
        former = URL(request.address.url, encoded=True)
        url = former.join(URL(location)).with_fragment(None)
    except ValueError as problem:
        raise _misled(location) from problem
    if url.scheme not in {"http", "https"} or not url.host:
        raise _misled(location)
    headers = request.headers
    if url.origin() != former.origin():
        headers = {key: item for key, item in headers.items() if key.lower() in _HARMLESS}
    keeps_method = status in {307, 308} or request.method in {"GET", "HEAD"}
    if not keeps_method:
        headers = {key: item for key, item in headers.items() if key.lower() != "content-type"}
    headers = headers.copy()
    return Request(
        method=request.method if keeps_method else "GET",
        address=address_of(_logged_in(url, headers)),
        headers=headers,
        body=request.body if keeps_method else None,
    )


def _misled(location: str) -> ToolFailure:
    text = f"a redirect leads to {shown(location)!r}, which is no http or https URL"
    return ToolFailure(failure("client_error", text, code="REDIRECT", source="http"))


def shown(text: Any) -> str:
    """Write a URL into a message without the name and password that it may hold."""
    return _USERINFO.sub("//", str(text))


def _logged_in(url: URL, headers: dict[str, str]) -> URL:
    """Move the name and password of a URL into a header, unless there is one."""
    if url.raw_user is None and url.raw_password is None:
        return url
    if not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = _basic(url.user or "", url.password or "")
    return url.with_user(None)


def _basic(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def _with_data_parts(fields: dict[str, Any]) -> dict[str, Any]:
    data = fields.get("data")
    if data is None:
        return fields
    if isinstance(data, dict) and data and data.keys() <= _DATA_PARTS:
        parts = {("params" if key == "query" else key): item for key, item in data.items()}
        return {**parts, **{key: item for key, item in fields.items() if key != "data"}}
    return {"body": data, **fields}


def _headers(given: Any) -> dict[str, str]:
    if not given:
        return {}
    if not isinstance(given, dict):
        raise ToolFailure(failure("validation", "field 'headers' must be a mapping"))
    return {
        as_text(name): value if type(value) is str else as_text(value)
        for name, value in given.items()
        if value is not None
    }


def address_of(url: URL) -> Address:
    """Tell where a request for a URL goes."""
    return Address(str(url), url.raw_host or "", url.port or 0)


def _address(text: Any, params: Any, headers: dict[str, str]) -> Address:
    """Tell where a task's request goes; a name and password in its URL go into the headers."""
    if not isinstance(text, str) or not text:
        raise ToolFailure(failure("validation", "field 'url' must be a text"))
    text = text.partition("#")[0]
    if params:
        text = f"{text}{'&' if '?' in text else '?'}{_query(params)}"
    plain = _PLAIN_URL.fullmatch(text)
    root = None if plain is None else _root(plain[1])
    if root is not None:
        return Address(text, root.host, root.port)
    return address_of(_logged_in(_url(text), headers))


@lru_cache(maxsize=1024)
def _root(url: str) -> Address | None:
    """Tell where the root of a server is; None when it is usually written in another way."""
    try:
        found = address_of(URL(url, encoded=True))
    except ValueError:
        return None
    return found if found.url == url and found.host else None


def _url(text: str) -> URL:
    if _CLEAN_URL.fullmatch(text):
        return URL(text, encoded=True)
    try:
        url = URL(text)
    except ValueError as problem:
        raise ToolFailure(
            failure("validation", f"'{shown(text)}' is not a URL: {problem}")
        ) from problem
    if url.scheme not in {"http", "https"} or not url.host:
        raise ToolFailure(
            failure("validation", f"'{shown(text)}' is not an http or https URL with a host")
        )
    return url


def _query(params: Any, *, what: str = "params") -> str:
    if isinstance(params, str):
        return params
    if not isinstance(params, dict):
        raise ToolFailure(failure("validation", f"field '{what}' must be a mapping"))
    parts: list[str] = []
    for name, value in params.items():
        if isinstance(value, list):
            parts.extend(f"{_quoted(name)}={_quoted(item)}" for item in value if item is not None)
        elif value is not None:
            parts.append(f"{_quoted(name)}={_quoted(value)}")
    return "&".join(parts)


def _quoted(value: Any) -> str:
    """Quote for a query; most values need none, and quoting is slow."""
    text = value if isinstance(value, str) else as_text(value)
    return text if _NEEDS_NO_QUOTES.fullmatch(text) else quote_plus(text)


def _body(fields: dict[str, Any], headers: dict[str, str]) -> bytes | None:
    """Encode whichever body there is and name its type unless the task did."""
    form = fields.get("form")
    if form is not None:
        _name_type(headers, _FORM)
        return _query(form, what="form").encode()
    key = next((key for key in ("json", "body", "payload") if fields.get(key) is not None), None)
    if key is None:
        return None
    body = fields[key]
    if isinstance(body, str):
        _name_type(headers, _JSON if key == "json" else "text/plain; charset=utf-8")
        return body.encode()
    if isinstance(body, dict) and _FORM in _named_type(headers).lower():
        return _query(body, what=key).encode()
    _name_type(headers, _JSON)
    return codec.encode(body)


def _multipart(parts: tuple[Part, ...], form: Any, headers: dict[str, str]) -> bytes:
    """Encode a form with files, and name its type in place of any other."""
    if form is not None and not isinstance(form, dict):
        raise ToolFailure(failure("validation", "field 'form' must be a mapping"))
    fields = ((name, as_text(value)) for name, value in (form or {}).items() if value is not None)
    files = ((part.name, (part.name, part.data, part.media_type)) for part in parts)
    body, media_type = encode_multipart_formdata([*fields, *files])
    for name in [name for name in headers if name.lower() == "content-type"]:
        del headers[name]
    headers["Content-Type"] = media_type
    return body


def _named_type(headers: dict[str, str]) -> str:
    return next((item for name, item in headers.items() if name.lower() == "content-type"), "")


def _name_type(headers: dict[str, str], media_type: str) -> None:
    if not _named_type(headers):
        headers["Content-Type"] = media_type
