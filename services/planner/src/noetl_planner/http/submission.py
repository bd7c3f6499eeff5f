"""Durable asks: to run a playbook, to cancel a run."""

from http import HTTPStatus
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from noetl_contracts import codec, subjects
from noetl_contracts.facts import CancelRequested, ExecutionRequested, Fact, FactBatch
from noetl_contracts.ids import ExecutionId, shard_of
from noetl_contracts.ledger import CatalogEntry, Request
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.ports import MESSAGE_BYTES_MAX, Message
from noetl_planner.http import finding, problems, views
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_playbook import spelling

PRODUCER = "api"
SUGGESTIONS_MAX = 1000
# What the stream adds to a message: subject, headers, deduplication id.
_MESSAGE_MARGIN_BYTES = 4096
_INPUT_NAMES = ("workload", "payload", "input", "args")

Key = Annotated[str, Meta(min_length=1, max_length=200)]


class ExecuteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run: a registered path, a version (default: the latest), and its inputs."""

    path: Annotated[str, Meta(min_length=1, max_length=512)]
    version: int | str | None = None
    workload: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    input: dict[str, Any] | None = None
    args: dict[str, Any] | None = None
    idempotency_key: Key | None = None
    parent_execution_id: str | None = None


async def execute(services: ApiServices, body: ExecuteBody, key: str | None) -> views.Accepted:
    """Keep a request to run a playbook; the answer is durable."""
    entry = await find_playbook(services, body.path, _version(body.version))
    parent = body.parent_execution_id
    fact = ExecutionRequested(
        path=entry.path,
        version=entry.version,
        workload=_inputs(body),
        parent_execution_id=None if parent is None else finding.checked_id(parent),
        requested_by=PRODUCER,
    )
    execution_id = ExecutionId(services.mint())
    request = _request(
        services, fact, execution_id, request_id=finding.request_id(execution_id), kind="execute"
    )
    request = structs.replace(request, idempotency_key=_key(body, key))
    accepted = await _submit(services, request)
    if accepted != execution_id:
        return await _earlier(services, accepted, fact)
    return views.Accepted(
        execution_id=accepted, status="PENDING", path=entry.path, version=entry.version
    )


async def cancel(
    services: ApiServices, text: str, reason: str | None, *, cascade: bool = True
) -> views.CancelAnswer:
    """Keep a wish to stop an execution; a terminal one answers with its status."""
    row = await finding.get_row(services, text)
    execution_id = ExecutionId(row["execution_id"])
    is_over = views.is_terminal(row)
    if not is_over:
        wish = CancelRequested(reason=reason, requested_by=PRODUCER, cascade=cascade)
        # A repeated wish is its own request: the first may have come before there was a history.
        name = f"cancel-{execution_id}-{services.mint()}"
        await _submit(
            services, _request(services, wish, execution_id, request_id=name, kind="cancel")
        )
    return views.CancelAnswer(execution_id=execution_id, status=row["status"], accepted=not is_over)


async def _submit(services: ApiServices, request: Request) -> ExecutionId:
    """Keep a request, then publish it at once: the outbox sends the same message again later.

    Whatever happens to this publication, the stream takes the message once.
    """
    accepted = await services.requests.submit(request)
    message = Message(subject=request.subject, message_id=request.request_id, data=request.data)
    if accepted == request.execution_id:
        try:
            await services.publisher.publish(message)
        except MessagingUnavailable:
            await services.hints.poke(subjects.poke("outbox"))
    return accepted


async def find_playbook(services: ApiServices, path: str, version: int | None) -> CatalogEntry:
    """Return a registered version; raises a 404 that names what was probably meant."""
    wanted = path.strip("/")
    entry = await services.catalog.find(wanted, version=version, **services.place)
    if entry is not None:
        return entry
    latest = await services.catalog.find(wanted, **services.place) if version is not None else None
    if latest is not None:
        raise problems.not_found(
            f"playbook {wanted!r} has no version {version}",
            hint=f"its versions are 1 to {latest.version}",
        )
    known = await services.catalog.list_paths(entries_max=SUGGESTIONS_MAX, **services.place)
    raise problems.not_found(
        f"no playbook is registered as {wanted!r}",
        hint=spelling.hint(wanted, [one.path for one in known])
        or "register it first: noetl register FILE",
    )


def _request(
    services: ApiServices, fact: Fact, execution_id: ExecutionId, *, request_id: str, kind: str
) -> Request:
    batch = FactBatch(
        key=request_id,
        execution_id=execution_id,
        tenant_id=services.tenant_id,
        organization_id=services.organization_id,
        producer=PRODUCER,
        facts=[fact],
        request_id=request_id,
    )
    data = codec.encode(batch)
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
        subject=subjects.ingest(
            shard_of(execution_id, services.shard_count),
            services.tenant_id,
            services.organization_id,
        ),
        data=data,
    )


async def _earlier(
    services: ApiServices, execution_id: ExecutionId, fact: ExecutionRequested
) -> views.Accepted:
    """Answer with the execution that the same key began; other inputs are a mistake."""
    kept = await services.requests.find(finding.request_id(execution_id))
    asked = finding.asked_for(kept) if kept is not None else None
    if asked is not None and (asked.path, asked.workload) != (fact.path, fact.workload):
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="idempotency_key_reused",
            detail=f"this idempotency key already began execution {execution_id}, "
            "with another path or other inputs",
            hint="use a new key for a new request",
        )
    row = await finding.get_row(services, execution_id)
    return views.Accepted(
        execution_id=execution_id,
        status=row["status"],
        path=row["path"],
        version=row.get("catalog_version") or 0,
        deduplicated=True,
    )


def _inputs(body: ExecuteBody) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in _INPUT_NAMES if getattr(body, name) is not None}
    if len(given) > 1:
        raise problems.refused(
            f"the inputs are given {len(given)} times: as {' and '.join(given)}",
            hint="give them once, as workload",
        )
    return next(iter(given.values()), {})


def _version(given: int | str | None) -> int | None:
    if given is None or given == "latest":
        return None
    try:
        return int(given)
    except ValueError:
        raise problems.refused(f"version {given!r} is neither a number nor 'latest'") from None


def _key(body: ExecuteBody, header: str | None) -> str | None:
    if header is not None and body.idempotency_key not in {None, header}:
        raise problems.refused("idempotency_key and the Idempotency-Key header differ")
    return header or body.idempotency_key
