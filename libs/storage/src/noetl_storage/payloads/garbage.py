"""Finds garbage among named objects: each kind of name has a rule when it is unused.

| objects | garbage |
|---|---|
| `waves/<execution>/…` | once they are old: only a wave that goes on reads them |
| `frames/<execution>/…` | once the ledger has no history of the execution |
| `workspaces/<execution>/…`, `walks/<execution>/…`, `logs/<execution>/…` | the same |
| `scripts/<execution>/…` | the same |
| `slices/<digest>` | once the content that they cut is gone |
| `artifacts/<name>/versions/<n>` | once a later version stands |
| `streams/<name>/versions/<n>` | the same |
| `streams/<name>/arrivals/<n>` | once two later steps list all files that were taken up before |

Everything else stays: credentials, tables, and all objects that a later release adds.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from itertools import groupby

from msgspec import Struct

from noetl_contracts.log_chunks import LOGS
from noetl_contracts.transient_objects import (
    GRANTS,
    REJECTS,
    SCRIPTS,
    STREAM_STEPS_WHOLE_EVERY,
    STREAMS,
    WAVES,
)
from noetl_storage.payloads import payload_references
from noetl_storage.ports.payload_ports import (
    Owner,
    PayloadReferences,
    PayloadShelf,
    StoredContent,
    StoredObject,
)
from noetl_storage.size_limits.refusals import PayloadUnreadable

FRAMES, WALKS, WORKSPACES = "frames", "walks", "workspaces"
SLICES, ARTIFACTS = "slices", "artifacts"
_OF_EXECUTIONS = frozenset({FRAMES, GRANTS, LOGS, REJECTS, SCRIPTS, WALKS, WORKSPACES})
_VERSIONS = "/versions/"
_ARRIVALS = "/arrivals"
# What has more digits than an identity is none.
_DIGITS_MAX = 18
# Payloads are stored shortly before the history begins that mentions them.
_AHEAD = timedelta(hours=1)
TTL_MIN = timedelta(hours=1)


async def list_named_garbage(
    owner: Owner, *, shelf: PayloadShelf, references: PayloadReferences, before: datetime
) -> list[StoredObject]:
    """Return the owner's named objects that are garbage, of those written before a moment."""
    garbage: list[StoredObject] = []
    versions: list[StoredObject] = []
    steps: list[StoredObject] = []
    async for page in shelf.iterate_objects(owner):
        versions += [stored_object for stored_object in page if _is_version(stored_object)]
        steps += [stored_object for stored_object in page if _is_step(stored_object)]
        old = [item for item in page if item.modified_at < before]
        garbage += [item for item in old if _get_kind(item) == WAVES]
        garbage += await _list_unknown_executions(owner, old, references)
        garbage += [name async for name in _iterate_gone_slices(owner, old, shelf)]
    older = [*_list_older_versions(versions), *list_older_steps(steps)]
    return garbage + [
        stored_object for stored_object in older if stored_object.modified_at < before
    ]


async def _list_unknown_executions(
    owner: Owner, old: list[StoredObject], references: PayloadReferences
) -> list[StoredObject]:
    owned = [
        stored_object
        for stored_object in old
        if _get_kind(stored_object) in _OF_EXECUTIONS
        and _is_identity(_get_second_segment(stored_object))
    ]
    known_executions = (
        await references.list_known_executions(owner, {_get_second_segment(item) for item in owned})
        if owned
        else ()
    )
    return [item for item in owned if _get_second_segment(item) not in known_executions]


async def _iterate_gone_slices(
    owner: Owner, old: list[StoredObject], shelf: PayloadShelf
) -> AsyncIterator[StoredObject]:
    for stored_object in old:
        if _get_kind(stored_object) == SLICES and not await shelf.has_content(
            owner, _get_second_segment(stored_object)
        ):
            yield stored_object


def _list_older_versions(versions: list[StoredObject]) -> list[StoredObject]:
    """Return all but the latest version of every artifact; one that says "deleted" is one, too."""
    ordered = sorted(versions, key=lambda stored_object: stored_object.name)
    stored_objects: list[StoredObject] = []
    for _, group in groupby(ordered, key=lambda one: one.name.rpartition(_VERSIONS)[0]):
        stored_objects += list(group)[:-1]
    return stored_objects


def list_older_steps(steps: list[StoredObject]) -> list[StoredObject]:
    """Return the steps of streams that nobody reads again, of all their steps."""
    ordered = sorted(steps, key=lambda stored_object: stored_object.name)
    older: list[StoredObject] = []
    for _, group in groupby(ordered, key=lambda step: step.name.rpartition("/")[0]):
        of_stream = list(group)
        last = _get_number(of_stream[-1])
        whole = last - last % STREAM_STEPS_WHOLE_EVERY - STREAM_STEPS_WHOLE_EVERY
        older += [step for step in of_stream if _get_number(step) < whole]
    return older


def _get_number(step: StoredObject) -> int:
    return int(step.name.rpartition("/")[2])


def _is_step(stored_object: StoredObject) -> bool:
    """Tell whether an object is a step of a stream's source."""
    folder, _, number = stored_object.name.rpartition("/")
    return _get_kind(stored_object) == STREAMS and folder.endswith(_ARRIVALS) and number.isdigit()


def _is_version(stored_object: StoredObject) -> bool:
    """Tell whether an object is a version of an artifact, or of a stream's checkpoint."""
    kind = _get_kind(stored_object)
    return kind == ARTIFACTS or (kind == STREAMS and _VERSIONS in stored_object.name)


def _is_identity(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def may_mention_content(stored_object: StoredObject) -> bool:
    """Tell whether an object may name content that it needs: what a task printed needs none."""
    return _get_kind(stored_object) != LOGS


def _get_kind(stored_object: StoredObject) -> str:
    return stored_object.name.partition("/")[0]


def _get_second_segment(stored_object: StoredObject) -> str:
    return stored_object.name.partition("/")[2].partition("/")[0]


class GarbageAge(Struct, frozen=True, kw_only=True):
    """How long unmentioned content stays in its place, and then on the shelf."""

    ttl: timedelta
    shelf: timedelta

    def compute_horizon(self, now: datetime, *, held_since: datetime | None) -> "GarbageHorizon":
        """Say what is old enough, while work goes on that began at `held_since`."""
        unheld = now if held_since is None else held_since - _AHEAD
        return GarbageHorizon(
            suspect=min(unheld, now - max(self.ttl, TTL_MIN)),
            # A writer whose content was put aside the moment it stored it still works: it waits.
            purge=min(unheld, now - self.shelf),
        )


class GarbageHorizon(Struct, frozen=True, kw_only=True):
    """Content written before `suspect` may be put aside, what was before `purge` may be purged."""

    suspect: datetime
    purge: datetime


class GarbageSweep(Struct, kw_only=True):
    """What one look at an owner's content found, and what was done about it."""

    owner: Owner
    held_since: datetime | None
    contents: int = 0
    contents_bytes: int = 0
    garbage: list[StoredContent] = []
    shelved: int = 0
    restored: int = 0
    purged: int = 0
    purged_bytes: int = 0
    names: list[StoredObject] = []
    removed: int = 0
    is_left_to_another: bool = False

    @property
    def count_garbage_bytes(self) -> int:
        """Add up what would be put aside."""
        return sum(content.stored_bytes for content in self.garbage)


class GarbageCollector:
    """Looks for garbage; of several collectors one at a time looks at an owner."""

    def __init__(
        self, *, shelf: PayloadShelf, references: PayloadReferences, garbage_age: GarbageAge
    ) -> None:
        self._shelf = shelf
        self._references = references
        self._age = garbage_age

    async def sweep_owner(self, owner: Owner, *, now: datetime, is_dry_run: bool) -> GarbageSweep:
        """Look at all content of an owner; unless it is a dry run, put aside and purge."""
        async with self._references.hold_collector_lock(owner) as is_alone:
            if not is_alone and not is_dry_run:
                return GarbageSweep(owner=owner, held_since=None, is_left_to_another=True)
            return await self._sweep_alone(owner, now=now, is_dry_run=is_dry_run)

    async def _sweep_alone(self, owner: Owner, *, now: datetime, is_dry_run: bool) -> GarbageSweep:
        held_since = await self._references.find_held_since(owner)
        garbage_sweep = GarbageSweep(owner=owner, held_since=held_since)
        horizon = self._age.compute_horizon(now, held_since=held_since)
        suspects, aside = await self._list_suspects(owner, garbage_sweep, before=horizon.suspect)
        mentioned_digests = await self._spare_mentioned(owner, suspects, aside)
        garbage_sweep.garbage = list(suspects.values())
        garbage_sweep.names = await list_named_garbage(
            owner, shelf=self._shelf, references=self._references, before=horizon.suspect
        )
        if not is_dry_run:
            await self._apply_sweep(
                garbage_sweep, aside, mentioned_digests, purge_before=horizon.purge
            )
        return garbage_sweep

    async def _list_suspects(
        self, owner: Owner, garbage_sweep: GarbageSweep, *, before: datetime
    ) -> tuple[dict[str, StoredContent], dict[str, StoredContent]]:
        """Return old content by digest, in its place and on the shelf."""
        suspects: dict[str, StoredContent] = {}
        aside: dict[str, StoredContent] = {}
        async for page in self._shelf.iterate_contents(owner):
            for content in page:
                if content.is_shelved:
                    aside[content.sha256] = content
                    continue
                garbage_sweep.contents += 1
                garbage_sweep.contents_bytes += content.stored_bytes
                if content.modified_at < before:
                    suspects[content.sha256] = content
        return suspects, aside

    async def _spare_mentioned(
        self,
        owner: Owner,
        suspects: dict[str, StoredContent],
        aside: Mapping[str, StoredContent],
    ) -> set[str]:
        """Remove the mentioned contents from the suspects; return those that are set aside."""
        open_ = suspects.keys() | aside.keys()
        mentioned_digests: set[str] = set()
        if not open_:
            return mentioned_digests
        async for digests in self._references.iterate_mentioned(owner, open_):
            mentioned_digests |= digests
        open_ -= mentioned_digests
        # What stays mentions more: first all that was never suspected, then what it brings back.
        async for content, is_name in self._iterate_staying(owner, open_):
            if not open_:
                break
            mentioned_digests |= await self._follow_mentions(owner, content, open_, is_name=is_name)
        for digest in mentioned_digests:
            suspects.pop(digest, None)
        return mentioned_digests & aside.keys()

    async def _iterate_staying(
        self, owner: Owner, open_: set[str]
    ) -> AsyncIterator[tuple[str, bool]]:
        async for page in self._shelf.iterate_contents(owner):
            for content in page:
                if content.sha256 not in open_:
                    yield content.sha256, False
        async for objects in self._shelf.iterate_objects(owner):
            for stored_object in objects:
                if may_mention_content(stored_object):
                    yield stored_object.name, True

    async def _follow_mentions(
        self, owner: Owner, content: str, open_: set[str], *, is_name: bool
    ) -> set[str]:
        """Return the open digests that an object leads to, over any number of others."""
        reached_digests: set[str] = set()
        pending_contents = [(content, is_name)]
        while pending_contents and open_:
            next_one, is_next_name = pending_contents.pop()
            pieces = self._shelf.stream_content(owner, next_one, is_name=is_next_name)
            try:
                mentions = await payload_references.find_mentioned(pieces, open_)
            except PayloadUnreadable as failure:
                raise _build_unlisted_error(owner, next_one, failure) from failure
            open_ -= mentions
            reached_digests |= mentions
            pending_contents += [(digest, False) for digest in mentions]
        return reached_digests

    async def _apply_sweep(
        self,
        garbage_sweep: GarbageSweep,
        aside: Mapping[str, StoredContent],
        mentioned_digests: set[str],
        *,
        purge_before: datetime,
    ) -> None:
        for content in garbage_sweep.garbage:
            garbage_sweep.shelved += await self._shelf.shelve_content(garbage_sweep.owner, content)
        for digest, content in aside.items():
            if digest in mentioned_digests:
                garbage_sweep.restored += (
                    came_back := await self._shelf.restore_content(garbage_sweep.owner, digest)
                )
                if not came_back and content.modified_at < purge_before:
                    await self._shelf.purge_content(garbage_sweep.owner, content)
            elif content.modified_at < purge_before and await self._shelf.purge_content(
                garbage_sweep.owner, content
            ):
                garbage_sweep.purged += 1
                garbage_sweep.purged_bytes += content.stored_bytes
        for name in garbage_sweep.names:
            await self._shelf.remove_object(garbage_sweep.owner, name.name)
            garbage_sweep.removed += 1


def _build_unlisted_error(
    owner: Owner, content: str, failure: PayloadUnreadable
) -> PayloadUnreadable:
    return PayloadUnreadable(
        f"what {content} of {owner.tenant_id}/{owner.organization_id} mentions cannot be told, so "
        f"nothing of that organization is collected: {failure}. Where nobody needs it, remove it"
    )
