"""Requests of http tasks: address, headers, login, query, body and the files that they send."""

import re
from base64 import b64encode
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

from msgspec import Struct, structs
from urllib3 import encode_multipart_formdata
from yarl import URL

from noetl_contracts import codec, locators
from noetl_contracts.errors import LocatorError, Permanent, Retryable
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_playbook.model import coercion
from noetl_playbook.views.result_view import view_pipeline
from noetl_playbook.views.results import PipelineResult
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.text_values import format_text
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.payloads.payload_retry import retry_store_call

_TEXT = "text/plain; charset=utf-8"
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


class MultipartPart(Struct, frozen=True, kw_only=True):
    """One file of a multipart body."""

    name: str
    data: bytes
    media_type: str


async def load_multipart_parts(
    files: Any, payloads: Payloads, site: UnitScope
) -> tuple[MultipartPart, ...]:
    """Read the field `files`; raises `ToolFailure`."""
    if not files:
        return ()
    if not isinstance(files, dict):
        raise ToolFailure(
            build_error("validation", "field 'files' must be a mapping", source="http")
        )
    return tuple(
        [
            await _load_multipart_part(format_text(name), value, payloads, site)
            for name, value in files.items()
            if value is not None
        ]
    )


async def _load_multipart_part(
    name: str, value: Any, payloads: Payloads, site: UnitScope
) -> MultipartPart:
    if isinstance(value, dict) and value.get("kind") == "result_ref":
        return await _load_referenced(name, value, payloads, site)
    media_type = _TEXT if isinstance(value, str) else JSON_MEDIA_TYPE
    return MultipartPart(name=name, data=format_text(value).encode(), media_type=media_type)


async def _load_referenced(
    name: str, value: dict[str, Any], payloads: Payloads, site: UnitScope
) -> MultipartPart:
    """Read a stored result of the task's own organization: a digest names nothing elsewhere."""
    try:
        reference = PayloadRef(
            uri=locators.build_payload_locator(
                site.tenant_id, site.organization_id, str(value.get("sha256"))
            ),
            sha256=str(value.get("sha256")),
            media_type=str(value.get("media_type") or JSON_MEDIA_TYPE),
            payload_bytes=coercion.coerce_integer(value.get("bytes")) or 0,
        )
        data = await retry_store_call(lambda: payloads.read_payload(reference))
    except LocatorError as problem:
        text = f"field 'files.{name}' is no reference: {problem}"
        raise ToolFailure(build_error("validation", text, source="http")) from problem
    except (Permanent, Retryable) as problem:
        text = f"field 'files.{name}' refers to what cannot be read: {problem}"
        raise ToolFailure(build_error("reference_not_available", text, source="http")) from problem
    if reference.media_type != JSON_MEDIA_TYPE:
        return MultipartPart(name=name, data=data, media_type=reference.media_type)
    result = view_pipeline(codec.decode_as(data, PipelineResult)).to_plain()
    media_type = _TEXT if isinstance(result, str) else JSON_MEDIA_TYPE
    return MultipartPart(name=name, data=format_text(result).encode(), media_type=media_type)


class RequestAddress(Struct, frozen=True):
    """Where a request goes: its URL as it is sent, and the host and port that it asks."""

    url: str
    host: str
    port: int


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A request that can be sent as often as needed."""

    method: str
    address: RequestAddress
    headers: dict[str, str]
    body: bytes | None


def build_request(
    fields: dict[str, Any], *, parts: tuple[MultipartPart, ...] = (), idempotency_key: str
) -> HttpRequest:
    """Build a request; raises `ToolFailure` for fields that make none."""
    fields = _with_data_parts(fields)
    headers = _parse_headers(fields.get("headers"))
    if parts:
        body: bytes | None = _encode_multipart(parts, fields.get("form"), headers)
    else:
        body = _encode_body(fields, headers)
    headers.setdefault("Idempotency-Key", idempotency_key)
    return HttpRequest(
        method=str(fields.get("method") or "GET").upper(),
        address=_parse_address(fields.get("url"), fields.get("params"), headers),
        headers=headers,
        body=body,
    )


def sign_request(request: HttpRequest, credential: Credential) -> HttpRequest:
    """Add a credential to a request; raises `ToolFailure` for a type that HTTP cannot use."""
    fields = credential.fields
    match credential.kind:
        case "bearer" | "httpBearerAuth":
            name, value = "Authorization", f"Bearer {_get_field(credential, 'token')}"
        case "basic":
            user = _get_field(credential, "username", "user")
            name, value = "Authorization", _build_basic_auth(user, str(fields.get("password", "")))
        case "api_key":
            name, value = str(fields.get("header", "X-API-Key")), _get_field(credential, "value")
        case _:
            raise ToolFailure(
                build_error(
                    "config",
                    f"credential '{credential.name}' is of type '{credential.kind}', "
                    "which an http task cannot use: use bearer, basic, api_key or oauth2",
                )
            )
    return structs.replace(request, headers={**request.headers, name: value})


def _get_field(credential: Credential, *names: str) -> str:
    """Return the first field that is there; raises `ToolFailure` for none, or no text."""
    text_field = credential.find_text_field(*names)
    if text_field is None:
        raise credential.build_unusable_failure(f"of type '{credential.kind}' has no '{names[0]}'")
    return text_field


def redirect_request(request: HttpRequest, *, status: int, location: str) -> HttpRequest:
    """Return the request that follows a redirect; to another host only harmless headers go.

    Raises `ToolFailure` for a redirect to what is no http or https URL.
    """
    try:
        former = URL(request.address.url, encoded=True)
        url = former.join(URL(location)).with_fragment(None)
    except ValueError as problem:
        raise _build_redirect_failure(location) from problem
    if url.scheme not in {"http", "https"} or not url.host:
        raise _build_redirect_failure(location)
    headers = request.headers
    if url.origin() != former.origin():
        headers = {key: item for key, item in headers.items() if key.lower() in _HARMLESS}
    keeps_method = status in {307, 308} or request.method in {"GET", "HEAD"}
    if not keeps_method:
        headers = {key: item for key, item in headers.items() if key.lower() != "content-type"}
    headers = headers.copy()
    return HttpRequest(
        method=request.method if keeps_method else "GET",
        address=build_address(_move_login_to_headers(url, headers)),
        headers=headers,
        body=request.body if keeps_method else None,
    )


def _build_redirect_failure(location: str) -> ToolFailure:
    text = f"a redirect leads to {hide_userinfo(location)!r}, which is no http or https URL"
    return ToolFailure(build_error("client_error", text, code="REDIRECT", source="http"))


def hide_userinfo(text: Any) -> str:
    """Write a URL into a message without the name and password that it may hold."""
    return _USERINFO.sub("//", str(text))


def _move_login_to_headers(url: URL, headers: dict[str, str]) -> URL:
    """Move the name and password of a URL into a header, unless there is one."""
    if url.raw_user is None and url.raw_password is None:
        return url
    if not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = _build_basic_auth(url.user or "", url.password or "")
    return url.with_user(None)


def _build_basic_auth(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def _with_data_parts(fields: dict[str, Any]) -> dict[str, Any]:
    data = fields.get("data")
    if data is None:
        return fields
    if isinstance(data, dict) and data and data.keys() <= _DATA_PARTS:
        parts = {("params" if key == "query" else key): item for key, item in data.items()}
        return {**parts, **{key: item for key, item in fields.items() if key != "data"}}
    return {"body": data, **fields}


def _parse_headers(headers: Any) -> dict[str, str]:
    if not headers:
        return {}
    if not isinstance(headers, dict):
        raise ToolFailure(build_error("validation", "field 'headers' must be a mapping"))
    return {
        format_text(name): value if type(value) is str else format_text(value)
        for name, value in headers.items()
        if value is not None
    }


def build_address(url: URL) -> RequestAddress:
    """Tell where a request for a URL goes."""
    return RequestAddress(str(url), url.raw_host or "", url.port or 0)


def _parse_address(text: Any, params: Any, headers: dict[str, str]) -> RequestAddress:
    """Tell where a task's request goes; a name and password in its URL go into the headers."""
    if not isinstance(text, str) or not text:
        raise ToolFailure(build_error("validation", "field 'url' must be a text"))
    text = text.partition("#")[0]
    if params:
        text = f"{text}{'&' if '?' in text else '?'}{_encode_query(params)}"
    plain = _PLAIN_URL.fullmatch(text)
    root = None if plain is None else _find_root(plain[1])
    if root is not None:
        return RequestAddress(text, root.host, root.port)
    return build_address(_move_login_to_headers(_parse_url(text), headers))


@lru_cache(maxsize=1024)
def _find_root(url: str) -> RequestAddress | None:
    """Tell where the root of a server is; None when it is usually written in another way."""
    try:
        request_address = build_address(URL(url, encoded=True))
    except ValueError:
        return None
    return request_address if request_address.url == url and request_address.host else None


def _parse_url(text: str) -> URL:
    if _CLEAN_URL.fullmatch(text):
        return URL(text, encoded=True)
    try:
        url = URL(text)
    except ValueError as problem:
        raise ToolFailure(
            build_error("validation", f"'{hide_userinfo(text)}' is not a URL: {problem}")
        ) from problem
    if url.scheme not in {"http", "https"} or not url.host:
        raise ToolFailure(
            build_error(
                "validation", f"'{hide_userinfo(text)}' is not an http or https URL with a host"
            )
        )
    return url


def _encode_query(params: Any, *, field: str = "params") -> str:
    if isinstance(params, str):
        return params
    if not isinstance(params, dict):
        raise ToolFailure(build_error("validation", f"field '{field}' must be a mapping"))
    parts: list[str] = []
    for name, value in params.items():
        if isinstance(value, list):
            parts.extend(
                f"{_quote_value(name)}={_quote_value(item)}" for item in value if item is not None
            )
        elif value is not None:
            parts.append(f"{_quote_value(name)}={_quote_value(value)}")
    return "&".join(parts)


def _quote_value(value: Any) -> str:
    """Quote for a query; most values need none, and quoting is slow."""
    text = value if isinstance(value, str) else format_text(value)
    return text if _NEEDS_NO_QUOTES.fullmatch(text) else quote_plus(text)


def _encode_body(fields: dict[str, Any], headers: dict[str, str]) -> bytes | None:
    """Encode the body, if there is one, and set its type unless the task did."""
    form = fields.get("form")
    if form is not None:
        _set_content_type(headers, _FORM)
        return _encode_query(form, field="form").encode()
    key = next((key for key in ("json", "body", "payload") if fields.get(key) is not None), None)
    if key is None:
        return None
    body = fields[key]
    if isinstance(body, str):
        _set_content_type(headers, _JSON if key == "json" else "text/plain; charset=utf-8")
        return body.encode()
    if isinstance(body, dict) and _FORM in _find_content_type(headers).lower():
        return _encode_query(body, field=key).encode()
    _set_content_type(headers, _JSON)
    return codec.encode_json(body)


def _encode_multipart(
    parts: tuple[MultipartPart, ...], form: Any, headers: dict[str, str]
) -> bytes:
    """Encode a form with files, and name its type in place of any other."""
    if form is not None and not isinstance(form, dict):
        raise ToolFailure(build_error("validation", "field 'form' must be a mapping"))
    fields = (
        (name, format_text(value)) for name, value in (form or {}).items() if value is not None
    )
    files = ((part.name, (part.name, part.data, part.media_type)) for part in parts)
    body, media_type = encode_multipart_formdata([*fields, *files])
    for name in [name for name in headers if name.lower() == "content-type"]:
        del headers[name]
    headers["Content-Type"] = media_type
    return body


def _find_content_type(headers: dict[str, str]) -> str:
    return next((item for name, item in headers.items() if name.lower() == "content-type"), "")


def _set_content_type(headers: dict[str, str], media_type: str) -> None:
    if not _find_content_type(headers):
        headers["Content-Type"] = media_type
