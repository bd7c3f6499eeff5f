"""Takes messages from outside: checks, stores, and delivers them to waiting commands.

A message that nobody waits for yet is kept; the reaper hands it over when somebody does.
"""

import re
from http import HTTPStatus
from typing import Any

from msgspec import structs

from noetl_contracts import codec, spelling, subjects
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.ledger.records import InboxMessage, InboxOutcome, OpenWait
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import inbox
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Message
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import IdentityServices
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.domain.decision.idempotency_keys import STARTED
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_storage.arrow import result_values

PRODUCER = "api"
KEY_CHARACTERS_MAX = 500
_APPROVALS_HINT = "noetl approvals lists what is asked for"
_TOKEN = re.compile(r"[0-9a-f]{64}")


class _AlreadyAnsweredError(ApiError):
    """Another message was kept for the address before."""

    CODE = "already_answered"

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.CONFLICT,
            code=self.CODE,
            detail="another message was kept for this address before",
            hint="the first message counts; only its repetition is accepted",
        )


async def keep_callback(services: ApiServices, token: str, body: Any) -> bool:
    """Keep an answer to submitted work; True when it repeats one that was kept."""
    if not _TOKEN.fullmatch(token):
        raise problems.build_not_found_error(
            "this is not a token of a callback: it has 64 hexadecimal digits",
            hint="send the answer to the address that the work was submitted with",
        )
    return await _keep_checked_message(
        services, inbox.build_callback_address(token), body, is_single=True
    )


async def keep_signal(services: ApiServices, correlation_key: str, body: Any) -> bool:
    """Keep a message for a correlation key; True when it repeats one that was kept."""
    if len(correlation_key) > KEY_CHARACTERS_MAX:
        raise problems.build_bad_request_error(
            f"a correlation key has at most {KEY_CHARACTERS_MAX} characters"
        )
    return await _keep_checked_message(
        services, inbox.build_signal_address(correlation_key), body, is_single=False
    )


async def keep_decision(
    services: ApiServices,
    approval_id: str,
    *,
    decision: str,
    by: str | None,
    comment: str | None,
    data: Any,
) -> bool:
    """Keep a decision; True when it repeats the one that was kept."""
    address = inbox.build_approval_address(_check_approval_id(approval_id))
    decision_body = {
        "decision": decision,
        "by": services.name_asker(by or PRODUCER),
        "comment": comment,
        "data": data,
    }
    wait = await _find_wait(services, address)
    inbox_message = await services.messages.requests.find_message(address, **services.tenant_scope)
    if (wait is None and inbox_message is None) or not await _is_within_reach(services, wait):
        raise problems.build_not_found_error(
            f"nobody asks for approval {approval_id}",
            hint=_APPROVALS_HINT,
        )
    if wait is not None and decision not in wait.wait.options:
        options = wait.wait.options
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="unknown_decision",
            detail=f"{decision!r} is not one of {', '.join(options)}",
            hint=spelling.suggest_word(decision, options) or f"decide one of {', '.join(options)}",
        )
    if wait is not None and wait.wait.four_eyes:
        await _check_four_eyes(services, wait, approval_id)
    body = {**decision_body, "at": services.clock.now().isoformat()}
    # The time is no part of what is compared: the same decision again is the same decision.
    digest = codec.compute_checksum(decision_body)
    try:
        return await _keep_letter(services, address, body, digest=digest, wait=wait, is_single=True)
    except _AlreadyAnsweredError as answered:
        raise await _build_decided_error(services, address, approval_id) from answered


async def _is_within_reach(services: ApiServices, wait: OpenWait | None) -> bool:
    """Tell whether who asks may decide for this playbook; of a wait that is over nobody knows."""
    if not services.path_prefixes:
        return True
    if wait is None:
        return False
    try:
        await execution_lookup.check_reach(services, wait.execution_id)
    except ApiError:
        return False
    return True


async def _check_four_eyes(services: ApiServices, wait: OpenWait, approval_id: str) -> None:
    """Refuse the decision of who started the execution, or of nobody; raises a 403."""
    start_event = await services.history.ledger.find_by_key(wait.execution_id, STARTED)
    starter = actors.read_actor(start_event.meta) if start_event is not None else None
    approver = services.actor
    is_known = starter is not None and approver.kind is not ActorKind.ANONYMOUS
    if is_known and not await is_one_person(
        services.identity,
        actors.get_first_cause(approver),
        actors.get_first_cause(starter or approver),
    ):
        return
    why = "you started the execution" if is_known else "it is not known who started it, or who asks"
    raise ApiError(
        HTTPStatus.FORBIDDEN,
        code="four_eyes",
        detail=f"approval {approval_id} needs a second person: {why}",
        hint="let another person with the role operator decide: noetl approve",
    )


async def is_one_person(identity: IdentityServices, actor: Actor, other: Actor) -> bool:
    """Tell whether two actors are the same, or one person made the keys that they use."""
    return actors.is_one_person(
        await _find_maker(identity, actor), await _find_maker(identity, other)
    )


async def _find_maker(identity: IdentityServices, actor: Actor) -> Actor:
    """Return an actor with who made its key, which events of earlier releases do not name."""
    if actor.maker is not None or not actor.key_prefix:
        return actor
    key = await identity.identities.find_key(actor.key_prefix)
    return actor if key is None else structs.replace(actor, maker=key.known_maker)


def _check_approval_id(text: str) -> str:
    """Admit what can name an approval; raises a 404 for anything else."""
    try:
        return execution_lookup.check_execution_id(text)
    except ApiError as error:
        raise problems.build_not_found_error(
            f"{text[:80]!r} is not the id of an approval: it is a number of up to 19 digits",
            hint=_APPROVALS_HINT,
        ) from error


async def _build_decided_error(services: ApiServices, address: str, approval_id: str) -> ApiError:
    """Say who has decided an approval before, when and how."""
    letter = await services.messages.requests.find_message(address, **services.tenant_scope)
    before = None if letter is None else _read_decision(letter)
    message = "with another decision, comment or data"
    if before is not None:
        message = f"as {before['decision']!r} by {before['by']} at {before['at'][:19]}Z"
    return ApiError(
        HTTPStatus.CONFLICT,
        code=_AlreadyAnsweredError.CODE,
        detail=f"approval {approval_id} was decided already, {message}",
        hint="the first decision counts; nothing is to be done",
    )


def _read_decision(inbox_message: InboxMessage) -> dict[str, Any] | None:
    """Read a decision that was kept; None where it is a payload of its own."""
    result = codec.decode_as(inbox_message.data, ResultEnvelope)
    if result.reference is not None:
        return None
    pipeline_result = result_envelope.convert_stored(result.context.get("data", {}), PipelineResult)
    raw = pipeline_result.tasks["message"].raw if "message" in pipeline_result.tasks else None
    return raw if isinstance(raw, dict) and {"decision", "by", "at"} <= raw.keys() else None


async def list_open_approvals(services: ApiServices, *, waits_max: int) -> list[OpenWait]:
    """Return the approvals that are asked for, the oldest first."""
    return await services.history.projections.list_waits(
        **services.tenant_scope, mode=inbox.APPROVAL, waits_max=waits_max
    )


async def _keep_checked_message(
    services: ApiServices, address: str, body: Any, *, is_single: bool
) -> bool:
    wait = await _find_wait(services, address)
    faults = inbox.list_schema_faults(wait.wait.schema, body) if wait is not None else []
    if faults:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="schema",
            detail="; ".join(faults),
            hint="send what the waiting task's schema asks for",
        )
    return await _keep_letter(
        services, address, body, digest=codec.compute_checksum(body), wait=wait, is_single=is_single
    )


async def _find_wait(services: ApiServices, address: str) -> OpenWait | None:
    open_waits = await services.history.projections.list_waits(
        **services.tenant_scope, address=address, waits_max=1
    )
    return open_waits[0] if open_waits else None


async def _keep_letter(
    services: ApiServices,
    address: str,
    body: Any,
    *,
    digest: str,
    wait: OpenWait | None,
    is_single: bool,
) -> bool:
    letter = InboxMessage(
        **services.tenant_scope,
        address=address,
        digest=digest,
        data=codec.encode_json(await _store_message(services, body)),
        actor=services.actor,
    )
    reception, letter_id = await services.messages.requests.keep_message(
        letter,
        open_wait=None if wait is None else inbox.build_wait_name(wait),
        is_single=is_single,
    )
    if reception is InboxOutcome.REFUSED:
        raise _AlreadyAnsweredError
    if wait is not None:
        await _hand_over_letter(services, address, letter_id, wait)
    return reception is InboxOutcome.REPEATED


async def _store_message(services: ApiServices, body: Any) -> ResultEnvelope:
    """Carry a message as a result: a large one as a payload that is stored first."""
    pipeline_result = PipelineResult(
        tasks={"message": TaskResult(kind="external", raw=body)}, last="message"
    )
    return await result_values.build_result_envelope(
        result_values.build_keep(services.payloads, **services.tenant_scope),
        codec.encode_json(pipeline_result),
        inline=lambda: result_envelope.build_inline_context(pipeline_result),
        beside=result_envelope.build_reference_context(pipeline_result, {}),
    )


async def _hand_over_letter(
    services: ApiServices, address: str, letter_id: int, wait: OpenWait
) -> None:
    """Tell the command at once; what goes wrong after the keeping only costs time."""
    letter = await services.messages.requests.find_message(address, **services.tenant_scope)
    if letter is None or letter.letter_id != letter_id:
        return
    request = inbox.build_delivery_request(letter, wait, routes=services.routes, producer=PRODUCER)
    name = inbox.build_wait_name(wait)
    if await services.messages.requests.deliver_message(letter_id, open_wait=name, request=request):
        message = Message(subject=request.subject, message_id=request.request_id, data=request.data)
        try:
            await services.messages.publisher.publish_message(message)
        except MessagingUnavailable:
            await services.messages.hints.notify(subjects.build_hint_subject("outbox"))
