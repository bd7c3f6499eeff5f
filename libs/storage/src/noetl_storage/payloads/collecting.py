"""Collects what nobody refers to any more.

Content of an owner is garbage when no durable record mentions it, no content that stays and no
named object mentions it, and it was last written both longer ago than its time to live and before
the oldest work began that has not ended. The last rule covers all that is on its way: commands in
a queue, facts that no planner has seen, what a worker has stored and not yet reported. Storing
content again renews its time.

Garbage is put on a shelf, where readers still find it, and purged only by a later sweep that again
finds no mention of it; what a mention turned up for in between goes back. So a writer that stores
the same content at the very moment of the sweep loses nothing either.

What an object mentions that cannot be looked through within bounds is not known, so nothing of its
owner is collected: that look ends, and says which object it is.

One process at a time looks at an owner. One that was taken for dead and goes on loses nothing
either: what comes back from the shelf leaves a copy there, which goes as late as garbage does, so
content that somebody is still moving is found. Named objects, which
nothing mentions, go as `named` says, under the same patience and without a shelf.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from noetl_storage.payload_ports import (
    Owner,
    PayloadReferences,
    PayloadShelf,
    StoredContent,
    StoredObject,
)
from noetl_storage.payloads import mentions, named
from noetl_storage.unpacking.refusals import PayloadUnreadable

# Payloads are stored shortly before the history begins that mentions them.
_AHEAD = timedelta(hours=1)
TTL_MIN = timedelta(hours=1)


class Patience(Struct, frozen=True, kw_only=True):
    """How long unmentioned content stays in its place, and then on the shelf."""

    ttl: timedelta
    shelf: timedelta

    def horizon(self, now: datetime, *, held_since: datetime | None) -> "Horizon":
        """Say what is old enough, while work goes on that began at `held_since`."""
        unheld = now if held_since is None else held_since - _AHEAD
        return Horizon(
            suspect=min(unheld, now - max(self.ttl, TTL_MIN)),
            # A writer whose content was put aside the moment it stored it still works: it waits.
            purge=min(unheld, now - self.shelf),
        )


class Horizon(Struct, frozen=True, kw_only=True):
    """Content written before `suspect` may be put aside, what was before `purge` may be purged."""

    suspect: datetime
    purge: datetime


class Sweep(Struct, kw_only=True):
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
    def garbage_bytes(self) -> int:
        """Add up what would be put aside."""
        return sum(content.stored_bytes for content in self.garbage)


class Collector:
    """Looks for garbage; of several collectors one at a time looks at an owner."""

    def __init__(
        self, *, shelf: PayloadShelf, references: PayloadReferences, patience: Patience
    ) -> None:
        self._shelf = shelf
        self._references = references
        self._patience = patience

    async def sweep(self, owner: Owner, *, now: datetime, is_dry_run: bool) -> Sweep:
        """Look at all content of an owner; unless it is a dry run, put aside and purge."""
        async with self._references.alone(owner) as is_alone:
            if not is_alone and not is_dry_run:
                return Sweep(owner=owner, held_since=None, is_left_to_another=True)
            return await self._swept(owner, now=now, is_dry_run=is_dry_run)

    async def _swept(self, owner: Owner, *, now: datetime, is_dry_run: bool) -> Sweep:
        held_since = await self._references.held_since(owner)
        found = Sweep(owner=owner, held_since=held_since)
        horizon = self._patience.horizon(now, held_since=held_since)
        suspects, aside = await self._suspects(owner, found, before=horizon.suspect)
        wanted = await self._spare(owner, suspects, aside)
        found.garbage = list(suspects.values())
        found.names = await named.list_garbage(
            owner, shelf=self._shelf, references=self._references, before=horizon.suspect
        )
        if not is_dry_run:
            await self._settle(found, aside, wanted, purge_before=horizon.purge)
        return found

    async def _suspects(
        self, owner: Owner, found: Sweep, *, before: datetime
    ) -> tuple[dict[str, StoredContent], dict[str, StoredContent]]:
        """Return old content by digest, in its place and on the shelf."""
        suspects: dict[str, StoredContent] = {}
        aside: dict[str, StoredContent] = {}
        async for page in self._shelf.list_contents(owner):
            for content in page:
                if content.is_shelved:
                    aside[content.sha256] = content
                    continue
                found.contents += 1
                found.contents_bytes += content.stored_bytes
                if content.modified_at < before:
                    suspects[content.sha256] = content
        return suspects, aside

    async def _spare(
        self,
        owner: Owner,
        suspects: dict[str, StoredContent],
        aside: Mapping[str, StoredContent],
    ) -> set[str]:
        """Take out of the suspects whatever is mentioned; return what of the shelf is."""
        open_ = suspects.keys() | aside.keys()
        wanted: set[str] = set()
        if not open_:
            return wanted
        async for digests in self._references.list_mentioned(owner, open_):
            wanted |= digests
        open_ -= wanted
        # What stays mentions more: first all that was never suspected, then what it brings back.
        async for content, is_name in self._staying(owner, open_):
            if not open_:
                break
            wanted |= await self._follow(owner, content, open_, is_name=is_name)
        for digest in wanted:
            suspects.pop(digest, None)
        return wanted & aside.keys()

    async def _staying(self, owner: Owner, open_: set[str]) -> AsyncIterator[tuple[str, bool]]:
        async for page in self._shelf.list_contents(owner):
            for content in page:
                if content.sha256 not in open_:
                    yield content.sha256, False
        async for objects in self._shelf.list_objects(owner):
            for one in objects:
                if named.may_mention(one):
                    yield one.name, True

    async def _follow(
        self, owner: Owner, content: str, open_: set[str], *, is_name: bool
    ) -> set[str]:
        """Return the open digests that an object leads to, over any number of others."""
        reached: set[str] = set()
        waiting = [(content, is_name)]
        while waiting and open_:
            next_one, is_next_name = waiting.pop()
            pieces = self._shelf.read_text(owner, next_one, is_name=is_next_name)
            try:
                found = await mentions.mentioned(pieces, open_)
            except PayloadUnreadable as failure:
                raise _untold(owner, next_one, failure) from failure
            open_ -= found
            reached |= found
            waiting += [(digest, False) for digest in found]
        return reached

    async def _settle(
        self,
        found: Sweep,
        aside: Mapping[str, StoredContent],
        wanted: set[str],
        *,
        purge_before: datetime,
    ) -> None:
        for content in found.garbage:
            found.shelved += await self._shelf.shelve(found.owner, content)
        for digest, content in aside.items():
            if digest in wanted:
                found.restored += (came_back := await self._shelf.restore(found.owner, digest))
                if not came_back and content.modified_at < purge_before:
                    await self._shelf.purge(found.owner, digest)
            elif content.modified_at < purge_before:
                await self._shelf.purge(found.owner, digest)
                found.purged += 1
                found.purged_bytes += content.stored_bytes
        for one in found.names:
            await self._shelf.remove_object(found.owner, one.name)
            found.removed += 1


def _untold(owner: Owner, content: str, failure: PayloadUnreadable) -> PayloadUnreadable:
    return PayloadUnreadable(
        f"what {content} of {owner.tenant_id}/{owner.organization_id} mentions cannot be told, so "
        f"nothing of that organization is collected: {failure}. Where nobody needs it, remove it"
    )
