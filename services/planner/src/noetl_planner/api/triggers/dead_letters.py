"""Dead letters: look at messages that were given up, send them again, or drop them."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.requests.dead_letters import (
    DeadLetterAct,
    DeadLetterAction,
    decode_for_display,
    find_owner,
)
from noetl_messaging.streams.ports import DeadLetter
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import NUMBER_MAX, ApiError
from noetl_planner.api.http.services import ApiServices, RequestScope, Services

LISTED_MAX = 200
# How many letters of everyone one answer looks at, and how many are held at once.
LOOKED_AT_MAX = 1000
HELD_MAX = 16
Words = Annotated[str, Meta(min_length=1, max_length=2000, pattern=r"^[^\x00]*\S[^\x00]*$")]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*\S[^\x00]*$")]
Limit = Annotated[int, QueryParameter(ge=1, le=LISTED_MAX)]
After = Annotated[int, QueryParameter(ge=0, le=NUMBER_MAX)]
Before = Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)]


class RequeueBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who sends a letter again."""

    who: Name


class DropBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who drops a letter, and why."""

    who: Name
    reason: Words


class LetterView(Struct, frozen=True, kw_only=True):
    """A message that was given up after `delivered` deliveries and `requeued` returns."""

    sequence: int
    stream: str
    consumer: str
    subject: str
    delivered: int
    requeued: int
    reason: str
    bytes: int
    buried_at: datetime | None


class LetterDetail(LetterView, frozen=True, kw_only=True):
    """A letter with its message: JSON, else text whose odd bytes are escaped."""

    message: Any


class LetterPage(Struct, frozen=True, kw_only=True):
    """Letters, the oldest first; with `has_more` ask again with `next_after`."""

    letters: list[LetterView]
    next_after: int
    has_more: bool


class ActPage(Struct, frozen=True, kw_only=True):
    """Who did what about letters, the latest first; ask again with `next_before` for more."""

    acts: list[DeadLetterAct]
    next_before: int | None


class Acted(Struct, frozen=True, kw_only=True):
    """What was done about a letter; `is_repeated` when it had been done before."""

    act: DeadLetterAct
    is_repeated: bool = False


@get("/dead-letters", tags=["dead letters"])
async def list_letters(services: Services, after: After = 0, limit: Limit = 50) -> LetterPage:
    """List messages that were given up, the oldest first."""
    letter_views: list[LetterView] = []
    for _ in range(0, LOOKED_AT_MAX, HELD_MAX):
        dead_letters = await services.messages.dead_letters.list_letters(
            letters_max=HELD_MAX, after=after
        )
        for dead_letter in dead_letters:
            if len(letter_views) == limit:
                return LetterPage(letters=letter_views, next_after=after, has_more=True)
            after = dead_letter.sequence
            if _is_visible_letter(services, dead_letter):
                letter_views.append(_view_letter(dead_letter))
        if len(dead_letters) < HELD_MAX:
            return LetterPage(letters=letter_views, next_after=after, has_more=False)
    return LetterPage(letters=letter_views, next_after=after, has_more=True)


@get("/dead-letters/log", tags=["dead letters"])
async def list_acts(services: Services, before: Before = None, limit: Limit = 50) -> ActPage:
    """List who sent letters again, and who dropped them and why."""
    acts = await services.messages.dead_letter_log.list_acts(
        **services.tenant_scope, before=before, acts_max=limit
    )
    return ActPage(acts=acts, next_before=acts[-1].act_id if len(acts) == limit else None)


@get("/dead-letters/{sequence:int}", tags=["dead letters"])
async def show_letter(services: Services, sequence: FromPath[int]) -> LetterDetail:
    """Show a letter with its message."""
    dead_letter = await _find_letter(services, sequence)
    if dead_letter is None:
        raise await _build_missing_letter_error(services, sequence)
    return LetterDetail(
        **{name: getattr(_view_letter(dead_letter), name) for name in LetterView.__struct_fields__},
        message=decode_for_display(dead_letter.data),
    )


@post("/dead-letters/{sequence:int}/requeue", status_code=HTTP_200_OK, tags=["dead letters"])
async def requeue(
    services: Services, sequence: FromPath[int], data: JSONBody[RequeueBody]
) -> Acted:
    """Send a letter again under its own subject; a repetition changes nothing."""
    return await _apply_action(services, sequence, DeadLetterAction.REQUEUE, who=data.who, why=None)


@post("/dead-letters/{sequence:int}/drop", status_code=HTTP_200_OK, tags=["dead letters"])
async def drop(services: Services, sequence: FromPath[int], data: JSONBody[DropBody]) -> Acted:
    """Drop a letter for good; a repetition changes nothing."""
    return await _apply_action(
        services, sequence, DeadLetterAction.DROP, who=data.who, why=data.reason
    )


async def _apply_action(
    services: ApiServices, sequence: int, action: DeadLetterAction, *, who: str, why: str | None
) -> Acted:
    """Record an act, then do it: what was done without a record would be nobody's."""
    dead_letter = await _find_letter(services, sequence)
    if dead_letter is None:
        return await _answer_repeated(services, sequence, action)
    act = DeadLetterAct(
        **services.tenant_scope,
        action=action,
        sequence=dead_letter.sequence,
        stream=_replace_nul(dead_letter.stream),
        consumer=_replace_nul(dead_letter.consumer),
        subject=_replace_nul(dead_letter.subject),
        reason=_replace_nul(dead_letter.reason),
        delivered=dead_letter.delivered,
        requeued=dead_letter.requeued,
        sha256=codec.digest_hex(dead_letter.data),
        who=services.name_asker(who),
        why=why,
    )
    async with services.record_change(f"dead_letter.{action}", str(sequence), reason=why):
        act = await services.messages.dead_letter_log.record_act(act)
    try:
        if action is DeadLetterAction.REQUEUE:
            await services.messages.dead_letters.requeue_letter(sequence)
        else:
            await services.messages.dead_letters.remove_letter(sequence)
    except KeyError:
        # Somebody else did something at the same time, which is recorded too.
        return Acted(act=act, is_repeated=True)
    except MalformedMessage as failure:
        raise problems.build_bad_request_error(
            str(failure), hint=f"noetl dlq drop {sequence} --reason ..."
        ) from failure
    return Acted(act=act)


async def _answer_repeated(services: ApiServices, sequence: int, action: DeadLetterAction) -> Acted:
    """Answer for a letter that is gone with what was done about it; raises an `ApiError`."""
    earlier = await services.messages.dead_letter_log.find_last_act(
        sequence, **services.tenant_scope
    )
    if earlier is None:
        raise await _build_missing_letter_error(services, sequence)
    if earlier.action is not action:
        verb = "sent again" if earlier.action is DeadLetterAction.REQUEUE else "dropped"
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="letter_gone",
            detail=f"dead letter {sequence} was {verb} by {earlier.who} at {earlier.acted_at}",
            hint="noetl dlq log lists who did what",
        )
    return Acted(act=earlier, is_repeated=True)


async def _find_letter(services: ApiServices, sequence: int) -> DeadLetter | None:
    if not 0 < sequence <= NUMBER_MAX:
        return None
    try:
        dead_letter = await services.messages.dead_letters.get_letter(sequence)
    except KeyError:
        return None
    return dead_letter if _is_visible_letter(services, dead_letter) else None


def _is_visible_letter(scope: RequestScope, dead_letter: DeadLetter) -> bool:
    """Tell whether a letter is the owner's; one whose subject names nobody is the installation's.

    Its text may be of any tenant.
    """
    owner = find_owner(dead_letter.subject)
    if owner is None:
        return scope.is_own_installation
    return owner == (scope.tenant_id, scope.organization_id)


async def _build_missing_letter_error(services: ApiServices, sequence: int) -> ApiError:
    is_possible = 0 < sequence <= NUMBER_MAX
    earlier = (
        await services.messages.dead_letter_log.find_last_act(sequence, **services.tenant_scope)
        if is_possible
        else None
    )
    if earlier is None:
        return problems.build_not_found_error(
            f"there is no dead letter {sequence}", hint="list them with: noetl dlq ls"
        )
    verb = "sent again" if earlier.action is DeadLetterAction.REQUEUE else "dropped"
    return problems.build_not_found_error(
        f"dead letter {sequence} was {verb} by {earlier.who} at {earlier.acted_at}",
        hint="noetl dlq log lists who did what",
    )


def _view_letter(dead_letter: DeadLetter) -> LetterView:
    return LetterView(
        sequence=dead_letter.sequence,
        stream=dead_letter.stream,
        consumer=dead_letter.consumer,
        subject=dead_letter.subject,
        delivered=dead_letter.delivered,
        requeued=dead_letter.requeued,
        reason=dead_letter.reason,
        bytes=len(dead_letter.data),
        buried_at=dead_letter.buried_at,
    )


def _replace_nul(text: str) -> str:
    return text.replace("\x00", "\ufffd")


ROUTES = [list_letters, list_acts, show_letter, requeue, drop]
