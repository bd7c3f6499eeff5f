"""The API as one application: rooms, dependencies, and how refusals look."""

from importlib.metadata import version

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from noetl_contracts.errors import ResultMalformed, Retryable
from noetl_planner.http import (
    audits,
    bodies,
    claims,
    concealing,
    credential_tests,
    credentials,
    dead_letters,
    describing,
    executions,
    forks,
    frame_claims,
    given_files,
    health,
    lineages,
    logs,
    messages,
    objects,
    payloads,
    plans,
    playbook_folders,
    playbooks,
    pools,
    problems,
    replay,
    request_checks,
    reruns,
    results,
    retention,
    schedules,
    step_runs,
    stream,
    traces,
    triggers,
    variables,
    webhooks,
)
from noetl_planner.http.loop_items import routes as loop_items
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import SERVICES, ApiServices
from noetl_storage.errors import HistoryDropped, RowRefused

BODY_BYTES_MAX = 4 * 1024 * 1024


def create_app(services: ApiServices) -> Litestar:
    """Build the API over what it may touch."""
    api = Router(
        path="/api",
        route_handlers=[
            *executions.ROUTES,
            *given_files.ROUTES,
            *stream.ROUTES,
            *step_runs.ROUTES,
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
            *replay.ROUTES,
            *audits.ROUTES,
            *reruns.ROUTES,
            *forks.ROUTES,
            *lineages.ROUTES,
            *loop_items.ROUTES,
            *logs.ROUTES,
            *objects.ROUTES,
            *results.ROUTES,
            *retention.ROUTES,
            *schedules.ROUTES,
            *traces.ROUTES,
            *triggers.ROUTES,
            *variables.ROUTES,
            *webhooks.ROUTES,
        ],
    )
    app = Litestar(
        route_handlers=[*health.ROUTES, api],
        # One alone: for two and more the framework starts a task each, at every request.
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        state=State({SERVICES: services}, deep_copy=False),
        exception_handlers={
            ApiError: problems.show_api_error,
            HTTPException: problems.show_http_error,
            Retryable: problems.show_retryable,
            HistoryDropped: problems.show_dropped,
            ResultMalformed: problems.show_malformed,
            RowRefused: problems.show_row_refused,
            # JSON that is no JSON either: its reader gave up before its end.
            RecursionError: lambda request, _: problems.show_api_error(request, bodies.too_deep()),
            Exception: problems.show_unexpected,
        },
        openapi_config=OpenAPIConfig(
            title="NoETL",
            version=version("noetl-planner"),
            use_handler_docstrings=True,
            # The document alone: pages that show it load their programs from elsewhere.
            render_plugins=[JsonRenderPlugin(path=["/", "/openapi.json"])],
        ),
        after_request=concealing.conceal,
        before_request=request_checks.check_request,
        request_class=bodies.BoundedRequest,
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
    )
    describing.describe(app.routes)
    return app
