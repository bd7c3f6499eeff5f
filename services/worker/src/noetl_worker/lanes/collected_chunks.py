"""What a task collects over its repeats, between two workers: stored chunk by chunk, once each."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.payloads import JSON_MEDIA_TYPE, RESULT_INLINE_BYTES_MAX, PayloadRef
from noetl_playbook import forms
from noetl_playbook.model import Output
from noetl_playbook.results import TaskResult
from noetl_worker.domain.result import ABSENT, Collection
from noetl_worker.domain.storing import COLLECTED_NOTHING
from noetl_worker.lanes.block import CompiledTask
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.parking import SavedCollection, SavedScratch
from noetl_worker.stores import TenantPayloads

_HOLDERS = frozenset({dict, list})


class StoredCollection:
    """A collection of one task, and how much of it is stored."""

    def __init__(self, name: str, collection: Collection | None = None) -> None:
        self.name = name
        self.collection = collection or Collection()
        self._chunks: list[PayloadRef] = []
        self._stored_count = 0

    @property
    def shown(self) -> Any:
        """Return what templates see under the collection's name."""
        return [] if self.collection.value is None else self.collection.value

    async def store(self, hands: Hands) -> None:
        """Store what a list has got since the last time, unless it is little."""
        value = self.collection.value
        if not isinstance(value, list):
            return
        if self.collection.is_replaced or len(value) < self._stored_count:
            self._chunks, self._stored_count = [], 0
        added = forms.plain(value[self._stored_count :])
        data = hands.mask.data(codec.encode(added))
        if len(data) <= RESULT_INLINE_BYTES_MAX:
            return
        reference = await hands.payloads.store(
            data, media_type=JSON_MEDIA_TYPE, row_count=len(added)
        )
        self._chunks, self._stored_count = [*self._chunks, reference], len(value)

    def saved(self, held_in: list[str]) -> SavedCollection:
        """Return the collection as another worker takes it up, with what is not stored beside."""
        value = self.collection.value
        rest = value[self._stored_count :] if isinstance(value, list) else value
        return SavedCollection(
            name=self.name,
            rest=forms.plain(rest),
            size_bytes=self.collection.size_bytes,
            chunks=self._chunks,
            is_truncated=self.collection.is_truncated,
            held_in=held_in,
        )

    @classmethod
    async def load(cls, saved: SavedCollection, payloads: TenantPayloads) -> "StoredCollection":
        """Return a collection with all that was stored of it; raises `ToolFailure`."""
        value = saved.rest
        if saved.chunks:
            value = []
            for reference in saved.chunks:
                value += await payloads.load(reference)
        found = cls(saved.name, Collection(value, size_bytes=saved.size_bytes))
        found.collection.is_truncated = saved.is_truncated
        if saved.chunks:
            found._chunks, found._stored_count = saved.chunks, len(value)
            found.collection.value += saved.rest
        return found


class Collections:
    """What the tasks of one pipeline collect, each under its own name."""

    def __init__(self, tasks: Iterable[CompiledTask]) -> None:
        self._by_task: dict[str, StoredCollection] = {}
        self._without_any: set[str] = set()
        self._names = {
            task.name: task.output.accumulate.manifest_as
            for task in tasks
            if task.output is not None and task.output.accumulate is not None
        }

    @property
    def row_count(self) -> int | None:
        """How many values are collected in lists, None where nothing is."""
        values = [one.collection.value for one in self._by_task.values()]
        counts = [len(value) for value in values if isinstance(value, list)]
        return sum(counts) if counts else None

    def shown(self, task: str) -> Any:
        """Return what templates see of a task's collection."""
        return self._by_task[task].shown

    def add(self, task: str, output: Output, value: Any) -> bool:
        """Add what an attempt gave; tell whether the collection is cut.

        Raises `NotAccumulable` or `CollectionFull`.
        """
        held = self._by_task.get(task)
        if held is None:
            held = self._by_task[task] = StoredCollection(self._names[task])
        held.collection.add(output, value)
        return held.collection.is_truncated

    def note_absence(self, task: str, value: Any, notes: dict[str, None]) -> None:
        """Note that nothing was found to collect, until something is."""
        held = self._by_task.get(task)
        if value is not ABSENT:
            self._without_any.discard(task)
        elif held is None or held.collection.value is None:
            self._without_any.add(task)
        notes.pop(COLLECTED_NOTHING, None)
        if self._without_any:
            notes[COLLECTED_NOTHING] = None

    def take_up_notes(self, saved: Sequence[str], notes: dict[str, None]) -> list[str]:
        """Note again that nothing was found, until something is; return the other saved notes."""
        if COLLECTED_NOTHING in saved:
            self._without_any = {
                task for task, held in self._by_task.items() if held.collection.value is None
            }
            notes.update({COLLECTED_NOTHING: None} if self._without_any else {})
        return [note for note in saved if note != COLLECTED_NOTHING]

    def apart(self, value: Any) -> Any:
        """Copy each list in a value that goes on growing: what is kept is the list as it is now."""
        growing = [one.collection.value for one in self._by_task.values()]
        ids = {id(one) for one in growing if isinstance(one, list)}
        return _apart(value, ids) if ids else value

    async def store(self, hands: Hands) -> None:
        """Store what was collected since the last time; raises `ToolFailure`."""
        for held in self._by_task.values():
            await held.store(hands)

    async def load(self, saved: SavedScratch, payloads: TenantPayloads) -> None:
        """Take up what another worker had collected; raises `ToolFailure`."""
        for task, one in saved.collected.items():
            self._by_task[task] = await StoredCollection.load(one, payloads)
        for task, value in saved.collections.items():
            self._by_task[task] = StoredCollection(self._names[task], Collection(value))

    def saved(self, variables: Mapping[str, Any]) -> dict[str, SavedCollection]:
        """Return the collections as another worker takes them up."""
        return {
            task: one.saved([name for name, held in variables.items() if held is one.shown])
            for task, one in self._by_task.items()
        }

    def without(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out of a result's names what is saved as a collection."""
        shown = [one.shown for one in self._by_task.values()]
        return {
            name: value for name, value in names.items() if all(value is not one for one in shown)
        }

    def bare(self, result: TaskResult) -> TaskResult:
        """Leave out of a result what its task has collected."""
        return structs.replace(result, names=self.without(result.names))

    def whole_of(self, task: str | None, result: TaskResult) -> TaskResult:
        """Give back to a result what its task has collected."""
        held = self._by_task.get(task or "")
        if held is None:
            return result
        return structs.replace(result, names={**result.names, held.name: held.shown})


def _apart(value: Any, growing: AbstractSet[int]) -> Any:
    """Return a value whose growing lists are copied, itself where it holds none."""
    if type(value) is list:
        if id(value) in growing:
            return [*value]
        items = [_apart(item, growing) if type(item) in _HOLDERS else item for item in value]
        is_same = all(copied is item for copied, item in zip(items, value, strict=True))
        return value if is_same else items
    if type(value) is dict:
        held = {name: item for name, item in value.items() if type(item) in _HOLDERS}
        copied = {name: _apart(item, growing) for name, item in held.items()}
        is_same = all(copied[name] is item for name, item in held.items())
        return value if is_same else {**value, **copied}
    return value
