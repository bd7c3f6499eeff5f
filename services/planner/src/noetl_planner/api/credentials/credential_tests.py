"""Tests of credentials: a worker opens one, in an execution of one step."""

from http import HTTPStatus
from typing import Annotated

from litestar import Response, post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, HeaderParameter, JSONBody
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED
from msgspec import Meta, Struct

from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_contracts.commands.worker_pools import POOL_PATTERN
from noetl_contracts.credentials import CREDENTIAL_TEST_PATH, TYPES
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_planner.api.catalog import catalog_entries
from noetl_planner.api.credentials import credentials
from noetl_planner.api.executions import end_wait, start_requests
from noetl_planner.api.executions.fast_path import PREFER_LENGTH_MAX
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import AnyRequest
from noetl_planner.api.http.services import (
    ApiServices,
    RequestScope,
    Services,
    build_forbidden_error,
)
from noetl_planner.api.lookup import views
from noetl_planner.identity.permissions import Permission

STEP = "test"
ASKER = "credential test"
# The one text of every test: what differs is its input, which the history keeps.
_PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: credential-test, path: {CREDENTIAL_TEST_PATH}}}
workload: {{credential: null, url: null}}
workflow:
  - step: {STEP}
    tool:
      kind: credential_test
      auth: "{{{{ workload.credential }}}}"
      url: "{{{{ workload.url }}}}"
      timeout: 60
"""

Prefer = Annotated[str | None, HeaderParameter(name="Prefer", max_length=PREFER_LENGTH_MAX)]


class TestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which pool's workers open the credential, and an address to use it at."""

    pool: Annotated[str, Meta(pattern=POOL_PATTERN)] | None = None
    url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None


@post(
    "/credentials/{name:str}/test",
    status_code=HTTP_202_ACCEPTED,
    tags=["credentials"],
    responses={
        HTTP_200_OK: ResponseSpec(
            views.Ended, description="The test is over; the caller preferred to wait."
        )
    },
)
async def begin_test(
    services: Services,
    request: AnyRequest,
    name: FromPath[str],
    data: JSONBody[TestBody | None] = None,
    prefer: Prefer = None,
) -> Response[views.Accepted]:
    """Have a worker open a credential; the result of step `test` says what it found."""
    accepted = await _start_test(services, name, data or TestBody())
    within_s = end_wait.parse_wait_s(prefer)
    over = await end_wait.wait_for_end(
        services, accepted, within_s=within_s, client=problems.get_client_address(request)
    )
    if over is None:
        return Response(accepted, status_code=HTTPStatus.ACCEPTED)
    return Response(
        over,
        status_code=HTTPStatus.OK,
        headers={"Preference-Applied": f"wait={within_s}"},
    )


async def _start_test(services: ApiServices, name: str, body: TestBody) -> views.Accepted:
    """Keep the request of a test; raises `ApiError` for what no worker can test."""
    sealed = await credentials.get_sealed(services, name)
    kind = TYPES.get(sealed.kind)
    if kind is not None and kind.untestable:
        raise problems.build_bad_request_error(
            f"credential '{name}' of type {kind.name} cannot be tested: {kind.untestable}"
        )
    pool = body.pool or DEFAULT_POOL
    if pool in services.pools.by_http:
        raise problems.build_bad_request_error(
            f"pool {pool!r} is served over HTTP: its workers do not open stored credentials",
            hint="name a pool that is served by JetStream: noetl pools",
        )
    _check_address(services, body)
    entry = await catalog_entries.keep_reserved_draft(services, _PLAYBOOK)
    start_requests.check_tools_and_pools(services, entry, pool=pool)
    fact = ExecutionRequested(
        path=entry.path,
        version=entry.version,
        workload={"credential": sealed.name, "url": body.url},
        requested_by=ASKER,
        pool=pool,
    )
    return await start_requests.begin_execution(services, fact, entry, key=None, is_pinned=True)


def _check_address(scope: RequestScope, body: TestBody) -> None:
    """Raise a 403 for who may not write what sends a credential somewhere, and names an address."""
    if body.url is not None and not scope.access.has_permission(Permission.WRITE_PLAYBOOKS):
        raise build_forbidden_error(scope.access, Permission.WRITE_PLAYBOOKS)


ROUTES = [begin_test]
