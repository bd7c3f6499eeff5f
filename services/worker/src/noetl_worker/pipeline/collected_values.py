"""Values that tasks collect over their repeats; stored in chunks, so another worker can resume."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.payloads import JSON_MEDIA_TYPE, RESULT_INLINE_BYTES_MAX, PayloadRef
from noetl_playbook.model.playbook import Output
from noetl_playbook.templates import output_forms
from noetl_playbook.views.results import TaskResult
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.result import ABSENT, CollectedValue
from noetl_worker.domain.result_storage import COLLECTED_NOTHING
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.pipeline.compiled_tasks import CompiledTask
from noetl_worker.pipeline.parked_work import SavedCollection, SavedState

_HOLDERS = frozenset({dict, list})


class StoredCollection:
    """The collected value of one task, and the chunks of it that are stored."""

    def __init__(self, name: str, collection: CollectedValue | None = None) -> None:
        self.name = name
        self.collection = collection or CollectedValue()
        self._chunks: list[PayloadRef] = []
        self._stored_count = 0

    @property
    def shown_value(self) -> Any:
        """Return what templates see under the collection's name."""
        return [] if self.collection.value is None else self.collection.value

    async def store_chunks(self, services: CommandServices) -> None:
        """Store the entries of a list since the last call, unless they fit into an event."""
        value = self.collection.value
        if not isinstance(value, list):
            return
        if self.collection.is_replaced or len(value) < self._stored_count:
            self._chunks, self._stored_count = [], 0
        added = output_forms.to_plain(value[self._stored_count :])
        data = services.mask.mask_bytes(codec.encode_json(added))
        if len(data) <= RESULT_INLINE_BYTES_MAX:
            return
        reference = await services.payloads.store_payload(
            data, media_type=JSON_MEDIA_TYPE, row_count=len(added)
        )
        self._chunks, self._stored_count = [*self._chunks, reference], len(value)

    def build_saved(self, held_in: list[str]) -> SavedCollection:
        """Return the collection for another worker to resume: stored chunks, the rest inline."""
        value = self.collection.value
        unstored_value = value[self._stored_count :] if isinstance(value, list) else value
        return SavedCollection(
            name=self.name,
            rest=output_forms.to_plain(unstored_value),
            size_bytes=self.collection.size_bytes,
            chunks=self._chunks,
            is_truncated=self.collection.is_truncated,
            held_in=held_in,
        )

    @classmethod
    async def load_saved(
        cls, saved: SavedCollection, payloads: TenantPayloads
    ) -> "StoredCollection":
        """Return a collection with all that was stored of it; raises `ToolFailure`."""
        value = saved.rest
        if saved.chunks:
            value = []
            for reference in saved.chunks:
                value += await payloads.load_value(reference)
        stored_collection = cls(saved.name, CollectedValue(value, size_bytes=saved.size_bytes))
        stored_collection.collection.is_truncated = saved.is_truncated
        if saved.chunks:
            stored_collection._chunks, stored_collection._stored_count = saved.chunks, len(value)
            stored_collection.collection.value += saved.rest
        return stored_collection


class TaskCollections:
    """What the tasks of one pipeline collect, each under its own name."""

    def __init__(self, tasks: Iterable[CompiledTask]) -> None:
        self._by_task: dict[str, StoredCollection] = {}
        self._tasks_without_value: set[str] = set()
        self._names = {
            task.name: task.output.accumulate.manifest_as
            for task in tasks
            if task.output is not None and task.output.accumulate is not None
        }

    @property
    def row_count(self) -> int | None:
        """How many values are collected in lists, None where nothing is."""
        values = [
            stored_collection.collection.value for stored_collection in self._by_task.values()
        ]
        counts = [len(value) for value in values if isinstance(value, list)]
        return sum(counts) if counts else None

    def get_shown_value(self, task: str) -> Any:
        """Return what templates see of a task's collection."""
        return self._by_task[task].shown_value

    def add_value(self, task: str, output: Output, value: Any) -> bool:
        """Add the value of an attempt; return whether the collection is truncated.

        Raises `NotAccumulable` or `CollectionFull`.
        """
        stored_collection = self._by_task.get(task)
        if stored_collection is None:
            stored_collection = self._by_task[task] = StoredCollection(self._names[task])
        stored_collection.collection.add_contribution(output, value)
        return stored_collection.collection.is_truncated

    def note_absence(self, task: str, value: Any, notes: dict[str, None]) -> None:
        """Set or clear the note `COLLECTED_NOTHING` after a task has offered `value` to collect."""
        stored_collection = self._by_task.get(task)
        if value is not ABSENT:
            self._tasks_without_value.discard(task)
        elif stored_collection is None or stored_collection.collection.value is None:
            self._tasks_without_value.add(task)
        notes.pop(COLLECTED_NOTHING, None)
        if self._tasks_without_value:
            notes[COLLECTED_NOTHING] = None

    def restore_nothing_collected_note(
        self, saved_notes: Sequence[str], notes: dict[str, None]
    ) -> list[str]:
        """Restore the note `COLLECTED_NOTHING` in `notes` if a task still has no collected value.

        A resumed pipeline reports notes at its end as if it had never been interrupted.
        `saved_notes` are the notes of a pipeline that is resumed; return the others of them.
        """
        if COLLECTED_NOTHING in saved_notes:
            self._tasks_without_value = {
                task
                for task, stored_collection in self._by_task.items()
                if stored_collection.collection.value is None
            }
            notes.update({COLLECTED_NOTHING: None} if self._tasks_without_value else {})
        return [note for note in saved_notes if note != COLLECTED_NOTHING]

    def copy_growing_lists(self, value: Any) -> Any:
        """Copy each list in a value that goes on growing: what is kept is the list as it is now."""
        growing = [
            stored_collection.collection.value for stored_collection in self._by_task.values()
        ]
        ids = {id(item) for item in growing if isinstance(item, list)}
        return _copy_growing(value, ids) if ids else value

    async def store_chunks(self, services: CommandServices) -> None:
        """Store what was collected since the last time; raises `ToolFailure`."""
        for stored_collection in self._by_task.values():
            await stored_collection.store_chunks(services)

    async def load_saved(self, saved: SavedState, payloads: TenantPayloads) -> None:
        """Load the collections that another worker saved; raises `ToolFailure`."""
        for task, saved_collection in saved.collected.items():
            self._by_task[task] = await StoredCollection.load_saved(saved_collection, payloads)
        for task, value in saved.collections.items():
            self._by_task[task] = StoredCollection(self._names[task], CollectedValue(value))

    def build_saved(self, variables: Mapping[str, Any]) -> dict[str, SavedCollection]:
        """Return the collections as another worker resumes them."""
        return {
            task: stored_collection.build_saved(
                [
                    name
                    for name, variable_value in variables.items()
                    if variable_value is stored_collection.shown_value
                ]
            )
            for task, stored_collection in self._by_task.items()
        }

    def drop_collected(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result's names without the collections, which are saved apart."""
        collections = [
            stored_collection.shown_value for stored_collection in self._by_task.values()
        ]
        return {
            name: value
            for name, value in names.items()
            if all(value is not item for item in collections)
        }

    def drop_from_result(self, result: TaskResult) -> TaskResult:
        """Return a result without the collection of its task."""
        return structs.replace(result, names=self.drop_collected(result.names))

    def restore_result(self, task: str | None, result: TaskResult) -> TaskResult:
        """Return a result with the collection of its task."""
        stored_collection = self._by_task.get(task or "")
        if stored_collection is None:
            return result
        return structs.replace(
            result, names={**result.names, stored_collection.name: stored_collection.shown_value}
        )


def _copy_growing(value: Any, growing: AbstractSet[int]) -> Any:
    """Return a value whose growing lists are copied, itself where it holds none."""
    if type(value) is list:
        if id(value) in growing:
            return [*value]
        items = [_copy_growing(item, growing) if type(item) in _HOLDERS else item for item in value]
        is_same = all(
            copied_holders is item for copied_holders, item in zip(items, value, strict=True)
        )
        return value if is_same else items
    if type(value) is dict:
        holders = {name: item for name, item in value.items() if type(item) in _HOLDERS}
        copied_holders = {name: _copy_growing(item, growing) for name, item in holders.items()}
        is_same = all(copied_holders[name] is item for name, item in holders.items())
        return value if is_same else {**value, **copied_holders}
    return value
