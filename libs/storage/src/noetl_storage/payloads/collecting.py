"""Collects what nobody refers to any more.

Content of an owner is garbage when no durable record mentions it, no content that stays and no
named object mentions it, and it was last written both longer ago than its time to live and before
the oldest work began that has not ended. The last rule covers all that is on its way: commands in
a queue, facts that no planner has seen, what a worker has stored and not yet reported. Storing
content again renews its time.

Garbage is put on a shelf, where readers still find it, and purged only by a later sweep that again
finds no mention of it; what a mention turned up for in between goes back. So a writer that stores
the same content at the very moment of the sweep loses nothing either.

Objects that only a running execution needs (`noetl_contracts.passing`) go at once, when they were
written that long ago: everything that began so early has ended.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from noetl_contracts import passing
from noetl_storage.payload_ports import (
    Owner,
    PayloadReferences,
    PayloadShelf,
    StoredContent,
)
from noetl_storage.payloads import mentions

# Payloads are stored shortly before the history begins that mentions them.
_AHEAD = timedelta(hours=1)
TTL_MIN = timedelta(hours=1)


class Patience(Struct, frozen=True, kw_only=True):
    """How long unmentioned content stays in its place, and then on the shelf."""

    ttl: timedelta
    shelf: timedelta


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
    leftovers: int = 0

    @property
    def garbage_bytes(self) -> int:
        """Add up what would be put aside."""
        return sum(content.stored_bytes for content in self.garbage)


class Collector:
    """Looks for garbage; several collectors at once do no harm."""

    def __init__(
        self, *, shelf: PayloadShelf, references: PayloadReferences, patience: Patience
    ) -> None:
        self._shelf = shelf
        self._references = references
        self._patience = patience

    async def sweep(self, owner: Owner, *, now: datetime, is_dry_run: bool) -> Sweep:
        """Look at all content of an owner; unless it is a dry run, put aside and purge."""
        held_since = await self._references.held_since(owner)
        found = Sweep(owner=owner, held_since=held_since)
        unheld = now if held_since is None else held_since - _AHEAD
        before = min(unheld, now - max(self._patience.ttl, TTL_MIN))
        found.leftovers = await self._leave_none(owner, before=before, is_dry_run=is_dry_run)
        suspects, aside = await self._suspects(owner, found, before=before)
        wanted = await self._spare(owner, suspects, aside)
        found.garbage = list(suspects.values())
        if not is_dry_run:
            # A writer whose content was put aside the moment it stored it still works: it waits.
            await self._settle(
                found, aside, wanted, purge_before=min(unheld, now - self._patience.shelf)
            )
        return found

    async def _leave_none(self, owner: Owner, *, before: datetime, is_dry_run: bool) -> int:
        """Remove what ended executions have left behind; return how many objects that are."""
        count = 0
        for prefix in passing.PREFIXES:
            async for names in self._shelf.list_written_before(owner, prefix, before):
                count += len(names)
                for name in () if is_dry_run else names:
                    await self._shelf.forget(owner, name)
        return count

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
        async for names in self._shelf.list_objects(owner):
            for name in names:
                yield name, True

    async def _follow(
        self, owner: Owner, content: str, open_: set[str], *, is_name: bool
    ) -> set[str]:
        """Return the open digests that an object leads to, over any number of others."""
        reached: set[str] = set()
        waiting = [(content, is_name)]
        while waiting and open_:
            next_one, is_next_name = waiting.pop()
            pieces = self._shelf.read_text(owner, next_one, is_name=is_next_name)
            found = await mentions.mentioned(pieces, open_)
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
                await self._shelf.restore(found.owner, digest)
                found.restored += 1
            elif content.modified_at < purge_before:
                await self._shelf.purge(found.owner, digest)
                found.purged += 1
                found.purged_bytes += content.stored_bytes
