"""Folds of long histories in slices, one a request: 202 says how far a fold has come."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from litestar import Response
from litestar.openapi import ResponseSpec
from msgspec import Struct

from noetl_contracts.errors import Permanent
from noetl_contracts.ledger.envelope import Envelope
from noetl_planner.api.http.problems import AnyRequest, ApiError
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_replay.state import ExecutionState

PAGE_EVENTS = 1000
# Events that one request folds: a second or so.
SLICE_EVENTS = 20_000

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


class MomentProgress(Struct, frozen=True, kw_only=True):
    """How far the fold of a moment has come: ask again, and it goes on from there."""

    execution_id: str
    folded: int
    wanted: int


class MomentUnderWay(Exception):  # noqa: N818 - nothing is wrong: it takes more than one request
    """A moment lies so far from the beginning that it is folded in slices."""

    def __init__(self, progress: MomentProgress) -> None:
        super().__init__(f"{progress.folded} of {progress.wanted} events are folded")
        self.progress = progress


def show_progress(_: AnyRequest, under_way: MomentUnderWay) -> Response[MomentProgress]:
    """Answer 202: what was asked for is not there yet."""
    return Response(under_way.progress, status_code=HTTPStatus.ACCEPTED)


# What routes that show moments of the past may answer besides.
UNDER_WAY = {
    int(HTTPStatus.ACCEPTED): ResponseSpec(
        data_container=MomentProgress,
        description="The moment is being folded: ask again.",
        generate_examples=False,
    )
}


class EventFold(Protocol):
    """What a history is fed to, page by page."""

    @property
    def state(self) -> ExecutionState:
        """Return what it has come to."""

    def feed_events(self, page: Sequence[Envelope], /) -> None:
        """Fold what follows."""


async def feed_until(history: HistoryStores, fold: EventFold, *, until: int) -> None:
    """Fold a history up to a version; raises a 409 where it does not fold."""
    while fold.state.version < until:
        await feed_page(history, fold, until=until)
        # Other requests have their turn between two pages.
        await asyncio.sleep(0)


async def feed_page(history: HistoryStores, fold: EventFold, *, until: int) -> None:
    """Fold the next page of a history up to a version; raises a 409 where it does not fold."""
    execution_id, after = fold.state.execution_id, fold.state.version
    try:
        page = await history.ledger.read_events(
            execution_id, after_version=after, events_max=min(PAGE_EVENTS, until - after)
        )
        fold.feed_events(page)
    except _FOLD_FAILURES as failure:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="does_not_fold",
            detail=f"the history of execution {execution_id} does not fold behind version "
            f"{fold.state.version}: {failure}",
            hint=f"see what was done to it: noetl audit verify {execution_id}",
        ) from failure
    if page:
        return
    raise ApiError(
        HTTPStatus.CONFLICT,
        code="history_incomplete",
        detail=f"execution {execution_id} should reach version {until}, and has no event behind "
        f"{after}",
        hint=f"see what is missing: noetl audit verify {execution_id}",
    )
