"""Triggers: which messages start which playbook."""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import delete, get, put
from litestar.params import FromPath, JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct, structs

from noetl_contracts import spelling, subjects
from noetl_contracts.requests import triggers
from noetl_contracts.requests.triggers import (
    BODY_BYTES_DEFAULT,
    BODY_BYTES_MAX,
    FILTER_CHARACTERS_MAX,
    IN_FLIGHT_MAX,
    MESSAGE_NAMES,
    Trigger,
)
from noetl_planner.api.catalog import catalog_entries, input_checks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.triggers.trigger_listener import TRIGGERS_MAX
from noetl_playbook.templates.expressions import TemplateError, compile_condition
from noetl_playbook.templates.sandbox import GLOBALS


class TriggerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages start what."""

    subject: Annotated[str, Meta(min_length=1, max_length=512)]
    path: Annotated[str, Meta(min_length=1, max_length=512)]
    version: Annotated[int, Meta(ge=1)] | None = None
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)
    body_bytes_max: Annotated[int, Meta(ge=1, le=BODY_BYTES_MAX)] = BODY_BYTES_DEFAULT
    enabled: bool = True
    filter: Annotated[str, Meta(min_length=1, max_length=FILTER_CHARACTERS_MAX)] | None = None
    max_in_flight: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX)] | None = None


class TriggerView(Struct, frozen=True, kw_only=True):
    """A trigger as people see it; `publish_to` is the subject, or pattern, on the server."""

    name: str
    subject: str
    publish_to: str
    path: str
    version: int | None
    inputs: dict[str, Any]
    body_bytes_max: int
    enabled: bool
    filter: str | None
    max_in_flight: int | None
    suspended: str | None = None


class TriggerList(Struct, frozen=True, kw_only=True):
    """The triggers, by name."""

    triggers: list[TriggerView]


class Removed(Struct, frozen=True, kw_only=True):
    """A trigger that is no more."""

    name: str
    removed: bool = True


@get("/triggers", tags=["triggers"])
async def list_triggers(services: Services) -> TriggerList:
    """List the triggers."""
    return TriggerList(
        triggers=[
            await _view_author(services, trigger)
            for trigger in await _list_all_triggers(services)
            if services.covers_path(trigger.path)
        ]
    )


@put("/triggers/{name:str}", status_code=HTTP_200_OK, tags=["triggers"])
async def keep(services: Services, name: FromPath[str], data: JSONBody[TriggerBody]) -> TriggerView:
    """Keep a trigger under a name, whether or not there was one."""
    trigger = await _check_trigger(services, problems.check_name(name, "a trigger"), data)
    async with services.record_change(
        "trigger.written", trigger.name, path=trigger.path, subject=trigger.subject
    ):
        await _check_taken(services, trigger.name, trigger.subject)
        await services.registry.triggers.put_trigger(trigger)
    return _view_trigger(trigger)


@get("/triggers/{name:str}", tags=["triggers"])
async def show(services: Services, name: FromPath[str]) -> TriggerView:
    """Show a trigger."""
    trigger = await services.registry.triggers.find_trigger(name, **services.tenant_scope)
    if trigger is not None:
        services.check_seen_path(trigger.path)
    if trigger is None or not services.covers_path(trigger.path):
        raise await _build_missing_error(services, name)
    return await _view_author(services, trigger)


@delete("/triggers/{name:str}", status_code=HTTP_200_OK, tags=["triggers"])
async def remove(services: Services, name: FromPath[str]) -> Removed:
    """Remove a trigger: messages of its subject become dead letters from now on."""
    trigger = await services.registry.triggers.find_trigger(name, **services.tenant_scope)
    if trigger is not None:
        services.check_seen_path(trigger.path)
    if trigger is None or not services.covers_path(trigger.path):
        raise await _build_missing_error(services, name)
    async with services.record_change("trigger.removed", name):
        await services.registry.triggers.remove_trigger(name, **services.tenant_scope)
    return Removed(name=name)


async def _check_trigger(services: ApiServices, name: str, body: TriggerBody) -> Trigger:
    fault = triggers.find_subject_fault(body.subject)
    if fault is not None:
        raise problems.build_bad_request_error(
            fault, hint="name what follows noetl.triggers.<tenant>.<org>., such as orders.*"
        )
    entry = await catalog_entries.get_playbook_entry(services, body.path, body.version)
    start_requests.check_requirements(services, entry)
    input_checks.check_templates(body.inputs, MESSAGE_NAMES, of="message")
    input_checks.check_inputs(entry, body.inputs)
    if body.inputs:
        input_checks.check_required_inputs(entry, body.inputs)
    _check_filter(body.filter)
    return Trigger(
        **services.tenant_scope,
        name=name,
        subject=body.subject,
        path=entry.path,
        version=body.version,
        inputs=body.inputs,
        body_bytes_max=body.body_bytes_max,
        is_enabled=body.enabled,
        filter=body.filter,
        max_in_flight=body.max_in_flight,
        actor=services.actor,
    )


async def _check_taken(services: ApiServices, name: str, subject: str) -> None:
    """Refuse a name or messages that another trigger has; raises a 409."""
    others = [trigger for trigger in await _list_all_triggers(services) if trigger.name != name]
    if len(others) >= TRIGGERS_MAX:
        text = f"an organization has at most {TRIGGERS_MAX} triggers"
        raise problems.build_bad_request_error(text)
    known_names = await services.registry.triggers.find_trigger(name, **services.tenant_scope)
    services.check_replaced(None if known_names is None else known_names.path, f"trigger {name!r}")
    holder = next(
        (other for other in others if triggers.do_patterns_overlap(other.subject, subject)), None
    )
    if holder is not None and not services.covers_path(holder.path):
        raise problems.build_name_taken_error(f"subject {subject!r}")
    if holder is not None:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="subject_taken",
            detail=f"trigger {holder.name!r} takes {holder.subject!r}, "
            f"and {subject!r} would be both's: a message starts one playbook",
            hint="let that playbook call the other one, or choose subjects apart",
        )


def _check_filter(text: str | None) -> None:
    """Refuse a filter that does not compile, or reads what a message does not have."""
    if text is None:
        return
    try:
        unknown = compile_condition(text).names - MESSAGE_NAMES - GLOBALS.keys()
    except TemplateError as error:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY, code="template_refused", detail=f"filter: {error}"
        ) from error
    if unknown:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="template_refused",
            detail=f"filter: {min(unknown)!r} is nothing of a message",
            hint=f"a filter reads {', '.join(sorted(MESSAGE_NAMES))}",
        )


async def _list_all_triggers(services: ApiServices) -> list[Trigger]:
    return await services.registry.triggers.list_triggers(
        triggers_max=TRIGGERS_MAX, **services.tenant_scope
    )


async def _build_missing_error(services: ApiServices, name: str) -> ApiError:
    names = [
        trigger.name
        for trigger in await _list_all_triggers(services)
        if services.covers_path(trigger.path)
    ]
    return problems.build_not_found_error(
        f"there is no trigger {name[:128]!r}",
        hint=spelling.suggest_word(name[:128], names) or "noetl trigger ls",
    )


async def _view_author(services: ApiServices, trigger: Trigger) -> TriggerView:
    """Show also why it starts nothing while its author may not."""
    fault = await services.find_author_fault(trigger.actor, trigger.path)
    return structs.replace(_view_trigger(trigger), suspended=fault)


def _view_trigger(trigger: Trigger) -> TriggerView:
    place = f"{subjects.TRIGGERS}.{trigger.tenant_id}.{trigger.organization_id}"
    return TriggerView(
        name=trigger.name,
        subject=trigger.subject,
        publish_to=f"{place}.{trigger.subject}",
        path=trigger.path,
        version=trigger.version,
        inputs=trigger.inputs,
        body_bytes_max=trigger.body_bytes_max,
        enabled=trigger.is_enabled,
        filter=trigger.filter,
        max_in_flight=trigger.max_in_flight,
    )


ROUTES = [list_triggers, keep, show, remove]
