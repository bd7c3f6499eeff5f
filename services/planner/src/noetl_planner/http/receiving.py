"""How a message is taken: checked, kept, and handed to the command that waits for it.

A message that nobody waits for yet is kept; the reaper hands it over when somebody does.
"""

import re
from http import HTTPStatus
from typing import Any

from noetl_contracts import codec, letters, spelling, subjects
from noetl_contracts.ledger import Letter, OpenWait, Reception
from noetl_contracts.payloads import ResultEnvelope
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.ports import Message
from noetl_planner.http import finding, problems
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_playbook import carried
from noetl_playbook.results import PipelineResult, TaskResult
from noetl_storage import envelopes

PRODUCER = "api"
KEY_CHARACTERS_MAX = 500
_TOKEN = re.compile(r"[0-9a-f]{64}")


class _AnsweredError(ApiError):
    """Another message was kept for the address before."""

    CODE = "already_answered"

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.CONFLICT,
            code=self.CODE,
            detail="another message was kept for this address before",
            hint="the first message counts; only its repetition is accepted",
        )


async def take_callback(services: ApiServices, token: str, body: Any) -> bool:
    """Keep an answer to submitted work; True when it repeats one that was kept."""
    if not _TOKEN.fullmatch(token):
        raise problems.not_found(
            "this is not a token of a callback: it has 64 hexadecimal digits",
            hint="send the answer to the address that the work was submitted with",
        )
    return await _take(services, letters.callback_address(token), body, is_single=True)


async def take_signal(services: ApiServices, correlation_key: str, body: Any) -> bool:
    """Keep a message for a correlation key; True when it repeats one that was kept."""
    if len(correlation_key) > KEY_CHARACTERS_MAX:
        raise problems.refused(f"a correlation key has at most {KEY_CHARACTERS_MAX} characters")
    return await _take(services, letters.signal_address(correlation_key), body, is_single=False)


async def decide(
    services: ApiServices,
    approval_id: str,
    *,
    decision: str,
    by: str | None,
    comment: str | None,
    data: Any,
) -> bool:
    """Keep a decision; True when it repeats the one that was kept."""
    address = letters.approval_address(finding.checked_id(approval_id))
    said = {"decision": decision, "by": by or PRODUCER, "comment": comment, "data": data}
    wait = await _find_wait(services, address)
    known = await services.requests.find_letter(address, **services.place)
    if wait is None and known is None:
        raise problems.not_found(
            f"nobody asks for approval {approval_id}",
            hint="noetl approvals lists what is asked for",
        )
    if wait is not None and decision not in wait.wait.options:
        options = wait.wait.options
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="unknown_decision",
            detail=f"{decision!r} is not one of {', '.join(options)}",
            hint=spelling.hint(decision, options) or f"decide one of {', '.join(options)}",
        )
    body = {**said, "at": services.clock.now().isoformat()}
    # The time is no part of what is compared: the same decision again is the same decision.
    digest = codec.checksum(said)
    try:
        return await _keep(services, address, body, digest=digest, wait=wait, is_single=True)
    except _AnsweredError as answered:
        raise await _decided(services, address, approval_id) from answered


async def _decided(services: ApiServices, address: str, approval_id: str) -> ApiError:
    """Say who has decided an approval before, when and how."""
    letter = await services.requests.find_letter(address, **services.place)
    before = None if letter is None else _read_decision(letter)
    said = "with another decision, comment or data"
    if before is not None:
        said = f"as {before['decision']!r} by {before['by']} at {before['at'][:19]}Z"
    return ApiError(
        HTTPStatus.CONFLICT,
        code=_AnsweredError.CODE,
        detail=f"approval {approval_id} was decided already, {said}",
        hint="the first decision counts; nothing is to be done",
    )


def _read_decision(letter: Letter) -> dict[str, Any] | None:
    """Read a decision that was kept; None where it is a payload of its own."""
    result = codec.decode_as(letter.data, ResultEnvelope)
    if result.reference is not None:
        return None
    kept = carried.read_as(result.context.get("data", {}), PipelineResult)
    found = kept.tasks["message"].raw if "message" in kept.tasks else None
    return found if isinstance(found, dict) and {"decision", "by", "at"} <= found.keys() else None


async def list_approvals(services: ApiServices, *, waits_max: int) -> list[OpenWait]:
    """Return the approvals that are asked for, the oldest first."""
    return await services.projections.list_waits(
        **services.place, mode=letters.APPROVAL, waits_max=waits_max
    )


async def _take(services: ApiServices, address: str, body: Any, *, is_single: bool) -> bool:
    wait = await _find_wait(services, address)
    faults = letters.faults(wait.wait.schema, body) if wait is not None else []
    if faults:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="schema",
            detail="; ".join(faults),
            hint="send what the waiting task's schema asks for",
        )
    return await _keep(
        services, address, body, digest=codec.checksum(body), wait=wait, is_single=is_single
    )


async def _find_wait(services: ApiServices, address: str) -> OpenWait | None:
    found = await services.projections.list_waits(**services.place, address=address, waits_max=1)
    return found[0] if found else None


async def _keep(
    services: ApiServices,
    address: str,
    body: Any,
    *,
    digest: str,
    wait: OpenWait | None,
    is_single: bool,
) -> bool:
    letter = Letter(
        **services.place,
        address=address,
        digest=digest,
        data=codec.encode(await _carried(services, body)),
    )
    reception, letter_id = await services.requests.keep_letter(
        letter,
        open_wait=None if wait is None else letters.wait_name(wait),
        is_single=is_single,
    )
    if reception is Reception.REFUSED:
        raise _AnsweredError
    if wait is not None:
        await _hand_over(services, address, letter_id, wait)
    return reception is Reception.REPEATED


async def _carried(services: ApiServices, body: Any) -> ResultEnvelope:
    """Carry a message as a result: a large one as a payload that is stored first."""
    kept = PipelineResult(tasks={"message": TaskResult(kind="external", raw=body)}, last="message")
    return await envelopes.externalize(
        envelopes.keeping(services.payloads, **services.place),
        codec.encode(kept),
        inline=lambda: carried.inline(kept),
        beside=carried.referenced(kept, {}),
    )


async def _hand_over(services: ApiServices, address: str, letter_id: int, wait: OpenWait) -> None:
    """Tell the command at once; what goes wrong after the keeping only costs time."""
    letter = await services.requests.find_letter(address, **services.place)
    if letter is None or letter.letter_id != letter_id:
        return
    request = letters.handover(letter, wait, shard_count=services.shard_count, producer=PRODUCER)
    name = letters.wait_name(wait)
    if await services.requests.hand_over(letter_id, open_wait=name, request=request):
        message = Message(subject=request.subject, message_id=request.request_id, data=request.data)
        try:
            await services.publisher.publish(message)
        except MessagingUnavailable:
            await services.hints.poke(subjects.poke("outbox"))
