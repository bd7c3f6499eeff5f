"""The collection of a loop, read item by item; the payload of the latest item is held."""

from typing import Any

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.slicing import Form, ListPart, PartList
from noetl_planner.http import reading
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_playbook import carried


class Collection:
    """Items by their place; a collection kept in parts is read part by part."""

    def __init__(
        self,
        services: ApiServices,
        *,
        form: Form,
        reference: PayloadRef | None,
        inline: list[Any] | None = None,
    ) -> None:
        self._services = services
        self._form = form
        self._reference = reference
        self._items = inline
        self._parts: list[ListPart] | None = None
        self._part: tuple[ListPart, list[Any]] | None = None

    async def get(self, place: int) -> Any:
        """Return the item at a place; raises an `ApiError` when its payload cannot be read."""
        if self._items is None and self._reference is None:
            return place
        if self._items is None and self._parts is None:
            await self._open()
        if self._items is not None:
            return self._items[place]
        return await self._of_part(place)

    async def find_reference(self, place: int) -> tuple[PayloadRef, int] | None:
        """Return the payload that holds an item, and its place there; None for an inline one."""
        if self._reference is None or self._form is Form.RANGE:
            return None
        if self._parts is not None:
            part = self._find_part(place)
            return part.ref, place - part.start
        return self._reference, place

    async def _open(self) -> None:
        assert self._reference is not None, "what is not inline is stored"
        if self._form is Form.PARTS:
            listed = await reading.read(self._services, self._reference)
            self._parts = codec.convert(listed, PartList).parts
            return
        try:
            data = await reading.read(self._services, self._reference)
        except ApiError:
            # A worker cuts what is large into parts before it runs items of it.
            name = f"slices/{self._reference.sha256}"
            cut = await self._services.payloads.find_named(name, **self._services.place)
            if cut is None:
                raise
            self._parts = codec.decode_as(cut, PartList).parts
            return
        is_list = self._form is Form.LIST
        self._items = list(data) if is_list else carried.rows(str(self._form), data)

    async def _of_part(self, place: int) -> Any:
        part = self._find_part(place)
        if self._part is None or self._part[0] is not part:
            self._part = part, await reading.read(self._services, part.ref)
        return self._part[1][place - part.start]

    def _find_part(self, place: int) -> ListPart:
        assert self._parts is not None, "only collections in parts come here"
        held = self._part[0] if self._part is not None else None
        if held is not None and held.start <= place < held.end:
            return held
        return next(part for part in self._parts if part.start <= place < part.end)
