"""Starts executions from webhook calls: checks the signature, renders inputs, requests once."""

import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from msgspec import structs

from noetl_chassis.seals.credential_seal import SealBroken
from noetl_contracts import codec
from noetl_contracts.credentials import DELETED, is_path_allowed, split_allowed_paths
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.requests import webhooks
from noetl_contracts.requests.webhooks import Webhook, WebhookCall
from noetl_planner.api.executions import start_requests
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import PlaybookServices
from noetl_planner.api.http.services import ApiServices, RequestScope, build_forbidden_error
from noetl_planner.api.lookup import views
from noetl_planner.identity.permissions import Permission
from noetl_playbook.templates.expressions import TemplateError
from noetl_playbook.views.payload_handle import PayloadNeeded

log = structlog.get_logger(__name__)
# What only the door is to know.
# What the inputs of a webhook read.
CALL_NAMES = frozenset({"body", "headers", "query"})
_HIDDEN_HEADERS = frozenset(
    {"authorization", "cookie", "proxy-authorization", "x-api-key", webhooks.SIGNATURE_HEADER}
)


async def deliver_call(
    services: ApiServices,
    name: str,
    *,
    body: bytes,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    raw_query: str,
    key: str | None,
) -> views.Accepted:
    """Start what a webhook starts; the same signed call again answers with the first execution."""
    webhook = await _get_webhook(services, name)
    if len(body) > webhook.body_bytes_max:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="payload_too_large",
            detail=f"the body takes {len(body)} bytes; this webhook takes {webhook.body_bytes_max}",
        )
    if webhook.credential is not None:
        sent = WebhookCall(
            name=webhook.name,
            query=raw_query,
            timestamp=headers.get(webhooks.TIMESTAMP_HEADER, ""),
            body=body,
        )
        signature = await _check_signature(
            services, webhook, sent, headers.get(webhooks.SIGNATURE_HEADER)
        )
        # Not the sender's key, which the signature does not cover: it could be changed. Nor the
        # webhook's name: an older signature fits every webhook of the credential.
        key = f"webhook-call/{webhook.credential}/{signature}"
    elif services.has_permission(Permission.RUN, webhook.path):
        key = None if key is None else f"webhook/{webhook.name}/{key}"
    else:
        _check_caller(services, webhook)
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            code="not_signed_in",
            detail=f"calls of webhook {webhook.name!r} are not signed: it starts nothing for "
            "who may not run its playbook",
            hint="send Authorization: Bearer TOKEN, or give the webhook a credential",
        )
    services = structs.replace(services, acting=_build_actor(services, webhook))
    await services.check_author(webhook.actor, webhook.path, f"webhook {webhook.name!r}")
    inputs = await render_call_workload(
        services.playbooks, webhook, body=_decode_call_body(body), headers=headers, query=query
    )
    return await start_requests.start_playbook(
        services,
        webhook.path,
        webhook.version,
        inputs,
        asked_by=f"{webhooks.ASKER}{webhook.name}",
        key=key,
        has_free_names=not webhook.inputs,
    )


def _check_caller(scope: RequestScope, webhook: Webhook) -> None:
    """Refuse a known caller who may not run the playbook: a 404 where it does not see it."""
    if scope.access.principal.kind is ActorKind.ANONYMOUS:
        return
    if not scope.has_permission(Permission.SEE, webhook.path):
        raise _build_missing_error(webhook.name)
    raise build_forbidden_error(scope.access, Permission.RUN, path=webhook.path)


def _build_actor(scope: RequestScope, webhook: Webhook) -> Actor:
    """Return a webhook as the actor, for who calls it where that is proved, else for who put it."""
    caller = scope.access.principal.build_actor()
    cause = webhook.actor if caller.kind is ActorKind.ANONYMOUS else caller
    return actors.build_caused_actor(
        ActorKind.WEBHOOK, Via.WEBHOOK, webhook.name, webhook.name, cause
    )


async def render_call_workload(
    playbooks: PlaybookServices,
    webhook: Webhook,
    *,
    body: Any,
    headers: Mapping[str, str],
    query: Mapping[str, str],
) -> dict[str, Any]:
    """Make the workload of a call; raises a 422 when a template does not fit it."""
    if not webhook.inputs:
        return body if isinstance(body, dict) else {"body": body}
    plain_headers = {name: value for name, value in headers.items() if name not in _HIDDEN_HEADERS}
    names = {"body": body, "headers": plain_headers, "query": dict(query)}
    try:
        rendered = await playbooks.render_processes.render_inputs(webhook.inputs, names)
    except (TemplateError, PayloadNeeded) as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="inputs_do_not_fit",
            detail=f"the webhook's inputs do not fit this call: {error}",
            hint="send what they name, or give them a default in the webhook",
        ) from error
    return rendered if isinstance(rendered, dict) else {"body": rendered}


async def _check_signature(
    services: ApiServices, webhook: Webhook, sent: WebhookCall, signature: str | None
) -> str:
    """Return the signature of a call; raises a 401 for one that does not fit it."""
    secret = await unseal_webhook_secret(
        services, webhook.credential or "", webhook.path, webhook=webhook.name
    )
    fault = webhooks.find_call_fault(
        secret=secret,
        call=sent,
        signature=signature,
        scope=webhook.signature,
        now_s=services.clock.now().timestamp(),
    )
    if fault is not None or signature is None:
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            code="signature_refused",
            detail=fault or "the signature is missing",
            hint="sign 'POST', name, query and timestamp, each followed by a line feed, and the "
            f"body with HMAC-SHA256, and send it as {webhooks.SIGNATURE_HEADER}: v2=<hex>",
        )
    if webhooks.covers_body_alone(signature):
        log.warning("webhook signature covers the body alone", webhook=webhook.name)
    return signature


async def unseal_webhook_secret(
    services: ApiServices, name: str, path: str, *, webhook: str
) -> str:
    """Return the secret that signs calls of a webhook of a playbook; raises a 409."""
    sealed = await services.registry.credentials.find_credential(name, **services.tenant_scope)
    fields: dict[str, Any] = {}
    if sealed is not None and sealed.kind != DELETED:
        with contextlib.suppress(SealBroken):
            opened = services.registry.sealer.open_credential(sealed, **services.tenant_scope)
            opened, allowed = split_allowed_paths(opened)
            fields = opened if is_path_allowed(path, allowed) else {}
    bound = fields.get(webhooks.BOUND_FIELD)
    if bound is not None and bound != webhook:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="credential_bound",
            detail=f"credential {name!r} is bound to another webhook than {webhook!r}",
            hint=f"give {webhook!r} a credential of its own, or take the field "
            f"'{webhooks.BOUND_FIELD}' out of this one",
        )
    secret = fields.get(webhooks.SECRET_FIELD)
    if not isinstance(secret, str) or not secret:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="secret_missing",
            detail=f"there is no credential {name[:128]!r}"
            if sealed is None or sealed.kind == DELETED
            else f"credential {name!r} holds no '{webhooks.SECRET_FIELD}' that can be opened "
            f"for {path}",
            hint=f"noetl credential put {name} --type generic --data {webhooks.SECRET_FIELD}=...",
        )
    return secret


async def _get_webhook(services: ApiServices, name: str) -> Webhook:
    webhook = await services.registry.webhooks.find_webhook(name, **services.tenant_scope)
    if webhook is None or not webhook.is_enabled:
        # A caller without the secret must not learn that a disabled webhook exists.
        raise _build_missing_error(name)
    return webhook


def _build_missing_error(name: str) -> ApiError:
    return problems.build_not_found_error(f"there is no webhook {name[:128]!r}")


def _decode_call_body(body: bytes) -> Any:
    if not body:
        return {}
    try:
        return codec.decode_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise problems.build_bad_request_error(f"the body is not JSON: {error}") from error
