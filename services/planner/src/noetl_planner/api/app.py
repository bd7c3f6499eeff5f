"""Builds the HTTP API of the planner, and describes its refusals in the OpenAPI document."""

from collections.abc import Iterable
from http import HTTPStatus
from importlib.metadata import version
from typing import cast

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.middleware import DefineMiddleware
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import (
    ASGIApp,
    ControllerRouterHandler,
    HTTPScope,
    Message,
    Receive,
    Scope,
    Send,
)
from msgspec import Struct

from noetl_contracts.errors import ResultMalformed, Retryable
from noetl_contracts.optional_modules import hide_modules
from noetl_planner.api import health, service_health
from noetl_planner.api.catalog import checkpoints, plans, playbook_folders, playbooks, states
from noetl_planner.api.claims import claims, frame_claims
from noetl_planner.api.console import routes as console
from noetl_planner.api.credentials import credential_tests, credentials
from noetl_planner.api.executions import (
    executions,
    forks,
    input_files,
    moment_stream,
    moments,
    reruns,
    run_differences,
    variables,
)
from noetl_planner.api.history import (
    audits,
    check_reports,
    counterfactuals,
    evidence_contents,
    history_replay,
    lineages,
    objects,
    payloads,
    results,
    retention,
    step_runs,
    traces,
)
from noetl_planner.api.http import bodies, host_and_origin_checks, problems, query_names
from noetl_planner.api.http.gate import Gate
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import BOUND_SERVICES, GATE, SERVICES, ApiServices
from noetl_planner.api.identity import (
    audit_log,
    keys,
    quotas,
    roles,
    sign_ins,
    token_sessions,
    whoami,
)
from noetl_planner.api.lookup import fold_slices
from noetl_planner.api.lookup.fold_slices import MomentUnderWay
from noetl_planner.api.loop_items import frame_history
from noetl_planner.api.loop_items import routes as loop_items
from noetl_planner.api.pools import pools
from noetl_planner.api.triggers import (
    dead_letters,
    messages,
    notifications,
    schedules,
    triggers,
    webhooks,
)
from noetl_planner.api.watch import event_stream, logs
from noetl_planner.identity.openid.refusals import TokenRefused
from noetl_storage.ports.errors import HistoryDropped, RowRefused

_REFUSALS = {
    HTTPStatus.BAD_REQUEST: "The request makes no sense; `detail` says why.",
    HTTPStatus.UNAUTHORIZED: "Nobody is proved: no token, or one that is wrong or over.",
    HTTPStatus.FORBIDDEN: "The roles of who asks do not allow it, or a page of another site asks.",
    HTTPStatus.NOT_FOUND: "There is no such thing for this tenant.",
    HTTPStatus.CONFLICT: "It is not as the request believes.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "There is no room for so much.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "It is understood, and wrong; `diagnostics` names the places.",
    HTTPStatus.SERVICE_UNAVAILABLE: "A server behind the API is away: ask again.",
}


class Problem(Struct, frozen=True, kw_only=True):
    """A refusal by RFC 9457; `code` is for programs, `detail` and `hint` are for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str
    hint: str | None = None


def describe_refusals(routes: Iterable[BaseRoute]) -> None:
    """Add the refusals to what handlers say of themselves; what one says already stays."""
    for route in routes:
        handlers = route.route_handlers if isinstance(route, HTTPRoute) else ()
        for handler in handlers:
            handler.responses = {**_document_refusals(), **(handler.responses or {})}


def _document_refusals() -> dict[int, ResponseSpec]:
    return {
        int(status): ResponseSpec(
            data_container=Problem,
            description=why,
            media_type=problems.MEDIA_TYPE,
            generate_examples=False,
        )
        for status, why in _REFUSALS.items()
    }


def _is_refusal(status: int, method: str) -> bool:
    """Tell whether an answer is to be recorded; to ask whether one is signed in is no attempt."""
    return status == HTTPStatus.FORBIDDEN or (
        status == HTTPStatus.UNAUTHORIZED and method == "POST"
    )


class AccessMiddleware:
    """A middleware of every route: nothing is answered before the gate has admitted the request."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Bind what the request may use; raises the `ApiError` of the gate or of the query."""
        # Nothing here speaks over a web socket.
        http = cast("HTTPScope", scope)
        bound = await self._gate.admit_request(http)
        query_names.check_query_names(http)
        scope[GATE] = self._gate  # type: ignore[literal-required]  # a key of ours
        scope[BOUND_SERVICES] = bound  # type: ignore[literal-required]  # a key of ours

        async def send_recorded(message: Message) -> None:
            # Refused behind the gate: a path, what one has asked for oneself, or a wrong token,
            # code or signature where anybody may call.
            if message["type"] == "http.response.start" and _is_refusal(
                message["status"], http["method"]
            ):
                await self._gate.record_refusal(http, bound)
            await send(message)

        await self._app(scope, receive, send_recorded)


def get_bound_services(scope: Scope) -> ApiServices:
    """Return what the gate has bound to a request."""
    services: ApiServices = scope[BOUND_SERVICES]  # type: ignore[literal-required]  # a key of ours
    return services


BODY_BYTES_MAX = 4 * 1024 * 1024


API_ROUTES: tuple[ControllerRouterHandler, ...] = (
    *service_health.ROUTES,
    *executions.ROUTES,
    *input_files.ROUTES,
    *event_stream.ROUTES,
    *step_runs.ROUTES,
    *moments.ROUTES,
    *moment_stream.ROUTES,
    *run_differences.ROUTES,
    *playbooks.ROUTES,
    *playbook_folders.ROUTES,
    *plans.ROUTES,
    *pools.ROUTES,
    *credentials.ROUTES,
    *dead_letters.ROUTES,
    *credential_tests.ROUTES,
    *claims.ROUTES,
    *frame_claims.ROUTES,
    *messages.ROUTES,
    *payloads.ROUTES,
    *check_reports.ROUTES,
    *counterfactuals.ROUTES,
    *history_replay.ROUTES,
    *evidence_contents.ROUTES,
    *audits.ROUTES,
    *audit_log.ROUTES,
    *keys.ROUTES,
    *quotas.ROUTES,
    *roles.ROUTES,
    *whoami.ROUTES,
    *reruns.ROUTES,
    *forks.ROUTES,
    *lineages.ROUTES,
    *loop_items.ROUTES,
    *frame_history.ROUTES,
    *logs.ROUTES,
    *objects.ROUTES,
    *results.ROUTES,
    *retention.ROUTES,
    *schedules.ROUTES,
    *states.ROUTES,
    *checkpoints.ROUTES,
    *traces.ROUTES,
    *triggers.ROUTES,
    *variables.ROUTES,
    *notifications.ROUTES,
    *webhooks.ROUTES,
)


def create_app(services: ApiServices) -> Litestar:
    """Build the API over what it may touch."""
    # Where it is installed the framework loads it, 10 MiB, for models that no route has.
    with hide_modules("pydantic"):
        app = _build_app(services)
    describe_refusals(app.routes)
    query_names.note_query_names(app.routes)
    return app


def _build_app(services: ApiServices) -> Litestar:
    return Litestar(
        route_handlers=[
            *health.ROUTES,
            *sign_ins.ROUTES,
            *token_sessions.ROUTES,
            *console.ROUTES,
            Router(path="/api", route_handlers=list(API_ROUTES)),
        ],
        # One alone: for two and more the framework starts a task each, at every request.
        dependencies={"services": Provide(get_bound_services, sync_to_thread=False)},
        middleware=[DefineMiddleware(AccessMiddleware, gate=Gate(services))],
        state=State({SERVICES: services}, deep_copy=False),
        exception_handlers={
            ApiError: problems.show_api_error,
            MomentUnderWay: fold_slices.show_progress,
            HTTPException: problems.show_http_error,
            Retryable: problems.show_retryable,
            HistoryDropped: problems.show_dropped,
            ResultMalformed: problems.show_malformed,
            RowRefused: problems.show_row_refused,
            TokenRefused: problems.show_token_refused,
            # JSON that is no JSON either: its reader gave up before its end.
            RecursionError: lambda request, _: problems.show_api_error(
                request, bodies.build_too_deep_error()
            ),
            Exception: problems.show_unexpected,
        },
        openapi_config=OpenAPIConfig(
            title="NoETL",
            version=version("noetl-planner"),
            use_handler_docstrings=True,
            # The document alone: pages that show it load their programs from elsewhere.
            render_plugins=[JsonRenderPlugin(path=["/", "/openapi.json"])],
        ),
        after_request=bodies.redact_response,
        before_request=host_and_origin_checks.check_request,
        request_class=bodies.BoundedRequest,
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
    )
