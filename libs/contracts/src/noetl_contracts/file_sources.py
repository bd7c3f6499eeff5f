"""Where the files of a rerun come from."""

from msgspec import Struct

from noetl_contracts.ids import ExecutionId


class FileSource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier execution, whose files are taken over as its step runs before one left them.

    `before_activation` is the number of the first step run that is left out; None leaves out none.
    """

    execution_id: ExecutionId
    before_activation: int | None = None
