"""Layouts of hashed fan-outs, as the collector reads them."""

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.slicing import Layout
from noetl_storage.ports import Payloads


class Layouts:
    """Reads layouts; the latest one is kept, for it is asked for twice."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._kept: tuple[str, Layout] | None = None

    async def get(self, reference: PayloadRef) -> Layout:
        """Return the layout that a reference names."""
        if self._kept is not None and self._kept[0] == reference.sha256:
            return self._kept[1]
        layout = codec.decode_as(await self._payloads.read(reference), Layout)
        self._kept = (reference.sha256, layout)
        return layout
