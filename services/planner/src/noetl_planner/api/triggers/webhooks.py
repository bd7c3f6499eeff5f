"""Webhooks: kept and shown, and called from outside."""

from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post, put
from litestar.params import FromPath, HeaderParameter, JSONBody
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED
from msgspec import Meta, Struct, structs

from noetl_contracts.requests.webhooks import (
    BODY_BYTES_DEFAULT,
    BODY_BYTES_MAX,
    SignatureScope,
    Webhook,
)
from noetl_planner.api.catalog import catalog_entries, input_checks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import views
from noetl_planner.api.triggers import webhook_delivery

WEBHOOKS_MAX = 1000

IdempotencyKey = Annotated[
    str | None, HeaderParameter(name="Idempotency-Key", min_length=1, max_length=100)
]


class WebhookBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call starts; it names a credential, or says `unsigned`."""

    path: Annotated[str, Meta(min_length=1, max_length=512)]
    version: Annotated[int, Meta(ge=1)] | None = None
    credential: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    unsigned: bool = False
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)
    body_bytes_max: Annotated[int, Meta(ge=1, le=BODY_BYTES_MAX)] = BODY_BYTES_DEFAULT
    enabled: bool = True
    signature: SignatureScope = SignatureScope.CALL


class WebhookView(Struct, frozen=True, kw_only=True):
    """A webhook as people see it; the secret is nowhere in it."""

    name: str
    path: str
    version: int | None
    credential: str | None
    unsigned: bool
    inputs: dict[str, Any]
    body_bytes_max: int
    enabled: bool
    signature: SignatureScope
    url: str
    suspended: str | None = None


class WebhookList(Struct, frozen=True, kw_only=True):
    """The webhooks, by name."""

    webhooks: list[WebhookView]


class Removed(Struct, frozen=True, kw_only=True):
    """A webhook that is no more."""

    name: str
    removed: bool = True


@get("/webhooks", tags=["webhooks"])
async def list_webhooks(services: Services) -> WebhookList:
    """List the webhooks."""
    webhooks = await services.registry.webhooks.list_webhooks(
        webhooks_max=WEBHOOKS_MAX, **services.tenant_scope
    )
    return WebhookList(
        webhooks=[
            await _view_author(services, webhook)
            for webhook in webhooks
            if services.covers_path(webhook.path)
        ]
    )


@put("/webhooks/{name:str}", status_code=HTTP_200_OK, tags=["webhooks"])
async def keep(services: Services, name: FromPath[str], data: JSONBody[WebhookBody]) -> WebhookView:
    """Keep a webhook under a name, whether or not there was one."""
    if (data.credential is None) != data.unsigned:
        raise problems.build_bad_request_error(
            "a webhook names a credential, or says that calls are unsigned, and not both",
            hint="--credential NAME, whose field `secret` signs calls, or --unsigned for "
            "callers who may run the playbook",
        )
    entry = await catalog_entries.get_playbook_entry(services, data.path, data.version)
    start_requests.check_requirements(services, entry)
    problems.check_name(name, "a webhook")
    if data.credential is not None:
        await webhook_delivery.unseal_webhook_secret(
            services, data.credential, entry.path, webhook=name
        )
    input_checks.check_templates(data.inputs, webhook_delivery.CALL_NAMES, of="call")
    input_checks.check_inputs(entry, data.inputs)
    if data.inputs:
        input_checks.check_required_inputs(entry, data.inputs)
    webhook = Webhook(
        **services.tenant_scope,
        name=name,
        path=entry.path,
        version=data.version,
        credential=data.credential,
        inputs=data.inputs,
        body_bytes_max=data.body_bytes_max,
        is_enabled=data.enabled,
        actor=services.actor,
        signature=data.signature,
    )
    async with services.record_change(
        "webhook.written", webhook.name, path=webhook.path, credential=webhook.credential
    ):
        known_names = await services.registry.webhooks.find_webhook(name, **services.tenant_scope)
        services.check_replaced(
            None if known_names is None else known_names.path, f"webhook {name!r}"
        )
        await services.registry.webhooks.put_webhook(webhook)
    return _view_webhook(webhook)


@get("/webhooks/{name:str}", tags=["webhooks"])
async def show(services: Services, name: FromPath[str]) -> WebhookView:
    """Show a webhook."""
    return await _view_author(services, await _get_webhook(services, name))


@delete("/webhooks/{name:str}", status_code=HTTP_200_OK, tags=["webhooks"])
async def remove(services: Services, name: FromPath[str]) -> Removed:
    """Remove a webhook: calls find nothing from now on."""
    webhook = await _get_webhook(services, name)
    async with services.record_change("webhook.removed", webhook.name):
        await services.registry.webhooks.remove_webhook(webhook.name, **services.tenant_scope)
    return Removed(name=name)


@post("/webhooks/{name:str}", status_code=HTTP_202_ACCEPTED, tags=["webhooks"])
async def call(
    services: Services,
    request: Request[Any, Any, Any],
    name: FromPath[str],
    idempotency_key: IdempotencyKey = None,
) -> views.Accepted:
    """Start what a webhook starts; the answer is durable and comes before the first step."""
    return await webhook_delivery.deliver_call(
        services,
        name,
        body=await request.body(),
        headers={key.lower(): value for key, value in request.headers.items()},
        query={key: str(value) for key, value in request.query_params.items()},
        raw_query=request.scope["query_string"].decode("latin-1"),
        key=idempotency_key,
    )


async def _get_webhook(services: ApiServices, name: str) -> Webhook:
    webhook = await services.registry.webhooks.find_webhook(name, **services.tenant_scope)
    if webhook is not None:
        services.check_seen_path(webhook.path)
    if webhook is None or not services.covers_path(webhook.path):
        raise problems.build_not_found_error(
            f"there is no webhook {name[:128]!r}", hint="noetl webhook ls"
        )
    return webhook


async def _view_author(services: ApiServices, webhook: Webhook) -> WebhookView:
    """Show also why it starts nothing while its author may not."""
    fault = await services.find_author_fault(webhook.actor, webhook.path)
    return structs.replace(_view_webhook(webhook), suspended=fault)


def _view_webhook(webhook: Webhook) -> WebhookView:
    return WebhookView(
        name=webhook.name,
        path=webhook.path,
        version=webhook.version,
        credential=webhook.credential,
        unsigned=webhook.credential is None,
        inputs=webhook.inputs,
        body_bytes_max=webhook.body_bytes_max,
        enabled=webhook.is_enabled,
        signature=webhook.signature,
        url=f"/api/webhooks/{webhook.name}",
    )


ROUTES = [list_webhooks, keep, show, remove, call]
