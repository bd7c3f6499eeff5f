"""Every refusal as one shape: `application/problem+json` of RFC 9457, never a traceback."""

import re
from http import HTTPStatus
from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException

from noetl_chassis import identity
from noetl_contracts import codec, subjects
from noetl_contracts.errors import ResultMalformed, Retryable
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.written_names import escape_json, find_path_problem
from noetl_planner.identity.openid.refusals import PROVIDER_FAULTS, RefusalCode, TokenRefused
from noetl_storage.ports.errors import HistoryDropped, RowRefused

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
# The largest number that the ledger can look for.
NUMBER_MAX = 2**63 - 1
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NAME = re.compile(NAME_PATTERN)
# What msgspec says of a text that is no time.
_UNREADABLE_TIME = "RFC3339"
# What it says of JSON that ends too early, and of half of a pair of surrogates.
_CUT_SHORT = "Input data was truncated"
# What the framework says where a body is needed and none came.
_NO_BODY = "data: 'data'"
_CALLBACKS = "/api/callbacks/"

AnyRequest = Request[Any, Any, Any]

log = structlog.get_logger(__name__)


class ApiError(Exception):
    """A request that cannot be served as it was made; `hint` says what to do instead."""

    def __init__(
        self,
        status: HTTPStatus,
        *,
        code: str,
        detail: str,
        hint: str | None = None,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.extra = extra or {}
        self.headers = headers or {}


def get_client_address(request: AnyRequest) -> str:
    """Name a client by its address; behind a proxy all have the proxy's."""
    return request.client.host if request.client is not None else ""


def build_name_taken_error(label: str) -> ApiError:
    """Say that a name belongs to something that who asks may not change."""
    return ApiError(
        HTTPStatus.CONFLICT,
        code="name_taken",
        detail=f"the name of {label} is taken",
        hint="choose another name: it is one for all folders of the organization",
    )


def build_not_found_error(detail: str, *, hint: str | None = None) -> ApiError:
    """Say that something is not there."""
    return ApiError(HTTPStatus.NOT_FOUND, code="not_found", detail=detail, hint=hint)


def build_no_tenant_error(tenant: str) -> ApiError:
    """Say that there is no such tenant: to who may act in every tenant alone."""
    return ApiError(
        HTTPStatus.NOT_FOUND,
        code="no_tenant",
        detail=f"there is no tenant {tenant[:80]!r}",
        hint="look for a mistyped name; a new tenant begins with a role, a key, a credential or a "
        "playbook that you put there: noetl role grant",
    )


class MisdirectedTenantError(ApiError):
    """A tenant that another installation serves: nothing of it is kept or answered here."""

    def __init__(self, tenant: str, *, url: str | None, only: str | None) -> None:
        way = (
            "ask who runs the installations for the tenant's address"
            if url is None
            else f"noetl context add {tenant} --server {url} --tenant {tenant} --use"
        )
        place = f"at {url}" if url else f"elsewhere: here is tenant {only!r} alone"
        super().__init__(
            HTTPStatus.MISDIRECTED_REQUEST,
            code="tenant_elsewhere",
            detail=f"tenant {tenant[:80]!r} is served {place}",
            hint=way,
            extra={} if url is None else {"url": url},
        )


def build_no_organization_error(tenant: str, organization: str) -> ApiError:
    """Say that a tenant has no such organization: to who may act in every tenant alone."""
    return ApiError(
        HTTPStatus.NOT_FOUND,
        code="no_organization",
        detail=f"there is no organization {organization[:80]!r} of tenant {tenant[:80]!r}",
        hint="look for a mistyped name; a new organization begins with a role, a key, a credential "
        "or a playbook that you put there: noetl role grant",
    )


def check_tenant_name(tenant: str) -> None:
    """Raise a 400 for what no tenant can be called."""
    if not subjects.is_subject_token(tenant):
        raise build_bad_request_error(
            f"{tenant[:80]!r} names no tenant: use 1 to 64 letters, digits, '_' or '-'"
        )


def build_bad_request_error(detail: str, *, hint: str | None = None) -> ApiError:
    """Say that a request makes no sense."""
    return ApiError(HTTPStatus.BAD_REQUEST, code="bad_request", detail=detail, hint=hint)


def check_folder(path: str) -> None:
    """Raise a 400 for the folder of a role or a credential in which no playbook can be."""
    problem = find_path_problem(path)
    if problem is not None:
        raise build_bad_request_error(
            f"{path!r} is no folder of playbooks: {problem}",
            hint="name it as paths of playbooks begin: sales or sales/eu",
        )


def build_request_too_large_error(detail: str, *, hint: str | None = None) -> ApiError:
    """Say that something exceeds what there is room for."""
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return ApiError(status, code="payload_too_large", detail=detail, hint=hint)


def build_undecided_error() -> ApiError:
    """Say that the planner has not decided in time; what was told is kept and repeats nothing."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        code="undecided",
        detail="the planner has not decided on this report yet",
        hint="send the same again; it counts once",
    )


def check_depth(value: Any, noun: str) -> None:
    """Raise a 400 for what is nested deeper than the planner takes it."""
    if is_nested_deeper(value, DEPTH_MAX):
        raise build_bad_request_error(f"{noun} is nested deeper than {DEPTH_MAX} levels")


def check_name(name: str, noun: str) -> str:
    """Admit what may name a schedule, a webhook, a trigger; raises a 400 for anything else."""
    if not NAME.fullmatch(name):
        raise build_bad_request_error(
            f"{name[:128]!r} cannot name {noun}",
            hint="use 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first",
        )
    return name


def show_api_error(request: AnyRequest, error: ApiError) -> Response[bytes]:
    """Answer with what a room has raised."""
    return _build_problem(
        request,
        status=error.status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        extra=error.extra,
        headers=error.headers,
    )


def show_http_error(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """Answer for the framework: unknown routes, wrong methods, bodies that do not fit."""
    status = HTTPStatus(error.status_code)
    detail = _list_field_faults(error) or error.detail or status.phrase
    hint = "the routes are listed at /schema" if status is HTTPStatus.NOT_FOUND else None
    if _UNREADABLE_TIME in detail:
        hint = "write a time as 2026-01-31T12:00Z"
    elif _CUT_SHORT in detail:
        hint = "the JSON ends before its last bracket, or a text holds half of a pair: \\ud800"
    elif detail == _NO_BODY:
        detail, hint = "the request has no body", "send JSON with Content-Type: application/json"
    return _build_problem(
        request, status=status, code=status.name.lower(), detail=detail, hint=hint
    )


def show_retryable(request: AnyRequest, error: Retryable) -> Response[bytes]:
    """Answer while a store or the bus is away: nothing is lost, ask again."""
    log.warning("request not served", route=redact_path(request.url.path), reason=str(error))
    return _build_problem(
        request,
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        code="unavailable",
        detail=str(error),
        hint=f"ask again in {RETRY_AFTER_S} s; the same Idempotency-Key never runs twice",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def show_malformed(request: AnyRequest, error: ResultMalformed) -> Response[bytes]:
    """Answer for a result that is stored and cannot be shown as one."""
    return _build_problem(
        request,
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        code="not_a_result",
        detail=str(error),
        hint="read it from the payload store",
    )


def show_token_refused(request: AnyRequest, error: TokenRefused) -> Response[bytes]:
    """Answer a token, or a sign-in, that proves nobody: 401, 400 or 403; 503 for the provider."""
    headers = {}
    if error.code in PROVIDER_FAULTS:
        status = HTTPStatus.SERVICE_UNAVAILABLE
        headers["Retry-After"] = str(RETRY_AFTER_S)
    elif error.code.startswith("sign_in_"):
        status = HTTPStatus.BAD_REQUEST
    elif error.code is RefusalCode.PROVIDER_REFUSED:
        status = HTTPStatus.FORBIDDEN
    else:
        status = HTTPStatus.UNAUTHORIZED
        headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    return _build_problem(
        request,
        status=status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        headers=headers,
    )


def show_row_refused(request: AnyRequest, error: RowRefused) -> Response[bytes]:
    """Answer for a value that the ledger cannot hold: a NUL in a text, a number over 64 bits."""
    return _build_problem(
        request,
        status=HTTPStatus.BAD_REQUEST,
        code="bad_request",
        detail=str(error),
        hint="send texts without the character NUL, and numbers of at most 64 bits",
    )


def show_dropped(request: AnyRequest, error: HistoryDropped) -> Response[bytes]:
    """Answer for a history that its owner's policy has removed."""
    return _build_problem(
        request,
        status=HTTPStatus.GONE,
        code="history_dropped",
        detail=str(error),
        hint="noetl status ID shows what the read models keep of it",
    )


def show_unexpected(request: AnyRequest, error: Exception) -> Response[bytes]:
    """Answer for our own defect: the log has it under the incident that the answer names."""
    incident = identity.mint_token()[:12]
    log.error(
        "request failed", route=redact_path(request.url.path), incident=incident, exc_info=error
    )
    return _build_problem(
        request,
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        code="internal",
        detail="the planner failed to serve this request",
        hint=f"look for incident {incident} in the planner's log: noetl logs planner",
    )


def redact_path(path: str) -> str:
    """Name a request's path for logs and spans, without the token that a callback's holds."""
    return f"{_CALLBACKS}***" if path.startswith(_CALLBACKS) else path


def _list_field_faults(error: HTTPException) -> str:
    """Name the fields that validation refused."""
    extra = error.extra if isinstance(error.extra, list) else []
    reasons = [
        f"{item['key']}: {item['message']}" if item.get("key") else str(item["message"])
        for item in extra
        if isinstance(item, dict) and "message" in item
    ]
    return "; ".join(reasons)


def _build_problem(
    request: AnyRequest,
    *,
    status: HTTPStatus,
    code: str,
    detail: str,
    hint: str | None = None,
    extra: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Response[bytes]:
    body = {
        "type": "about:blank",
        "title": status.phrase,
        "status": int(status),
        "code": code,
        "detail": detail,
        "instance": request.url.path,
        **({} if hint is None else {"hint": hint}),
        **(extra or {}),
    }
    return Response(
        content=escape_json(codec.encode_json(body).decode()).encode(),
        status_code=int(status),
        media_type=MEDIA_TYPE,
        headers=headers or {},
    )
