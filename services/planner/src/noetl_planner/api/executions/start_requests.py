"""Start requests: validated, committed, and published to the planner of their shard."""

from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any

from litestar.types import HTTPScope
from msgspec import UNSET, Meta, Struct, structs

from noetl_chassis.observability import tracing
from noetl_contracts import codec, subjects
from noetl_contracts.commands.state_values import IncrementRange
from noetl_contracts.commands.worker_pools import POOL_PATTERN, Priority
from noetl_contracts.credentials import RESERVED_PATHS
from noetl_contracts.ids import ExecutionId, find_shard
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.ledger.records import CatalogEntry, Request
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.requests import schedules, workload_keys
from noetl_contracts.requests.facts import ExecutionRequested, Fact, FactBatch, Rerun
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, Message
from noetl_planner.api.catalog import catalog_entries, input_checks, states
from noetl_planner.api.executions import end_wait, input_files
from noetl_planner.api.executions.input_files import FILES_MAX, GivenFile
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.quota_board import QuotaExceededError
from noetl_planner.api.http.service_groups import MessageServices
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup, views
from noetl_planner.api.watch.stream_access import StreamAccess
from noetl_planner.domain.steps import pools
from noetl_playbook.model.playbook import Requires

PRODUCER = "api"
# What the stream adds to a message: subject, headers, deduplication id.
_MESSAGE_MARGIN_BYTES = 4096
# Larger inputs are stored, and the request refers to them.
INLINE_BYTES_MAX = 64 * 1024
_INPUT_NAMES = ("workload", "payload", "input", "args")
KEY_LENGTH_MAX = 200
Key = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH_MAX)]


class ExecuteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run: a registered path, a version (default: the latest), and its inputs.

    With `content`, a text and its `scripts` are run as a draft. It begins with `files`. With a
    `backfill` steps read this range of their sources, and move no state.
    """

    path: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    content: str | None = None
    scripts: catalog_entries.Scripts | None = None
    version: int | str | None = None
    workload: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    input: dict[str, Any] | None = None
    args: dict[str, Any] | None = None
    idempotency_key: Key | None = None
    parent_execution_id: str | None = None
    pool: Annotated[str, Meta(pattern=POOL_PATTERN)] | None = None
    priority: Priority | None = None
    files: Annotated[list[GivenFile], Meta(max_length=FILES_MAX)] | None = None
    backfill: IncrementRange | None = None


class _UnsureVersionError(Exception):
    """The latest version that is known here may not be the latest, and was not taken."""


async def execute_playbook(
    services: ApiServices, body: ExecuteBody, key: str | None, *, correlation_id: str | None = None
) -> views.Accepted:
    """Keep a request to run a playbook; the answer is durable.

    What is known here as the latest version is held to be that where the execution begins in the
    transaction that finds it so. Otherwise, and before anything is refused, it is looked up.
    """
    parent = body.parent_execution_id
    if parent is not None:
        await execution_lookup.check_parent(services, parent)
    flow = correlation_id or await execution_lookup.find_parent_correlation_id(services, parent)
    if body.content is not None:
        return await _execute_draft(services, body, key, body.content, flow=flow)
    path = _get_path(body)
    version = _parse_version(body.version)
    # One for both tries: the first may have been committed although its answer was lost.
    execution_id = ExecutionId(services.mint())
    catalog_entry = services.playbooks.playbook_cache.find_entry(
        path.strip("/"), version, **services.tenant_scope
    )
    if catalog_entry is not None and services.covers_path(catalog_entry.path):
        with suppress(_UnsureVersionError, ApiError):
            is_sure = version is not None
            return await _execute_entry(
                services, body, key, catalog_entry, execution_id, is_sure=is_sure, flow=flow
            )
    entry = await catalog_entries.get_playbook_entry(services, path, version)
    return await _execute_entry(services, body, key, entry, execution_id, is_sure=True, flow=flow)


async def _execute_draft(
    services: ApiServices, body: ExecuteBody, key: str | None, content: str, *, flow: str | None
) -> views.Accepted:
    """Run a text that is kept with its execution and is no version of its path."""
    if body.version is not None:
        raise problems.build_bad_request_error(
            "a text has no version", hint="leave `version` out, or name a registered `path`"
        )
    entry = await catalog_entries.keep_draft(
        services, content, path=body.path, scripts=body.scripts
    )
    execution_id = ExecutionId(services.mint())
    return await _execute_entry(services, body, key, entry, execution_id, is_sure=True, flow=flow)


def _get_path(body: ExecuteBody) -> str:
    if body.path is None:
        raise problems.build_bad_request_error(
            "the request names no playbook", hint="send a `path`, or a text as `content`"
        )
    return body.path


async def _execute_entry(
    services: ApiServices,
    body: ExecuteBody,
    key: str | None,
    entry: CatalogEntry,
    execution_id: ExecutionId,
    *,
    is_sure: bool,
    flow: str | None,
) -> views.Accepted:
    check_requirements(services, entry, pool=body.pool)
    parent = body.parent_execution_id
    inputs = _get_inputs(body)
    input_checks.check_inputs(entry, inputs)
    input_checks.check_required_inputs(entry, inputs)
    states.check_backfill(entry, body.backfill)
    workload, workload_ref = await store_inputs(services, inputs, key=_get_key(body, key))
    fact = ExecutionRequested(
        path=entry.path,
        version=entry.version,
        workload=workload,
        workload_ref=workload_ref,
        parent_execution_id=None if parent is None else execution_lookup.check_execution_id(parent),
        requested_by=PRODUCER,
        pool=body.pool,
        priority=body.priority,
        correlation_id=flow,
        files_digest=await input_files.keep_run_files(services, execution_id, body.files or []),
        backfill=UNSET if body.backfill is None else body.backfill,
    )
    is_pinned = body.content is not None or _parse_version(body.version) is not None
    accepted = await begin_execution(
        services,
        fact,
        entry,
        key=_get_key(body, key),
        is_pinned=is_pinned,
        is_sure=is_sure,
        execution_id=execution_id,
    )
    return structs.replace(accepted, warnings=input_checks.list_input_warnings(entry, inputs))


async def start_playbook(
    services: ApiServices,
    path: str,
    version: int | None,
    inputs: dict[str, Any],
    *,
    asked_by: str,
    key: str | None,
    has_free_names: bool,
    execution_id: ExecutionId | None = None,
) -> views.Accepted:
    """Keep a request that something else than a caller makes: a call, a message.

    It `has_free_names` where the inputs are what came, and not what was written for the playbook.
    """
    entry = await catalog_entries.get_playbook_entry(services, path, version)
    check_requirements(services, entry)
    if not has_free_names:
        input_checks.check_inputs(entry, inputs)
    input_checks.check_required_inputs(entry, inputs)
    workload, workload_ref = await store_inputs(services, inputs, key=key)
    fact = ExecutionRequested(
        path=entry.path,
        version=entry.version,
        workload=workload,
        workload_ref=workload_ref,
        requested_by=asked_by,
    )
    is_pinned = version is not None
    return await begin_execution(
        services, fact, entry, key=key, is_pinned=is_pinned, execution_id=execution_id
    )


async def request_execution(
    services: ApiServices,
    entry: CatalogEntry,
    inputs: dict[str, Any],
    *,
    asked_by: str,
    key: str | None,
    is_pinned: bool,
    rerun: Rerun | None = None,
    flow: str | None = None,
) -> views.Accepted:
    """Keep a request for a playbook; `rerun` is taken over, `flow` its correlation id."""
    workload, workload_ref = await store_inputs(services, inputs, key=key)
    fact = ExecutionRequested(
        path=entry.path,
        version=entry.version,
        workload=workload,
        workload_ref=workload_ref,
        requested_by=asked_by,
        rerun=rerun,
        correlation_id=flow,
    )
    return await begin_execution(services, fact, entry, key=key, is_pinned=is_pinned)


async def begin_execution(
    services: ApiServices,
    fact: ExecutionRequested,
    entry: CatalogEntry,
    *,
    key: str | None,
    is_pinned: bool,
    is_sure: bool = True,
    execution_id: ExecutionId | None = None,
) -> views.Accepted:
    """Commit a start request; a repeated idempotency key returns the earlier execution.

    When this process owns the shard, the execution has begun on return.

    Raises a 429 where the tenant's quota is used up, a 507 where that of its storage is, and a 403
    where the tenant is suspended.
    `is_pinned` says that the request names a version. Raises `_UnsureVersionError` when a version
    that is not pinned may not be the latest and the execution does not begin here: the caller
    tries again with the same `execution_id`.
    """
    execution_id = execution_id or ExecutionId(services.mint())
    try:
        async with services.admission.quota_board.admit_start(services.tenant_id, execution_id):
            accepted = await _commit_start(
                services, fact, entry, execution_id, key=key, is_sure=is_sure
            )
    except QuotaExceededError:
        # What the same key has begun before is no other execution.
        earlier = await _find_keyed_execution(services, key)
        if earlier is None:
            raise
        accepted = earlier
    if accepted != execution_id:
        services.admission.quota_board.forget_start(services.tenant_id, execution_id)
        services.shards.commit_feed.forget_execution(execution_id)
        return await _answer_earlier(services, accepted, fact, is_pinned=is_pinned)
    return views.Accepted(
        execution_id=accepted, status="PENDING", path=entry.path, version=entry.version
    )


async def _find_keyed_execution(services: ApiServices, key: str | None) -> ExecutionId | None:
    """Return the execution that a key has begun, if it has."""
    if key is None:
        return None
    earlier = await services.messages.requests.find_keyed_request(key, tenant_id=services.tenant_id)
    return None if earlier is None else earlier.execution_id


async def _commit_start(
    services: ApiServices,
    fact: ExecutionRequested,
    entry: CatalogEntry,
    execution_id: ExecutionId,
    *,
    key: str | None,
    is_sure: bool,
) -> ExecutionId:
    """Commit a request; return its execution, or the earlier one that its key began."""
    request = build_request(
        services,
        fact,
        execution_id,
        request_id=execution_lookup.build_request_id(execution_id),
        kind="execute",
    )
    request = structs.replace(request, idempotency_key=key)
    # Before the first commit, so that a follower that comes after it finds that commit.
    services.shards.commit_feed.accept_execution(
        execution_id, (services.tenant_id, services.organization_id)
    )
    local_starts = services.shards.local_starts
    share_turns = local_starts.share_turns
    async with share_turns.take_turn(share_turns.find_share(services.tenant_id)):
        # The client does not wait until large inputs are read.
        is_begun = fact.workload_ref is None and await local_starts.start_execution(
            find_shard(execution_id, services.shards.shard_count),
            request,
            latest=None if is_sure else entry.catalog_id,
        )
        if is_begun:
            return execution_id
        if is_sure:
            return await submit_request(services.messages, request)
    services.shards.commit_feed.forget_execution(execution_id)
    raise _UnsureVersionError


async def store_inputs(
    services: ApiServices, workload: dict[str, Any], *, key: str | None
) -> tuple[dict[str, Any], PayloadRef | None]:
    """Store inputs that are large or deeply nested; what is not stored travels with the request.

    Raises a 507 where the tenant may store nothing, unless the `key` has begun an execution.
    """
    data = codec.encode_canonical(workload)
    if len(data) <= INLINE_BYTES_MAX and not is_nested_deeper(workload, DEPTH_MAX):
        return workload, None
    try:
        await services.admission.quota_board.check_stored(services.tenant_id)
    except QuotaExceededError:
        if await _find_keyed_execution(services, key) is None:
            raise
    return {}, await services.payloads.put_payload(
        data, media_type=JSON_MEDIA_TYPE, **services.tenant_scope
    )


async def submit_request(messages: MessageServices, request: Request) -> ExecutionId:
    """Keep a request, then publish it at once: the outbox sends the same message again later.

    Whether or not this publication succeeds, the stream takes the message once.
    """
    accepted = await messages.requests.submit_request(request)
    message = Message(subject=request.subject, message_id=request.request_id, data=request.data)
    if accepted == request.execution_id:
        try:
            await messages.publisher.publish_message(message)
        except MessagingUnavailable:
            await messages.hints.notify(subjects.build_hint_subject("outbox"))
    return accepted


def check_requirements(
    services: ApiServices, entry: CatalogEntry, *, pool: str | None = None
) -> None:
    """Refuse what the API alone runs, or what needs tools or pools that are not here (2.3).

    Raises a 404 or a 422.
    """
    if entry.path in RESERVED_PATHS:
        raise problems.build_not_found_error(
            f"playbook {entry.path!r} is the API's own: nobody else starts it",
            hint="noetl credential test NAME",
        )
    check_tools_and_pools(services, entry, pool=pool)


def check_tools_and_pools(
    services: ApiServices, entry: CatalogEntry, *, pool: str | None = None
) -> None:
    """Refuse what needs tools or pools that are not here; raises a 422 (language, 2.3)."""
    required = codec.convert_value(entry.model.get("executor", {}).get("requires", {}), Requires)
    missing = pools.find_missing_tools(required.tools, enabled=services.tools)
    missing = missing or pools.find_pool_error(
        pools.list_pool_demands(entry.model, pool), services.pools
    )
    if missing is not None:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, code=missing.kind, detail=missing.message)


def build_request(
    services: ApiServices, fact: Fact, execution_id: ExecutionId, *, request_id: str, kind: str
) -> Request:
    """Build a request from facts; raises a 413 when it is larger than a message."""
    batch = FactBatch(
        key=request_id,
        execution_id=execution_id,
        tenant_id=services.tenant_id,
        organization_id=services.organization_id,
        producer=PRODUCER,
        facts=[fact],
        request_id=request_id,
        traceparent=tracing.get_traceparent(),
        actor=services.actor,
    )
    data = codec.encode_json(batch)
    bytes_max = MESSAGE_BYTES_MAX - _MESSAGE_MARGIN_BYTES
    if len(data) > bytes_max:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="payload_too_large",
            detail=f"the inputs take {len(data)} bytes; a request may take {bytes_max}",
            hint="keep bulk data in a table or an object, and hand its name over",
        )
    return Request(
        request_id=request_id,
        execution_id=execution_id,
        tenant_id=services.tenant_id,
        organization_id=services.organization_id,
        kind=kind,
        subject=services.routes.build_subject(
            execution_id, services.tenant_id, services.organization_id
        ),
        data=data,
    )


async def _answer_earlier(
    services: ApiServices, execution_id: ExecutionId, fact: ExecutionRequested, *, is_pinned: bool
) -> views.Accepted:
    """Answer with the execution that the same key began; another request is a mistake."""
    request = await services.messages.requests.find_request(
        execution_lookup.build_request_id(execution_id)
    )
    execution_requested = (
        execution_lookup.find_requested_execution(request) if request is not None else None
    )
    if execution_requested is not None and not _is_same_request(
        execution_requested, fact, is_pinned=is_pinned
    ):
        # Which one is not told to who may not see it.
        is_told = services.sees_path(execution_requested.path)
        named = f"execution {execution_id}" if is_told else "an execution"
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="idempotency_key_reused",
            detail=f"this idempotency key already began {named}, "
            "with another path, version or other inputs",
            hint="use a new key for a new request",
        )
    row = await execution_lookup.get_execution_row(services, execution_id)
    return views.Accepted(
        execution_id=execution_id,
        status=row["status"],
        path=row["path"],
        version=row.get("catalog_version") or 0,
        deduplicated=True,
    )


def _is_same_request(
    earlier: ExecutionRequested, fact: ExecutionRequested, *, is_pinned: bool
) -> bool:
    """Tell whether two requests ask for the same; the latest version may have moved on."""
    return _build_request_identity(earlier) == _build_request_identity(fact) and (
        not is_pinned or earlier.version == fact.version
    )


def _build_request_identity(fact: ExecutionRequested) -> tuple[Any, ...]:
    workload = fact.workload
    if (fact.requested_by or "").startswith(schedules.ASKER):
        # A retry of the same ask comes at another time.
        workload = {name: workload[name] for name in workload if name != workload_keys.SCHEDULE}
    source = fact.rerun.source if fact.rerun is not None else None
    repeated = None if source is None else (source.execution_id, source.step)
    place = fact.pool, fact.priority, fact.files_digest, fact.backfill
    return fact.path, workload, fact.workload_ref, fact.parent_execution_id, repeated, place


def _get_inputs(body: ExecuteBody) -> dict[str, Any]:
    values = {name: getattr(body, name) for name in _INPUT_NAMES if getattr(body, name) is not None}
    if len(values) > 1:
        raise problems.build_bad_request_error(
            f"the inputs are given {len(values)} times: as {' and '.join(values)}",
            hint="give them once, as workload",
        )
    return next(iter(values.values()), {})


def _parse_version(version: int | str | None) -> int | None:
    if version is None or version == "latest":
        return None
    try:
        return int(version)
    except ValueError:
        raise problems.build_bad_request_error(
            f"version {version!r} is neither a number nor 'latest'"
        ) from None


def _get_key(body: ExecuteBody, header: str | None) -> str | None:
    if header is not None and body.idempotency_key not in {None, header}:
        raise problems.build_bad_request_error(
            "idempotency_key and the Idempotency-Key header differ"
        )
    return header or body.idempotency_key


class StartAnswer(Struct, frozen=True, kw_only=True):
    """An answer before it is written."""

    status: HTTPStatus
    content: views.Accepted
    headers: dict[str, str] = {}


async def answer_start(
    services: ApiServices,
    body: ExecuteBody,
    *,
    key: str | None,
    prefer: str | None,
    client: str,
    scope: HTTPScope,
    correlation_id: str | None = None,
) -> StartAnswer:
    """Have a playbook run; `key`, `prefer` and `correlation_id` are headers of the request.

    `client` is the address that it came from, `scope` what the gate looks at. Raises `ApiError`.
    """
    accepted = await execute_playbook(services, body, key, correlation_id=correlation_id)
    within_s = end_wait.parse_wait_s(prefer)
    access = StreamAccess(scope, services, accepted.execution_id)
    over = await end_wait.wait_for_end(
        services, accepted, within_s=within_s, client=client, access=access
    )
    if over is None:
        return StartAnswer(status=HTTPStatus.ACCEPTED, content=accepted)
    applied = {"Preference-Applied": f"wait={within_s}"}
    return StartAnswer(status=HTTPStatus.OK, content=over, headers=applied)
